"""`pairgate status`: the state of the running gateway, for people and for scripts."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Final, NoReturn

import click
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_endpoint import AdminChoice
from gateway.app.operations.asking import ask_readiness, ask_status
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_admin
from gateway.commands.terminal import (
    Interrupted,
    Invocation,
    add_config,
    add_json,
    failing_in_words,
    printable,
    run,
    run_until_interrupted,
)
from gateway.config.options import Config
from gateway.domain.billing import Operation, UsageReport
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.abilities import Ability, AbilityState, AbilityStatus
from gateway.domain.health.syphon_progress import Movement, SyphonProgress, progress_of
from gateway.domain.status.pair import RATE_SECONDS, PairStatus, SpoolStatus
from gateway.domain.status.process import NamespaceStatus, Status
from gateway.domain.status.sections import Line
from gateway.wire.pairgate.advice import problems_of, span, syphons_text
from gateway.wire.pairgate.status import status_value

EVERY: Final = 1.0  # seconds between two requests of --watch
RED: Final = "bold red"
MOST_WAITING: Final = 5  # entities that are named with the messages that wait for them
MIB: Final = 1024 * 1024
ANSWERS: Final = {AbilityState.YES: "green", AbilityState.NO: "red", AbilityState.UNKNOWN: "yellow"}
STYLES: Final = {"suspect": "yellow", "secondary": "red", "half-open": "yellow", "pinned": "red"}


@click.command()
@add_config
@add_json
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option("--ready", is_flag=True, help="Only ask whether it takes work: for health checks.")
@failing_in_words
@add_admin
def status(invocation: Invocation, watch: bool, ready: bool, admin: AdminChoice) -> None:
    """
    Show the state of the running gateway, or of the one at --url.

    Exit code 0: all is well. 1: the gateway needs attention; the first lines say why. 75: no
    gateway answers. With --ready, 1 means that it starts or ends; an outage doesn't count.
    """
    config = invocation.read().config
    if ready:
        _show_readiness(invocation, config, admin)
    if watch:
        try:
            run_until_interrupted(_watch, config, as_json=invocation.as_json, admin=admin)
        except Interrupted:
            sys.exit(ExitCode.DONE)
    address, found = run(ask_status, config, admin)
    if invocation.as_json:
        click.echo(json.dumps(_value(address, found)))
    else:
        Console(soft_wrap=True).print(screen(address, found))
    sys.exit(ExitCode.FAILED if problems_of(found) else ExitCode.DONE)


def _show_readiness(invocation: Invocation, config: Config, admin: AdminChoice) -> NoReturn:
    address, found = run(ask_readiness, config, admin)
    value = {"gateway": address, "ready": found.is_ready, "reason": found.reason}
    invocation.print(value, Text(printable(f"{address}: {found.reason}")))
    sys.exit(ExitCode.DONE if found.is_ready else ExitCode.FAILED)


async def _watch(config: Config, *, as_json: bool, admin: AdminChoice) -> None:
    """
    Show the status until cancelled. A gateway that doesn't answer now may answer later. Without a
    terminal there is one line for each change.
    """
    last = ""
    console = Console(soft_wrap=True)
    live = Live(console=console, auto_refresh=False, screen=True)
    on_screen = console.is_terminal and not as_json
    with live if on_screen else nullcontext():
        while True:
            try:
                address, found = await ask_status(config, admin)
            except Failure as failure:
                value: Any = {"good": False, "problems": [str(failure)]}
                shown: RenderableType = Text(printable(str(failure)), style=RED)
                line = str(failure)
            else:
                value, shown = _value(address, found), screen(address, found)
                line = summary(found)
            if as_json:
                click.echo(json.dumps(value))
            elif on_screen:
                live.update(shown, refresh=True)
            elif line != last:
                click.echo(printable(f"{Runtime.now():%Y-%m-%dT%H:%M:%SZ} {line}"))
            last = line
            await trio.sleep(EVERY)


def _value(address: str, found: Status) -> dict[str, Any]:
    return {"gateway": address, **status_value(found)}


def summary(found: Status) -> str:
    """The status in one line, without ages, so that it is the same until something changes."""
    facts = ["needs attention" if problems_of(found) else "all is well"]
    for each in found.namespaces:
        reach = each.abilities.get(Ability.REACH.value)
        if reach is not None and reach.state is AbilityState.NO:
            facts.append(f"{each.name} can't be reached")
    if (pair := found.pair) is not None:
        counts = {f"entities {state}": count for state, count in pair.states.items()}
        counts["dead letters"] = pair.backlog.dead_letters.messages or 0
        counts["pins"] = len(pair.pins)
        counts["pauses"] = len(pair.syphon.pauses)
        facts += [f"{name}: {count}" for name, count in counts.items() if count]
        if pair.syphons_alive == 0:
            facts.append("no syphon is alive")
        pending, way_home = pair.backlog.pending, progress_of(pair, found.at).state
        moves = "" if way_home is Movement.EMPTY else f", {way_home.value}"
        facts.append(f"backlog: {'unknown' if pending is None else pending}{moves}")
    facts += filter(None, (each.fact(value) for each, value in found.sections.items()))
    return "; ".join(facts)


def screen(address: str, found: Status) -> Group:
    """The status for people."""
    parts: list[RenderableType] = [_head(address, found)]
    parts += [Text(f"  {printable(each)}", style=RED) for each in problems_of(found)]
    parts += _abilities(found.namespaces, found.at)
    if found.pair is not None:
        parts += _pair(found.pair, found.at)
        parts.append(_progress(progress_of(found.pair, found.at)))
    for section, value in found.sections.items():
        parts += map(_line, section.lines(value))
    usages = {f"{each.name} ({each.role}, {each.kind})": each.usage for each in found.namespaces}
    parts.append(_usages("namespace", usages))
    return Group(*parts)


def _head(address: str, found: Status) -> Text:
    up = span((found.at - found.started).total_seconds())
    well = ("needs attention", RED) if problems_of(found) else ("all is well", "green")
    return Text.assemble(f"gateway at {address}, up {up}: ", well)


def _abilities(namespaces: Sequence[NamespaceStatus], now: datetime) -> list[RenderableType]:
    """
    The abilities of each namespace, with dates; below them the last error of each failing one.
    """
    told = [each for each in namespaces if each.abilities]
    if not told:
        return []
    table = Table("namespace", *(each.value for each in Ability))
    lines: list[RenderableType] = [table]
    for namespace in told:
        cells = []
        for each in Ability:
            one = namespace.abilities.get(each.value, AbilityStatus())
            since = "" if one.since is None else f" {span((now - one.since).total_seconds())}"
            cells.append(Text(f"{one.state.value}{since}", style=ANSWERS[one.state]))
            if one.error is not None and one.state is not AbilityState.YES:
                text = f"  {namespace.name}, {each.value}: {one.error}; {one.remedy}"
                lines.append(Text(printable(text), style=ANSWERS[one.state]))
        table.add_row(Text(printable(namespace.name)), *cells)
    return lines


def _spool(spool: SpoolStatus) -> Text:
    depth = "an unknown number of" if spool.pending is None else str(spool.pending)
    age = "" if spool.oldest_age is None else f", the oldest for {span(spool.oldest_age)}"
    free = "unknown" if spool.free_bytes is None else f"{spool.free_bytes // MIB} MiB"
    return Text(
        f"spool    {depth} messages wait{age}; {spool.rate_in:.1f}/s in,"
        f" {spool.rate_out:.1f}/s out; room for {free}"
    )


def _progress(progress: SyphonProgress) -> Text:
    """Tells if the backlog moves, and why not or for how long."""
    why = f": {printable(progress.why)}" if progress.why else ""
    left = "" if progress.seconds_left is None else f"; empty in {span(progress.seconds_left)}"
    return Text(f"way home {progress.state.value}{why}{left}")


def _dead_letters(place: str, dead: DeadLetters) -> list[Text]:
    if not dead.messages:
        return []
    return [Text(f"         dead letters of the {place}: {dead.text}", style="yellow")]


def _troubled(pair: PairStatus, now: datetime) -> list[RenderableType]:
    """The entities that aren't on the primary."""
    if not pair.entities:
        return []
    table = Table(
        *("entity", "state", "for", "diverted", "waiting", "next probe", "reason"),
        title="not on the primary",
    )
    for each in pair.entities:
        style = STYLES.get(each.state, "")
        since = span((now - each.since).total_seconds())
        name, reason = printable(each.entity), printable(each.reason)
        probe = "-" if each.next_probe is None else f"in {span(each.next_probe)}"
        state = Text(each.state, style=style)
        counts = (str(each.diverted), _number(each.waiting))
        table.add_row(Text(name), state, since, *counts, probe, Text(reason))
    more = sum(pair.states.values()) - len(pair.entities)
    return [table, *([Text(f"  and {more} more")] if more > 0 else [])]


