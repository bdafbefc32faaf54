"""The status as a command prints it: for people, as a line for each change, and for scripts."""

import json
from contextlib import nullcontext
from typing import Any, Final

import click
import trio
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from gateway.app.failure import Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.asking import ask_status
from gateway.app.runtime import Runtime
from gateway.commands.status_screen import RED, OneScreen, screen
from gateway.commands.terminal import Invocation, printable, run
from gateway.config.options import Config
from gateway.domain.health.abilities import Ability, AbilityState
from gateway.domain.health.way_home import WayHome, progress_of
from gateway.domain.status.process import Status
from gateway.wire.pairgate.advice import problems_of
from gateway.wire.pairgate.status import status_value

EVERY: Final = 1.0  # seconds between two requests of --watch


def show(invocation: Invocation, config: Config, admin: AdminChoice) -> bool:
    """Print the status; return True if all is well. Raises Failure as `ask_status`."""
    address, found = run(ask_status, config, admin)
    invocation.print(_value(address, found), screen(address, found))
    return not problems_of(found)


async def watch(config: Config, *, as_json: bool, admin: AdminChoice) -> None:
    """
    Show the status until cancelled. A gateway that doesn't answer now may answer later. Without a
    terminal there is one line for each change.
    """
    last = ""
    console = Console()
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
                live.update(OneScreen(shown), refresh=True)
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
        moves = "" if way_home is WayHome.EMPTY else f", {way_home.value}"
        facts.append(f"backlog: {'unknown' if pending is None else pending}{moves}")
    facts += filter(None, (each.fact(value) for each, value in found.sections.items()))
    return "; ".join(facts)
