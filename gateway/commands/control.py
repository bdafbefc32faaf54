"""
`pairgate failover`, `failback`, `probe`, `pause`, `resume` and `rate`: orders to the running
gateway.
"""

import sys
from datetime import datetime, time, timedelta
from typing import Any

import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_gateway, give
from gateway.commands.gateways import add_gateways, add_processes, give_each
from gateway.commands.place import complete_entity
from gateway.commands.terminal import Invocation, add_reason, command, command_for_several
from gateway.config.values import seconds
from gateway.domain.operators.control import EVERYTHING, ControlAnswer, Order
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder
from gateway.wire.pairgate import control_calls
from gateway.wire.pairgate.control_call import ControlCall

_targets = click.argument(
    "targets", nargs=-1, metavar="[ENTITY|PATTERN]...", shell_complete=complete_entity
)
_all = click.option("--all", "everything", is_flag=True, help="The whole pair.")
_force = click.option(
    "--force", is_flag=True, help="Also for entities that nobody knows: they may come later."
)


def until(text: str, now: datetime) -> datetime:
    """
    The date that a person names: a time of the day (the next one), a duration, or a date. Without a
    time zone it is that of `now`.

    Raises:
        ValueError: the text has none of these forms.
    """
    try:
        moment = time.fromisoformat(text)
    except ValueError:
        pass
    else:
        date = datetime.combine(now.date(), moment.replace(tzinfo=moment.tzinfo or now.tzinfo))
        return date if date > now else date + timedelta(days=1)
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return now + timedelta(seconds=seconds(text))
    return date if date.tzinfo is not None else date.replace(tzinfo=now.tzinfo)


class Until(click.ParamType[datetime]):
    """A date: `06:00`, `2h` or `2026-11-25T06:00`."""

    name = "date"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return until(str(value), Runtime.now().astimezone())
        except ValueError:
            return self.fail(f"06:00, 2h or 2026-11-25T06:00 expected, found {value!r}", param, ctx)


_until = click.option(
    "--until", type=Until(), help="End by itself: 06:00, 2h or 2026-11-25T06:00, in local time."
)


class RateType(click.ParamType[float]):
    """Messages a second; 0 for `off`."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            rate = 0.0 if value == "off" else float(value)
        except ValueError:
            rate = -1.0
        if not 0.0 <= rate < float("inf") or (rate == 0.0 and value != "off"):
            self.fail(f"a number above 0, or off, expected, found {value!r}", param, ctx)
        return rate


@command_for_several
@add_gateways
@_targets
@_all
@add_reason
@_until
@_force
def failover(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """
    Pin entities to the backlog, until `failback` or the end that --until names.

    A pattern such as "orders/*" also covers entities that the gateway doesn't know yet.
    """
    _give(invocation, admin, control_calls.FAILOVER, _chosen(given), given)


@command_for_several
@add_gateways
@_targets
@_all
@add_reason
@_force
def failback(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """
    Return entities to the primary: pinned ones, and those that failed over by themselves.

    If the primary still fails, they fail over again after the failover interval.
    """
    _give(invocation, admin, control_calls.FAILBACK, _chosen(given), given)


@command
@add_gateway
@_targets
@_all
@add_reason
def probe(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """
    Probe entities that have failed over, or are in doubt, on the primary now.

    An answer counts as that to any probe: after enough of them an entity returns. Exit code 3: a
    probe had no answer.
    """
    order = ProbeOrder(targets=_chosen(given), **given)
    answer = give(invocation, admin, control_calls.PROBE, order, probe_lines)
    is_whole = all(each.answered for each in answer.probes.values())
    sys.exit(ExitCode.DONE if is_whole else ExitCode.PARTLY)


@command_for_several
@add_processes
@_targets
@_all
@add_reason
@_until
@_force
def pause(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """
    Pause the syphon of the gateway, until `resume` or the end that --until names.

    Without arguments, or with --all, it moves nothing; with some, nothing for these entities or
    from these backlog queues.
    """
    _give(invocation, admin, control_calls.PAUSE, _chosen(given, EVERYTHING), given)


@command_for_several
@add_processes
@_targets
@_all
@add_reason
@_force
def resume(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """Resume the syphon of the gateway: for everything, or for what the arguments name."""
    _give(invocation, admin, control_calls.RESUME, _chosen(given, EVERYTHING), given)


@command_for_several
@add_processes
@click.argument("limit", type=RateType(), metavar="RATE|off")
@add_reason
def rate(invocation: Invocation, admin: AdminChoice, limit: float, **given: Any) -> None:
    """Limit the syphon of the gateway to RATE messages a second, until it ends."""
    _give(invocation, admin, control_calls.RATE, (EVERYTHING,), {**given, "rate": limit or None})


def _chosen(given: dict[str, Any], *otherwise: str) -> tuple[str, ...]:
    """The targets, or `otherwise` if none is given. Raises Failure if there is no order then."""
    targets: tuple[str, ...] = given.pop("targets")
    if given.pop("everything"):
        if targets:
            raise Failure("--all: no entity expected beside it", ExitCode.WRONG)
        return (EVERYTHING,)
    if not (targets or otherwise):
        raise Failure("an entity, a pattern or --all expected", ExitCode.WRONG)
    return targets or otherwise


def _give(
    invocation: Invocation,
    admin: AdminChoice,
    call: ControlCall[Order, ControlAnswer],
    targets: tuple[str, ...],
    given: dict[str, Any],
) -> None:
    choice = (admin, given.pop("urls"))
    order = Order(**call.fixed, targets=targets, **given)
    give_each(invocation, choice, call, order, lines)


def probe_lines(address: str, answer: ProbeAnswer) -> list[str]:
    """The results for people."""
    found = [f"gateway at {address}: {answer.action} {' '.join(answer.targets)}"]
    for name, result in answer.probes.items():
        change = _change(answer.before[name], answer.after[name])
        verdict = f"answered in {result.seconds:g} s" if result.answered else result.text
        found.append(f"  {name}: {change}: {verdict}")
    if answer.more:
        found.append(f"  and {answer.more} more, which are probed when they are due")
    return found


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def lines(address: str, answer: ControlAnswer) -> list[str]:
    """The answer for people: the changes, and the overrides in effect now."""
    done = "done" if answer.changed else "nothing to do"
    found = [f"gateway at {address}: {answer.action} {' '.join(answer.targets)}: {done}"]
    after = answer.after
    for name, state in after.entities.items():
        found.append(f"  {name}: {_change(answer.before.entities.get(name, state), state)}")
    if after.more_entities:
        found.append(f"  and {after.more_entities} more")
    found += [f"pinned: {each.text}" for each in after.pins]
    found += [f"paused: {each.text}" for each in after.pauses]
    if after.rate is not None:
        found.append(f"rate limit: {after.rate:g} messages a second")
    found += [f"not reached: {each}" for each in after.not_reached]
    if after.not_reached:
        found.append("  -> give these the order, too: repeat --url for each")
    if after.reach_unknown:
        found.append(f"not known which other processes follow it: {after.reach_unknown}")
    return found
