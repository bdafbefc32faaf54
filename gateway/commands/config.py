"""`pairgate config`: prints shipped configurations, and makes a new one."""

import tomllib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import new_config, new_connections
from gateway.app.operations.new_config import Answers
from gateway.commands.interview import Interview
from gateway.commands.terminal import Invocation, add_config, add_json, failing_in_words, printable
from gateway.config.shipped import DEFAULT_NAME, default_text, example_names, example_text
from gateway.config.showing import shown_table, toml_of
from gateway.config.source import FILE_NAME


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

    Each answer is checked at once, and each namespace is connected to. Only this user can read
    the files. A file that exists is never overwritten. An interview that is left goes on next time.
    """
    new_config.refuse_existing(file)
    interview = Interview(earlier=new_config.read_draft(file))
    try:
        answers = interview.answers()
        further = new_connections.definitions(answers)
        made = new_config.write_config(file, answers, further)
    except BaseException:
        _keep(file, interview)
        raise
    new_config.draft_of(file).unlink(missing_ok=True)
    clients, steps = new_connections.client_strings(answers, file.parent), _steps(file, answers)
    lines = [
        *(f"written: {path}" for path in made),
        *(f'export {name}="{text}"' for name, text in clients.items()),
        *(f"next: {step}" for step in steps),
    ]
    value = {"files": [str(path) for path in made], "clients": clients, "next": steps}
    invocation.print(value, *(Text(printable(line)) for line in lines))


def _keep(file: Path, interview: Interview) -> None:
    """Keep the answers of an interview that was left, if there are any."""
    if interview.given:
        draft = new_config.keep_draft(file, {**interview.earlier, **interview.given})
        text = f"\nThe answers are kept in {draft}: `pairgate config new {file}` goes on with them"
        click.echo(printable(text), err=True)


def _steps(file: Path, answers: Answers) -> list[str]:
    """The next commands."""
    names = list(new_connections.definitions(answers))
    imports = [f"rabbitmqctl import_definitions {file.parent / name}, there" for name in names]
    pair = [answers.primary, *filter(None, [answers.secondary])]
    makes = [] if all(each.is_local for each in pair) else [f"pairgate provision --config {file}"]
    return [*imports, *makes, f"pairgate check --config {file}", f"pairgate serve --config {file}"]


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