def _pair(pair: PairStatus, now: datetime) -> list[RenderableType]:
    lines = _troubled(pair, now)
    backlog, syphon = pair.backlog, pair.syphon
    age = "" if backlog.oldest_age is None else f", the oldest for {span(backlog.oldest_age)}"
    depth = "an unknown number of" if backlog.pending is None else str(backlog.pending)
    lines.append(
        Text(
            f"backlog  {depth} messages wait{age}{_as_of(backlog.as_of, now)};"
            f" {backlog.usable} of {backlog.wanted} queues are usable"
        )
    )
    lines += [*_by_entity(backlog.by_entity), *_dead_letters("backlog", backlog.dead_letters)]
    if pair.spool is not None:
        lines.append(_spool(pair.spool))
        lines += _dead_letters("spool", pair.spool.dead_letters)
    here = "" if syphon.running else " (none runs in this process)"
    last = ""
    if syphon.last_moved is not None:
        last = f", last {span((now - syphon.last_moved).total_seconds())} ago"
    lines.append(
        Text(
            f"syphon   {syphon.moved} messages moved{last}, {syphon.rate:.1f}/s in the last"
            f" {RATE_SECONDS:g} s; {syphon.backing_off} entities are backed off,"
            f" {syphon.dead_lettered} dead letters{here}"
        )
    )
    lines.append(Text(f"syphons  {printable(syphons_text(pair, now))}"))
    sends = ", ".join(
        f"{each.messages} {each.outcome}"
        f"{f' by {each.accepted_by}' if each.accepted_by else f' ({each.error})'}"
        for each in pair.sends
    )
    lines.append(Text(f"sends    {sends or 'none yet'}; {pair.inflight} bytes in flight"))
    if pair.paused:
        lines.append(Text(f"busy     sends to {pair.paused} entities pause", style="yellow"))
    return lines


def _by_entity(waiting: Mapping[str, int] | None) -> list[Text]:
    """The entities for which the most messages wait."""
    if not waiting:
        return []
    most = list(waiting.items())[:MOST_WAITING]
    texts = [f"{printable(name)} {count}" for name, count in most]
    more = len(waiting) - len(most)
    return [Text(f"         by entity: {', '.join(texts)}{f' and {more} more' if more else ''}")]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _as_of(told: datetime | None, now: datetime) -> str:
    """The age of a figure of the secondary."""
    return "" if told is None else f" ({span((now - told).total_seconds())} ago)"


def _line(line: Line) -> RenderableType:
    if isinstance(line, str):
        return Text(printable(line))
    heading, *rows = line
    table = Table(*heading)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _usages(what: str, usages: dict[str, UsageReport]) -> Table:
    table = Table(
        what, "operations", "per message", "per idle day", "of them", title="as a cloud would bill"
    )
    for name, usage in usages.items():
        kinds = [f"{usage.operations[o]} {o.value}" for o in Operation if usage.operations.get(o)]
        table.add_row(
            Text(printable(name)),
            str(usage.total),
            _figure(usage.per_message, 2),
            _figure(usage.per_idle_day, 0),
            ", ".join(kinds),
        )
    return table


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
