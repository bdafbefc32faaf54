"""The commands of `pairgate store`: their arguments and their output."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Final

import attrs
import click
from rich.filesize import decimal
from rich.text import Text

from gateway.app.failure import ExitCode
from gateway.app.operations import stores
from gateway.app.runtime import Runtime
from gateway.commands.lines import finding_line
from gateway.commands.terminal import (
    Invocation,
    Number,
    add_config,
    add_json,
    failing_in_words,
    printable,
    waiting,
)

MIB: Final = 1024 * 1024
RATE_LIMIT: Final = 64.0


@click.group()
def store() -> None:
    """
    Maintain an embedded store. Only `backup` works while a gateway serves it.

    STORE is a file, or the name of a namespace in the configuration.
    """


def command(function: Callable[..., None]) -> click.Command:
    """A command on one store, with the options that all have."""

    @wraps(function)
    def wrapper(invocation: Invocation, name: str, **rest: object) -> None:
        function(invocation, stores.store_file(name, lambda: invocation.read().config), **rest)

    add_store = click.argument("name", metavar="STORE")
    named = add_config(add_json(failing_in_words(wrapper)))
    return store.command(function.__name__)(add_store(named))


@command
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Accept a store that lost commits, or was copied, if nothing else is wrong.",
)
@click.option(
    "--salvage",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="TARGET",
    help="Copy everything readable to the new store TARGET, and report the losses.",
)
def check(invocation: Invocation, path: Path, accept_loss: bool, target: Path | None) -> None:
    """Check everything in STORE, and change nothing. Exit code 1: something is wrong."""
    with waiting("checking", shown=not invocation.as_json):
        found = stores.check_store(path, accept_loss=accept_loss)
    findings = stores.findings_of(path, found)
    value = {"path": str(path), "good": found.good, **attrs.asdict(found)}
    if target is not None:
        with waiting("copying", shown=not invocation.as_json):
            salvaged = stores.salvage_store(path, target, Runtime())
        findings += stores.salvaged_findings(target, salvaged)
        value["salvaged"] = {"path": str(target), **attrs.asdict(salvaged)}
    invocation.print(value, *map(finding_line, findings))
    sys.exit(ExitCode.DONE if found.good else ExitCode.FAILED)


@command
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--rate-limit",
    type=Number(min=0, min_open=True),
    default=RATE_LIMIT,
    show_default=True,
    metavar="MIB",
    help="Copy at most so many MiB a second while a gateway serves STORE.",
)
def backup(invocation: Invocation, path: Path, target: Path, rate_limit: float) -> None:
    """Copy STORE to TARGET, which must not exist, and check the copy. A gateway may serve STORE."""
    with waiting("copying", shown=not invocation.as_json):
        copy = stores.back_up_store(path, target, Runtime(), rate_limit * MIB)
    text = f"{copy.messages} messages, {decimal(copy.bytes_after)}, in {target}"
    invocation.print({"target": str(target), **attrs.asdict(copy)}, Text(printable(text)))


@command
def compact(invocation: Invocation, path: Path) -> None:
    """Release disk space that STORE doesn't need."""
    with waiting("compacting", shown=not invocation.as_json):
        copy = stores.compact_store(path)
    text = f"{path}: {decimal(copy.bytes_before)} before, {decimal(copy.bytes_after)} after"
    invocation.print({"path": str(path), **attrs.asdict(copy)}, Text(printable(text)))
