"""The exit codes of all commands are those of one table."""

import re
from pathlib import Path

import click
import pytest

from gateway.app.failure import ExitCode
from gateway.cli import COMMANDS, command_named

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "commands.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \|", re.MULTILINE)
NAMED = re.compile(r"`([a-z-]+)`:? ")
TOLD = re.compile(r"[Ee]xit codes? (\d+)|(?<=\. )(\d+): ")
STATED = re.compile(r"^(?:## Exit codes\n\n)(.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


def table() -> dict[int, str]:
    text = PAGE.read_text().partition("## Exit codes")[2]
    return {int(code): meaning for code, meaning in ROW.findall(text)}


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = found[name] = command_named(name)
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": each for sub, each in command.commands.items()}
    return found


def codes_in(text: str) -> set[int]:
    return {int(first or second) for first, second in TOLD.findall(" ".join(text.split()))}


def test_the_table_has_each_exit_code_and_no_other() -> None:
    assert set(table()) == set(map(int, ExitCode))


def test_the_table_names_commands_that_exist() -> None:
    named = {name for meaning in table().values() for name in NAMED.findall(meaning)}

    assert named - set(COMMANDS) == set()
    assert {"status", "drill", "bench", "redrive", "purge"} <= named


@pytest.mark.parametrize(("name", "command"), commands().items(), ids=commands())
def test_help_names_only_codes_of_the_table(name: str, command: click.Command) -> None:
    assert codes_in(command.help or "") <= set(table()), name


@pytest.mark.parametrize(
    "page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS))
)
def test_pages_name_only_codes_of_the_table(page: Path) -> None:
    text = page.read_text()
    stated = {
        int(code) for part in STATED.findall(text) for code in re.findall(r"(?:^|[. ])(\d+):", part)
    }

    assert stated | {code for code in codes_in(text) if "xit code" in text} <= (
        set(table()) | _listed(text)
    )


def _listed(text: str) -> set[int]:
    """Numbers of lists, which stand where a code could."""
    return {int(number) for number in re.findall(r"^ *(\d+)\. ", text, re.MULTILINE)}
