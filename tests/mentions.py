"""The commands, options and addresses that pages, help and errors name."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import click

from gateway.cli import COMMANDS, command_named, main
from tests.pages import EXAMPLES, PAGES, ROOT, name_of

# A command in a sentence, between backticks, may go on in the next line.
_PROGRAM = r"(?:\.venv/bin/|/opt/pairgate/bin/)?pairgate"
_SPAN = re.compile(rf"`{_PROGRAM}\s+([^`]+)`")
_BEFORE = r"(?:[#>$*]? *)(?:sudo |docker compose exec \w+ |kubectl exec \S+ -- |TOKEN=\$\()?"
_LINE = re.compile(rf"^{_BEFORE}{_PROGRAM} +(.+)$", re.MULTILINE)
_WORD = re.compile(rf"(?<![\w./@=:\"'\[-])(?<!install ){_PROGRAM} +([a-z][\w-]*)")
_OPTION = re.compile(r"`(--[a-z][a-z-]+)")
_CALL = re.compile(r"\b(GET|PUT|POST|DELETE|PATCH|HEAD) (/[^\s`\"),;]*)")
_URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost)(?::(\d+))?(/[^\s`\"'),;<|]*)?")
# A program, a comment, or the words of a comment in a file come after a command.
_END = re.compile(r"[|;&<>)]|\s#|\.\.\.|…|\s{3,}")
_RUN_TIME = re.compile(r"\$\([^)]*\)")
_SYNOPSIS = re.compile(r"\s\[OPTIONS\].*")


@attrs.frozen
class Text:
    place: str
    text: str
    is_shell: bool = False  # each line may be a command


@cache
def texts() -> tuple[Text, ...]:
    """Pages, files of conf/, and each text in the code: help, errors, remedies."""
    pages = [Text(name_of(page), page.read_text(), is_shell=True) for page in [*PAGES, *EXAMPLES]]
    files = [path for path in sorted((ROOT / "conf").rglob("*")) if path.is_file()]
    conf = [Text(name_of(path), path.read_text(errors="replace"), is_shell=True) for path in files]
    code = [
        Text(name_of(path), text)
        for path in sorted((ROOT / "gateway").rglob("*.py"))
        for text in literals(path)
    ]
    return (*pages, *conf, *code)


def literals(path: Path) -> Iterator[str]:
    """Each text of a file of Python, and what it gets at run time as NAME."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    parts = set[int]()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts |= {id(each) for each in node.values}
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else "NAME"
                for each in node.values
            )
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def words(text: Text) -> list[str]:
    """Each word that follows the program's name."""
    return _WORD.findall(text.text)


def commands(text: Text) -> list[str]:
    """Each command with its arguments, as it is written."""
    found = [" ".join(span.split()) for span in _SPAN.findall(text.text)]
    if text.is_shell:
        found += [line for line in _LINE.findall(text.text) if "`" not in line]
    plain = [_SYNOPSIS.sub("", _RUN_TIME.sub("NAME", each)) for each in found]
    return [_END.split(each)[0].strip() for each in plain]


def problem_of(written: str) -> str:
    """The reason why these arguments are none of `pairgate`; empty: they are."""
    try:
        name, *arguments = shlex.split(written, comments=True)
    except ValueError as error:
        return str(error)
    if name.startswith("-"):
        return "" if name in {"--version", "--help", "-h"} else "no such option"
    if name not in COMMANDS:
        return "" if name.isupper() else "no such command"
    command = command_named(name)
    context = click.Context(command, info_name=name, parent=_root())
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        part, *arguments = arguments
        if part.isupper():
            return ""
        if part not in command.commands:
            return f"{name} has no command {part}"
        command = command.commands[part]
        context = click.Context(command, info_name=part, parent=context)
    return _usage_problem(command, context, arguments)


def _root() -> click.Context:
    """As of a call: a command keeps the names of its help option."""
    return click.Context(main, **main.context_settings)


def _usage_problem(command: click.Command, context: click.Context, given: list[str]) -> str:
    """The options are the command's, and it has no more arguments than it takes."""
    try:
        options, left, _ = command.make_parser(context).parse_args(list(given))
    except click.UsageError as error:
        # A mention needs no value: `--until` names an option.
        return "" if "requires an argument" in error.message else error.format_message()
    if left:
        return f"more arguments than it takes: {left}"
    for parameter in command.params:
        value = options.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice) and isinstance(value, str):
            choices = {str(choice) for choice in parameter.type.choices}
            if value.islower() and value not in choices:
                return f"{value} is none of {sorted(choices)}"
    return ""


@cache
def all_options() -> frozenset[str]:
    """The options of all commands."""

    def of(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        if isinstance(command, click.Group):
            for part in command.commands.values():
                yield from of(part)

    found = {option for name in COMMANDS for option in of(command_named(name))}
    return frozenset(found | {"--help", "--version"})


def options(text: Text) -> list[str]:
    """Each option that stands alone between backticks."""
    return _OPTION.findall(text.text)


def calls(text: Text) -> list[tuple[str, str]]:
    """Each method and path."""
    return _CALL.findall(text.text)


def urls(text: Text) -> list[tuple[str, str]]:
    """The port and the path of each address of this machine."""
    return _URL.findall(text.text)
