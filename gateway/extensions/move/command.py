"""`pairgate move`: entities of the running gateway's primary move to another namespace."""

from collections.abc import Callable, Sequence

import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give
from gateway.commands.place import complete_entity
from gateway.commands.terminal import (
    Invocation,
    add_config,
    add_json,
    add_reason,
    failing_in_words,
)
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING
from gateway.extensions.move.order import (
    MOVE,
    MOVES,
    PLAN_MOVE,
    MoveAction,
    MoveOrder,
    MovePlan,
    MovesAnswer,
    MoveState,
    PlanOrder,
)
from gateway.wire.pairgate.control_call import NoKeys


@click.group()
def move() -> None:
    """Move queues and topics from the primary to another namespace, under load."""


def _member(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the group, with the options that all have."""

    def decorate(function: Callable[..., None]) -> click.Command:
        return move.command(name)(add_config(add_json(failing_in_words(add_gateway(function)))))

    return decorate


_add_targets = click.argument(
    "targets", nargs=-1, metavar="[ENTITY|PATTERN]...", shell_complete=complete_entity
)


@_member("plan")
@_add_targets
def plan(invocation: Invocation, admin: AdminChoice, targets: tuple[str, ...]) -> None:
    """
    Compare entities with the new namespace, and name what it can't do.

    Nothing of them is changed. To try out the properties of a missing queue, one named
    x-pairgate-move/trial is made at the new namespace, and deleted.
    """
    try:
        order = PlanOrder(targets=targets or (EVERYTHING,))
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    give(invocation, admin, PLAN_MOVE, order, _lines_of_plan)


@_member("start")
@_add_targets
@click.option("--force", is_flag=True, help="Also with the problems that the plan names.")
@add_reason
def start(
    invocation: Invocation, admin: AdminChoice, targets: tuple[str, ...], force: bool, reason: str
) -> None:
    """
    Make the entities at the new namespace, and move them: sends go there from a moment on, and
    receivers are served from both namespaces until the old one is empty.
    """
    _give(invocation, admin, MoveAction.START, targets, reason=reason, force=force)


@_member("pause")
@_add_targets
@add_reason
def pause(
    invocation: Invocation, admin: AdminChoice, targets: tuple[str, ...], reason: str
) -> None:
    """Let the mover move nothing. Sends and receivers stay as they are."""
    _give(invocation, admin, MoveAction.PAUSE, targets, reason=reason)


@_member("resume")
@_add_targets
@add_reason
def resume(
    invocation: Invocation, admin: AdminChoice, targets: tuple[str, ...], reason: str
) -> None:
    """Let the mover go on."""
    _give(invocation, admin, MoveAction.RESUME, targets, reason=reason)


@_member("rollback")
@_add_targets
@add_reason
def rollback(
    invocation: Invocation, admin: AdminChoice, targets: tuple[str, ...], reason: str
) -> None:
    """
    Move back, from any stage.

    An entity whose order is kept turns round once the side that it leaves is empty.
    """
    _give(invocation, admin, MoveAction.ROLLBACK, targets, reason=reason)


@_member("status")
def status(invocation: Invocation, admin: AdminChoice) -> None:
    """Show the stage of each entity, and what is left at the side that it leaves."""
    give(invocation, admin, MOVES, NoKeys(), _lines)


@_member("report")
def report(invocation: Invocation, admin: AdminChoice) -> None:
    """Show what was moved of each entity, by count and id, what stays, and what isn't known."""
    give(invocation, admin, MOVES, NoKeys(), _lines_of_report)


def _give(
    invocation: Invocation,
    admin: AdminChoice,
    action: MoveAction,
    targets: tuple[str, ...],
    *,
    reason: str,
    force: bool = False,
) -> None:
    try:
        order = MoveOrder(
            action=action, targets=targets or (EVERYTHING,), reason=reason, force=force
        )
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    give(invocation, admin, MOVE, order, _lines)


def _lines_of_plan(_: str, answer: MovePlan) -> Sequence[str]:
    lines: list[str] = []
    for each in answer.entities:
        kind = "topic" if each.is_topic else "queue"
        there = "is there" if each.exists else "is made"
        messages = "unknown" if each.messages is None else str(each.messages)
        lines.append(f"{each.entity}  {kind}, {there}, messages: {messages}")
        lines += [f"  problem: {text}" for text in each.problems]
        lines += [f"  note: {text}" for text in each.notes]
    return lines


def _lines(_: str, answer: MovesAnswer) -> Sequence[str]:
    return [_line(each) for each in answer.moves] or ["no move was started"]


def _line(move: MoveState) -> str:
    left = "unknown" if move.left is None else str(move.left)
    words = [f"{move.entity}  {move.stage.value}, left: {left}"]
    words += [f"dead letters: {move.dead_letters}"] if move.dead_letters else []
    words += ["paused"] if move.paused else []
    words += ["order is kept"] if move.ordered else []
    words += ["turns round when that side is empty"] if move.turns else []
    words += [move.problem] if move.problem else []
    return ", ".join(words)


def _lines_of_report(_: str, answer: MovesAnswer) -> Sequence[str]:
    lines: list[str] = []
    for each in answer.moves:
        report = each.report
        lines.append(
            f"{each.entity}  {each.stage.value}, moved: {report.active} active,"
            f" {report.scheduled} scheduled, {report.dead_lettered} dead letters;"
            f" interrupted: {report.interrupted}"
        )
        lines += [f"  deferred, and stay: {report.deferred}"] if report.deferred else []
        lines += [f"  moved: {name}" for name in report.moved]
        lines += [f"  may be on both sides: {name}" for name in report.doubtful]
        lines += [f"  left: {text}" for text in report.left]
    return lines or ["no move was started"]
