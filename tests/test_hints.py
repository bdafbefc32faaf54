"""Hints name commands that exist, and addresses once."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

import gateway
from gateway.cli import COMMANDS, command_named
from gateway.demo.ports import free_port
from tests.command_line import PAIR, pairgate
from tests.stores import make_stores

PACKAGE: Final = Path(gateway.__path__[0])
# A command in backticks, with its first argument; a text may go on in the next line.
NAMED: Final = re.compile(r"`pairgate (?P<command>[a-z][a-z-]*)(?: (?P<argument>[a-z][a-z-]*))?")
CONTINUED: Final = re.compile(r'"\n\s*f?"')


def hints() -> Iterator[tuple[Path, str, str | None]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        for found in NAMED.finditer(CONTINUED.sub("", file.read_text())):
            yield file, found["command"], found["argument"]


def test_each_command_that_a_text_names_exists() -> None:
    unknown = [hint for hint in hints() if hint[1] not in COMMANDS]
    groups = {name for name in COMMANDS if isinstance(command_named(name), click.Group)}
    parts = [(file, name, part) for file, name, part in hints() if name in groups and part]

    assert unknown == []
    assert {name for _, name, _ in parts} >= {"create"}
    for file, name, part in parts:
        group = command_named(name)
        assert isinstance(group, click.Group)
        assert part in group.commands, (file, name, part)


def test_a_missing_queue_is_created_by_the_command_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    make_stores(file)
    sent = pairgate("send", "ordres", "hello", "--config", file)
    named = re.search(r"`pairgate (create queue ordres)`", sent.stderr)

    assert sent.exit_code == 1
    assert named is not None, sent.stderr
    assert pairgate(*named[1].split(), "--config", file).exit_code == 0
    assert pairgate("send", "ordres", "hello", "--config", file).exit_code == 0


def test_an_address_that_refuses_is_named_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    for command in (("status",), ("events",), ("failover", "orders"), ("trigger", "orders")):
        asked = pairgate(*command, "--url", f"http://{address}")

        assert asked.stderr.count(address) == 1, asked.stderr
