"""Commands need no secret that they don't use."""

import socket
from pathlib import Path
from typing import Final

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import load
from gateway.demo.ports import free_port
from tests.command_line import pairgate
from tests.config.shipped import CONF

CONFIG: Final = """
[namespaces.east]
url = "rabbitmq://gateway@127.0.0.1:5672"
password = { env = "EAST" }
queues = ["orders"]

[namespaces.west]
url = "servicebus+https://gateway@west.example.net"
key = { command = ["/nowhere/vault", "west"] }

[pairing]
primary = "east"
secondary = "west"
label = "east"
envelope_keys = [{ id = "1", key = { file = "missing" } }]

[[access]]
name = "operators"
key = { env = "OPERATORS" }
rights = ["Manage"]

[[accounts]]
name = "orders"
key = { env = "ACCOUNT" }

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:PORT"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairgate.toml"
    path.write_text(CONFIG.replace("PORT", str(free_port())))
    return path


@pytest.mark.parametrize(
    "arguments", [("status",), ("events",), ("failover", "orders"), ("pause",), ("drain",)]
)
@pytest.mark.parametrize("url", [True, False])
def test_a_command_that_asks_the_gateway_needs_no_secret_of_a_namespace(
    arguments: tuple[str, ...], url: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRGATE_PASSWORD", "k")
    place = ["--url", f"http://127.0.0.1:{free_port()}", "--user", "ann"] if url else []
    asked = pairgate(*arguments, *place, "--config", file)

    assert ("Connection refused" in asked.stderr) == url
    assert asked.exit_code == 75, asked.stderr


MESSAGES: Final = [
    ("send", "orders", "x"),
    ("receive", "orders"),
    ("peek", "orders"),
    ("list",),
    ("create", "queue", "orders"),
]


@pytest.mark.parametrize("arguments", MESSAGES, ids=lambda each: each[0])
@pytest.mark.parametrize("named", [True, False], ids=["by name", "as no gateway runs"])
def test_a_command_at_a_namespace_needs_the_secret_of_that_one_alone(
    arguments: tuple[str, ...], named: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ["--namespace", "east"] if named else []
    text = file.read_text().replace("127.0.0.1:5672", f"127.0.0.1:{free_port()}")
    file.write_text(text)
    without = pairgate(*arguments, *place, "--config", file)
    monkeypatch.setenv("EAST", "k")
    asked = pairgate(*arguments, *place, "--config", file)

    assert "namespaces.east.password: set the environment variable EAST" in without.stderr
    reason = "can't peek messages" if "peek" in arguments else "Connection refused"
    assert reason in asked.stderr, asked.stderr


@pytest.mark.parametrize("arguments", MESSAGES, ids=lambda each: each[0])
def test_a_command_at_a_gateway_needs_the_keys_of_clients_alone(
    arguments: tuple[str, ...], file: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        file.write_text(
            f'{file.read_text()}\n[[endpoints]]\nprotocol = "service-bus-http"\n'
            f'bind = "127.0.0.1:{port}"\n'
        )
        asked = pairgate(*arguments, "--config", file)

    assert "access[0].key: set the environment variable OPERATORS" in asked.stderr
    assert "namespaces" not in asked.stderr


@pytest.mark.parametrize("command", ["status", "events"])
def test_the_missing_key_that_would_be_used_is_named(command: str, file: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with_key = pairgate(command, "--url", url, "--config", file)
    file.write_text(file.read_text().replace('env = "OPERATORS"', 'env = "PATH"'))
    with_none = pairgate(command, "--url", url, "--config", file)

    assert (with_key.exit_code, with_none.exit_code) == (2, 75), with_none.stderr
    assert "access[0].key: set the environment variable OPERATORS" in with_key.stderr
    assert "Connection refused" in with_none.stderr


def test_a_secret_in_the_file_itself_is_refused_though_it_isnt_used(file: Path) -> None:
    file.write_text(file.read_text().replace('{ env = "EAST" }', '"hush"'))
    asked = pairgate("status", "--config", file)

    assert asked.exit_code == 2
    assert "namespaces.east.password: a secret must not be in this file" in asked.stderr


@pytest.mark.parametrize(
    "path", sorted(CONF.glob("examples/*.toml")), ids=lambda path: str(path.stem)
)
def test_each_example_can_be_read_without_its_secrets(path: Path) -> None:
    assert load(path, environ={}, here=path.parent, secrets=()).config.namespaces
    if "env = " in path.read_text():
        with pytest.raises(ConfigError):
            load(path, environ={}, here=path.parent)
