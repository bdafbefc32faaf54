"""`pairgate events`: the events of the running gateway, for people and for scripts."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.app.failure import ExitCode
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.following import follow_events, last_events
from gateway.commands.admin import add_admin, with_keys_when_used
from gateway.commands.terminal import (
    Integer,
    Interrupted,
    Invocation,
    command,
    printable,
    run,
    run_until_interrupted,
)
from gateway.wire.http.event_stream import ServerEvent

_HEAD: Final = ("timestamp", "level", "event")


@command
@add_admin
@click.option("--follow", "-f", is_flag=True, help="Show each further event, until Ctrl-C.")
@click.option(
    "--recent",
    type=Integer(0, 1_000_000),
    default=20,
    show_default=True,
    help="The most past events to show.",
)
def events(invocation: Invocation, admin: AdminChoice, follow: bool, recent: int) -> None:
    """
    Show the last events of the running gateway, one a line, with --json as JSON.

    With --follow it goes on, also across a restart of the gateway.
    """
    config, admin = with_keys_when_used(invocation, admin)

    def show(event: ServerEvent) -> None:
        click.echo(event.data if invocation.as_json else printable(line_of(event.data)))

    if not follow:
        run(last_events, config, admin, recent, show)
        return
    try:
        run_until_interrupted(follow_events, config, admin, recent, show, _lost)
    except Interrupted:
        sys.exit(ExitCode.DONE)


def _lost(reason: str) -> None:
    click.echo(printable(f"no events: {reason}"), err=True)


def line_of(data: str) -> str:
    """The event in one line for people."""
    try:
        fields: Mapping[str, Any] = json.loads(data)
        head = " ".join(str(fields[name]) for name in _HEAD if name in fields)
        rest = " ".join(f"{name}={_short(fields[name])}" for name in fields if name not in _HEAD)
    except (ValueError, TypeError, RecursionError):
        return data
    return f"{head} {rest}".rstrip()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text) if " " in text or not text else text
