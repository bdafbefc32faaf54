"""`pairgate config`: prints shipped configurations, and makes a new one."""

import re
import tomllib
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import new_config
from gateway.app.operations.new_config import KINDS, Answers, NewNamespace
from gateway.commands.terminal import Invocation, add_config, add_json, failing_in_words, printable
from gateway.config.shipped import DEFAULT_NAME, default_text, example_names, example_text
from gateway.config.showing import shown_table, toml_of
from gateway.config.source import FILE_NAME

NO_SECONDARY: Final = "none"
_WORDS: Final = re.compile(r"[\s,]+")

_ask: Final = partial(click.prompt, err=True)


def _reads_no_config(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--json`, for a command that reads no configuration."""

    @wraps(function)
    def wrapper(**arguments: Any) -> None:
        failing_in_words(function)(config=None, **arguments)

    named: Callable[..., None] = add_json(wrapper)
    return named


@click.group(invoke_without_command=True)
@click.option("--default", is_flag=True, help="Print every option with its default and a comment.")
@click.option(
    "--example",
    type=click.Choice(example_names()),
    metavar="NAME",
    help=f"Print an example: {', '.join(example_names())}.",
)
@_reads_no_config
def config(invocation: Invocation, default: bool, example: str | None) -> None:
    """Print a complete configuration, make a new one, or show the one in effect."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        return
    if default is (example is not None):
        raise Failure("one of --default, --example NAME, `new` and `show` expected", ExitCode.WRONG)
    name = DEFAULT_NAME if example is None else example
    text = default_text() if example is None else example_text(example)
    if invocation.as_json:
        invocation.print({"name": name, "text": text})
    else:
        click.echo(text, nl=False)


@config.command()
@click.argument(
    "file", type=click.Path(dir_okay=False, path_type=Path), default=FILE_NAME, metavar="[FILE]"
)
@_reads_no_config
def new(invocation: Invocation, file: Path) -> None:
    """
    Ask a few questions, and write a configuration with its keys to FILE (pairgate.toml).

    Only this user can read the files. A file that exists is never overwritten.
    """
    new_config.refuse_existing(file)
    made = new_config.write_config(file, _answers())
    next_step = f"pairgate check --config {file}"
    lines = [*(f"written: {path}" for path in made), f"next: {next_step}"]
    value = {"files": [str(path) for path in made], "next": next_step}
    invocation.print(value, *(Text(printable(line)) for line in lines))


@config.command()
@add_config
@add_json
@failing_in_words
def show(invocation: Invocation) -> None:
    """
    Print the configuration in effect, with each default.

    A secret is shown by the place that it comes from, and of a command that prints one its program.
    """
    loaded = invocation.read()
    table = shown_table(loaded.config, tomllib.loads(loaded.text))
    if invocation.as_json:
        invocation.print({"source": loaded.source, "configuration": table})
    else:
        click.echo(f"# {loaded.source}\n{toml_of(table)}", nl=False)


def _answers() -> Answers:
    primary = _ask_namespace("primary", list(KINDS))
    secondary = _ask_namespace("secondary", [*KINDS, NO_SECONDARY])
    assert primary is not None
    names = _ask("Queues, separated by spaces", default="orders")
    answers = Answers(
        primary=primary,
        secondary=secondary,
        queues=tuple(filter(None, _WORDS.split(names))),
        host=_ask("Address to listen at", default="127.0.0.1"),
        storage=_confirm("Serve clients of Azure Storage Queue, too?", default=False),
    )
    if secondary is None:
        return answers
    text = "Move the backlog home in this gateway? (no: `pairgate syphon` does it elsewhere)"
    answers = attrs.evolve(answers, enable_syphon=_confirm(text, default=True))
    if new_config.needs_label(answers):
        text = "Label of the backlog queues, which no other pair may have on that secondary"
        answers = attrs.evolve(answers, label=_ask(text, default="primary"))
    return answers


def _ask_namespace(role: str, kinds: list[str]) -> NewNamespace | None:
    """Ask until the answers describe a namespace; None if there shall be none."""
    while True:
        chosen = _ask(f"Kind of the {role}", type=click.Choice(kinds), default=kinds[0])
        if chosen == NO_SECONDARY:
            return None
        kind = KINDS[chosen]
        url = kind.default.format(name=role) or _ask(f"URL of the {role} ({kind.url})")
        secret = ""
        if kind.secret:
            words = kind.secret.replace("_", " ").capitalize()
            secret = _ask(f"{words} of the {role}", hide_input=True)
        namespace = NewNamespace(kind=chosen, url=url, secret=secret)
        problems = new_config.problems_of_namespace(namespace)
        if not problems:
            return namespace
        for problem in problems:
            click.echo(f"Error: {printable(problem)}", err=True)


def _confirm(text: str, *, default: bool) -> bool:
    return click.confirm(text, default=default, err=True)
