"""`serve --queue`: queues that the command line gives."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import load, parse

PAIR = """
[namespaces.west]
url = "memory:"
[namespaces.east]
url = "memory:"
queues = ["Orders"]
[pairing]
primary = "east"
secondary = "west"
"""
REMOTE = """
[namespaces.east]
url = "rabbitmq://guest@127.0.0.1"
"""


def queues_of(text: str, *names: str) -> dict[str, tuple[str, ...]]:
    loaded = parse(text, source="x.toml", folder=Path("/nowhere"), environ={}, queues=names)
    return {name: space.queues for name, space in loaded.config.namespaces.items()}


def test_the_primary_gets_the_queues_that_it_lacks() -> None:
    found = queues_of(PAIR, "orders", "bills", "Bills")

    assert found == {"west": (), "east": ("Orders", "bills")}


def test_without_a_pair_the_first_namespace_gets_them() -> None:
    assert queues_of('namespaces.alone.url = "memory:"', "bills") == {"alone": ("bills",)}


def test_without_a_file_the_stores_of_the_default_get_them(tmp_path: Path) -> None:
    loaded = load(None, environ={}, here=tmp_path, queues=["orders"])

    assert {name: space.queues for name, space in loaded.config.namespaces.items()} == {
        "east": ("orders",),
        "west": (),
    }


def test_a_namespace_elsewhere_has_a_command_for_that() -> None:
    with pytest.raises(ConfigError) as caught:
        queues_of(REMOTE, "orders")

    [problem] = caught.value.problems
    assert problem.startswith("--queue: a namespace of the gateway's own (embedded:PATH) expected")
    assert "`pairgate create queue`" in problem


@pytest.mark.parametrize("url", ["amqps://user:hush@host", "servicebus:SharedAccessKey=hush"])
def test_a_secret_in_the_url_of_such_a_namespace_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        queues_of(f'namespaces.alone.url = "{url}"', "orders")

    assert "hush" not in str(caught.value)


def test_a_name_that_can_not_be_is_refused_like_one_in_the_file() -> None:
    with pytest.raises(ConfigError, match=r"namespaces\.east\.queues"):
        queues_of(PAIR, "not/../a queue?")


@pytest.mark.parametrize(
    "text", ["namespaces = 1", 'pairing = 1\n[namespaces.east]\nurl = "memory:"\nqueues = 3']
)
def test_a_file_that_is_wrong_is_wrong_with_queues_too(text: str) -> None:
    with pytest.raises(ConfigError, match=r"namespaces|queues"):
        queues_of(text, "orders")
