"""What README.md and docs/ tell people to type is there: commands, options, files, settings."""

import re
import shlex
from pathlib import Path

import click
import pytest

from gateway.cli import COMMANDS, command_named, main
from gateway.config.file import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"<<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)
# The command and what follows it, in a block or within a sentence.
PAIRGATE = re.compile(r"(?:^|`)(?:\.venv/bin/)?pairgate ([^`\n]*)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(text: str, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(text) if name == language]


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in PAIRGATE.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_is_known(page: Path) -> None:
    for name, *arguments in commands(page.read_text()):
        command = command_named(name)
        if isinstance(command, click.Group) and arguments:
            command = command.commands[arguments[0]]
        known = {option for parameter in command.params for option in parameter.opts}

        assert {word for word in arguments if word.startswith("-")} <= known, name


def test_what_can_be_pasted_is_complete() -> None:
    pasted = [words for code in blocks(README, "sh") for words in commands(code)]

    for name, *arguments in pasted:
        context = command_named(name).make_context(name, arguments, parent=click.Context(main))
        config = context.params["config"]

        assert config is None or (ROOT / config).exists()
    assert {name for name, *_ in pasted} == {"serve", "send", "peek", "receive", "certs"}


def test_make_knows_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "\n".join(page.read_text() for page in PAGES)
    targets = set(re.findall(r"(?:^|`)make ([\w./-]+)", text, re.MULTILINE))

    assert targets >= {"run", "test", "check", "bench", "lock"}
    for target in targets:
        # A target may share its rule with others.
        assert re.search(
            rf"^[^\t#\n]*(?<!\S){re.escape(target)}[ \w./-]*:", makefile, re.MULTILINE
        ), target


def test_the_table_has_every_command() -> None:
    (table,) = re.findall(r"^\| command \| does \|\n((?:\|.*\n)+)", README, re.MULTILINE)
    first_column = [row.split("|")[1] for row in table.splitlines()]

    assert set(re.findall(r"`(\w+)`", " ".join(first_column))) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    text = page.read_text()

    for code in [*blocks(text, "python"), *HEREDOC.findall(text)]:
        compile(code, page.name, "exec")


def test_the_configuration_is_one_to_serve(tmp_path: Path) -> None:
    environ = dict.fromkeys(("EAST_KEY", "WEST_KEY", "ENVELOPE_KEY"), "a secret of many bytes")
    text = next(code for code in blocks(README, "toml") if "[pairing]" in code)

    loaded = parse(text, source="README", folder=tmp_path, environ=environ)

    assert loaded.config.pairing
    assert loaded.config.endpoints
    assert loaded.warnings == ()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
