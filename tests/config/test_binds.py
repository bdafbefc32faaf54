"""Addresses from the command line and the environment, in place of those of the file."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import load, parse
from gateway.config.given import BIND_VARIABLE

TEXT = """
[namespaces.here]
url = "memory:"
[[endpoints]]
protocol = "amqp"
bind = "127.0.0.1:1001"
[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:1002"
allowed_origins = ["http://localhost:3000"]
[[endpoints]]
protocol = "amqp"
bind = "127.0.0.1:1003"
"""


def binds_of(*binds: str, environment: str = "", text: str = TEXT) -> list[str]:
    environ = {BIND_VARIABLE: environment}
    loaded = parse(text, source="x.toml", folder=Path("/nowhere"), environ=environ, binds=binds)
    return [f"{each.protocol}={each.bind}" for each in loaded.config.endpoints]


def test_without_any_the_addresses_are_those_of_the_file() -> None:
    assert binds_of() == ["amqp=127.0.0.1:1001", "admin=127.0.0.1:1002", "amqp=127.0.0.1:1003"]


def test_an_address_replaces_that_of_the_first_endpoint_with_its_protocol() -> None:
    found = binds_of("amqp=127.0.0.1:1", "admin=[::1]:2")

    assert found == ["amqp=127.0.0.1:1", "admin=[::1]:2", "amqp=127.0.0.1:1003"]


def test_the_next_address_of_a_protocol_is_for_the_next_endpoint_and_then_adds_one() -> None:
    found = binds_of("amqp=127.0.0.1:1", "amqp=127.0.0.1:2", "amqp=127.0.0.1:3")

    assert found == [
        "amqp=127.0.0.1:1",
        "admin=127.0.0.1:1002",
        "amqp=127.0.0.1:2",
        "amqp=127.0.0.1:3",
    ]


def test_the_other_options_of_an_endpoint_stay() -> None:
    environ = {BIND_VARIABLE: "admin=127.0.0.1:7"}
    config = parse(TEXT, source="x.toml", folder=Path("/nowhere"), environ=environ).config

    assert config.endpoints[1].allowed_origins == ("http://localhost:3000",)


def test_an_option_counts_more_than_the_environment() -> None:
    environment = "amqp=127.0.0.1:4 storage-queue=127.0.0.1:5"

    found = binds_of("amqp=127.0.0.1:1", environment=environment)

    assert found == [
        "amqp=127.0.0.1:1",
        "admin=127.0.0.1:1002",
        "amqp=127.0.0.1:1003",
        "storage-queue=127.0.0.1:5",
    ]


def test_the_default_configuration_is_moved_too(tmp_path: Path) -> None:
    environ = {BIND_VARIABLE: "admin=127.0.0.1:7"}

    config = load(None, environ=environ, here=tmp_path).config

    assert config.endpoints[-1].bind == "127.0.0.1:7"
    assert len(config.endpoints) == 5


@pytest.mark.parametrize(
    ("binds", "environment", "text"),
    [
        (["127.0.0.1:1"], "", "--bind: PROTOCOL=HOST:PORT expected, found '127.0.0.1:1'"),
        (["adnim=127.0.0.1:1"], "", "--bind: .*did you mean 'admin'"),
        (["admin=1"], "", "--bind: '1' is not an address to listen on"),
        ([], "admin=", f"{BIND_VARIABLE}: '' is not an address"),
        (["amqp=127.0.0.1:1002"], "", "127.0.0.1:1002 is given twice"),
    ],
)
def test_a_wrong_address_is_named_with_its_source(
    binds: list[str], environment: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        binds_of(*binds, environment=environment)
