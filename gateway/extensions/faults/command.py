"""`pairgate fault`: faults that clients of the running gateway's embedded namespace meet."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give
from gateway.commands.place import complete_entity
from gateway.commands.terminal import (
    Duration,
    Integer,
    Invocation,
    add_config,
    add_json,
    add_reason,
    failing_in_words,
)
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING
from gateway.extensions.faults.order import (
    ADD_FAULT,
    CLEAR_FAULTS,
    FAULTS,
    Fault,
    FaultAnswer,
    FaultKind,
    FaultOperation,
    FaultOrder,
    FaultState,
    FaultsToClear,
)
from gateway.wire.pairgate.control_call import NoKeys


@click.group()
def fault() -> None:
    """Let the embedded namespace fail, for tests of the applications that use it."""


def _member(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the group, with the options that all have."""

    def decorate(function: Callable[..., None]) -> click.Command:
        return fault.command(name)(add_config(add_json(failing_in_words(add_gateway(function)))))

    return decorate


@_member("add")
@click.argument("kind", type=click.Choice([each.value for each in FaultKind]))
@click.option(
    "--entity",
    "entities",
    multiple=True,
    metavar="ENTITY|PATTERN",
    shell_complete=complete_entity,
    help="Repeatable. Default: every entity.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice([each.value for each in FaultOperation]),
    help="Repeatable. Default: all that KIND can meet.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME|PATTERN",
    help="The access policy or account of a client. Repeatable. Default: every client.",
)
@click.option("--count", type=Integer(1), help="End after so many operations.")
@click.option("--for", "seconds", type=Duration(above_zero=True), help="End after so long.")
@click.option(
    "--delay", type=Duration(), default="1s", show_default=True, help="Of busy and delay."
)
@add_reason
def add(invocation: Invocation, admin: AdminChoice, kind: str, **given: Any) -> None:
    """
    Add a fault; it is in force when the command returns.

    busy: refused, with the advice to wait --delay. fail: refused, the namespace is down. detach:
    not done, and the link is detached with an unknown outcome (a send or a receive). drop: not
    done, and the connection ends. lose: done, and the connection ends before the answer. delay:
    done, late.
    """
    try:
        order = FaultOrder(
            kind=FaultKind(kind),
            entities=given["entities"] or (EVERYTHING,),
            operations=given["operations"],
            clients=given["clients"] or (EVERYTHING,),
            count=given["count"],
            seconds=given["seconds"],
            delay=given["delay"],
            reason=given["reason"],
        )
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    give(invocation, admin, ADD_FAULT, order, _faults_of)


@_member("list")
def list_faults(invocation: Invocation, admin: AdminChoice) -> None:
    """Show the faults that are in force, and how many operations have met each."""

    def lines(_: str, state: FaultState) -> Sequence[str]:
        if not state.allowed:
            return ["the gateway's configuration doesn't allow faults"]
        return _lines(state.faults) or ["no fault is in force"]

    give(invocation, admin, FAULTS, NoKeys(), lines)


@_member("clear")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def clear(invocation: Invocation, admin: AdminChoice, ids: tuple[str, ...]) -> None:
    """End the faults with these ids; without an id all of them."""
    give(invocation, admin, CLEAR_FAULTS, FaultsToClear(ids=ids), _faults_of)


def _faults_of(_: str, answer: FaultAnswer) -> Sequence[str]:
    return _lines(answer.faults) or ["no fault was in force"]


def _lines(faults: Sequence[Fault]) -> Sequence[str]:
    return [f"{each.id}  {each.text}" for each in faults]
