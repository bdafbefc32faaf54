"""`pairgate status`: how the gateway that runs here is, for people and for scripts."""

import json
import sys
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any, Final

import click
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.app.asking import ask_status
from gateway.app.failure import ExitCode, Failure
from gateway.commands.terminal import (
    Invocation,
    add_config,
    add_json,
    failing_in_words,
    printable,
    run,
)
from gateway.config.options import Config
from gateway.domain.billing import Bill, Operation
from gateway.domain.status import PairStatus, QueueStatus, Status
from gateway.wire.status import status_value

EVERY: Final = 2.0  # seconds between two looks of --watch
RED: Final = "bold red"
STYLES: Final = {"suspect": "yellow", "secondary": "red", "half-open": "yellow", "pinned": "red"}


@click.command()
@add_config
@add_json
@click.option("--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
@click.option("--port-offset", type=int, default=0, metavar="N", help="Move all ports by N.")
@failing_in_words
def status(invocation: Invocation, watch: bool, port_offset: int) -> None:
    """
    Tell how the gateway that runs here is.

    Exit code 0: all is well. 1: somebody should look, the first lines say at what. 75: no
    gateway answers.
    """
    config = invocation.read().config
    if watch:
        try:
            run(_watch, config, as_json=invocation.as_json, port_offset=port_offset)
        except KeyboardInterrupt:
            sys.exit(ExitCode.DONE)
    address, found = run(ask_status, config, port_offset=port_offset)
    if invocation.as_json:
        click.echo(json.dumps(_value(address, found)))
    else:
        Console(soft_wrap=True).print(screen(address, found))
    sys.exit(ExitCode.FAILED if found.problems else ExitCode.DONE)


async def _watch(config: Config, *, as_json: bool, port_offset: int) -> None:
    """
    Until cancelled. A gateway that doesn't answer now may do so later. Where there is no terminal,
    one status follows the other.
    """
    console = Console(soft_wrap=True)
    live = Live(console=console, auto_refresh=False, screen=True)
    on_screen = console.is_terminal and not as_json
    with live if on_screen else nullcontext():
        while True:
            try:
                address, found = await ask_status(config, port_offset=port_offset)
            except Failure as failure:
                value: Any = {"good": False, "problems": [str(failure)]}
                shown: RenderableType = Text(printable(str(failure)), style=RED)
            else:
                value, shown = _value(address, found), screen(address, found)
            if as_json:
                click.echo(json.dumps(value))
            elif on_screen:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
            await trio.sleep(EVERY)


def _value(address: str, found: Status) -> dict[str, Any]:
    return {"gateway": address, **status_value(found)}


def screen(address: str, found: Status) -> Group:
    """The status for people."""
    parts: list[RenderableType] = [_head(address, found)]
    parts += [Text(f"  {printable(each)}", style=RED) for each in found.problems]
    if found.pair is not None:
        parts += _pair(found.pair, found.at)
    if found.wake is not None:
        parts.append(Text(f"listener {found.wake.text}"))
    if found.queues:
        parts.append(_queues(found.queues))
    bills = {f"{each.name} ({each.role}, {each.kind})": each.bill for each in found.namespaces}
    parts.append(_bills("namespace", bills))
    return Group(*parts)


def _head(address: str, found: Status) -> Text:
    up = _span((found.at - found.started).total_seconds())
    well = ("somebody should look", RED) if found.problems else ("all is well", "green")
    return Text.assemble(f"gateway at {address}, up {up}: ", well)


def _pair(pair: PairStatus, now: datetime) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if pair.entities:
        table = Table("entity", "standing", "for", "reason", title="not on the primary")
        for each in pair.entities:
            style = STYLES.get(each.standing, "")
            since = _span((now - each.since).total_seconds())
            name, reason = printable(each.entity), printable(each.reason)
            table.add_row(Text(name), Text(each.standing, style=style), since, Text(reason))
        lines.append(table)
        more = sum(pair.standings.values()) - len(pair.entities)
        lines += [Text(f"  and {more} more")] if more > 0 else []
    backlog, syphon = pair.backlog, pair.syphon
    age = "" if backlog.oldest_age is None else f", the oldest for {_span(backlog.oldest_age)}"
    depth = "an unknown number of" if backlog.pending is None else str(backlog.pending)
    lines.append(
        Text(
            f"backlog  {depth} messages wait{age};"
            f" {backlog.usable} of {backlog.wanted} queues can be used"
        )
    )
    here = "" if syphon.running else " (none runs in this process)"
    last = ""
    if syphon.last_moved is not None:
        last = f", last {_span((now - syphon.last_moved).total_seconds())} ago"
    lines.append(
        Text(
            f"syphon   {syphon.moved} messages moved{last}, {syphon.rate:.1f}/s;"
            f" {syphon.held} entities rest, {syphon.parked} dead letters{here}"
        )
    )
    sends = ", ".join(
        f"{each.messages} {each.outcome}{f' by {each.leg}' if each.leg else ''}"
        for each in pair.sends
    )
    lines.append(Text(f"sends    {sends or 'none yet'}; {pair.inflight} bytes under way"))
    if pair.paused:
        lines.append(Text(f"busy     sends to {pair.paused} entities pause", style="yellow"))
    return lines


def _queues(queues: tuple[QueueStatus, ...]) -> Table:
    table = Table("queue", "tasks", "held", "completed", "failed", "poisoned", "too late")
    for each in queues:
        counts = (each.held, each.completed, each.failed, each.poisoned, each.too_late)
        tasks = f"{each.active_tasks} of {each.total_tasks}"
        table.add_row(Text(printable(each.queue)), tasks, *map(str, counts))
    return table


def _bills(what: str, bills: dict[str, Bill]) -> Table:
    table = Table(
        what, "operations", "per message", "per idle day", "of them", title="as a cloud would bill"
    )
    for name, bill in bills.items():
        kinds = [f"{bill.operations[o]} {o.value}" for o in Operation if bill.operations.get(o)]
        table.add_row(
            Text(printable(name)),
            str(bill.total),
            _figure(bill.per_message, 2),
            _figure(bill.per_idle_day, 0),
            ", ".join(kinds),
        )
    return table


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _span(seconds: float) -> str:
    """As `0:01:30`, without fractions."""
    return str(timedelta(seconds=max(0, round(seconds))))
