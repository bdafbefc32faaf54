"""`pairgate purge`: deletes the messages of a backlog queue, with the user's consent."""

import sys
from functools import partial
from typing import Any

import attrs
import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import asking
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give, with_keys_when_used
from gateway.commands.terminal import (
    Integer,
    Invocation,
    add_reason,
    add_yes,
    ask_consent,
    command,
    run,
    waiting,
)
from gateway.domain.errors import InvalidRequest
from gateway.extensions.purge.order import PURGE, PurgeAnswer, PurgeOrder


@command
@add_gateway
@click.argument("queue")
@click.option("--dead-letters", is_flag=True, help="Its dead letters instead of its messages.")
@add_reason
@add_yes
@click.option(
    "--messages",
    type=Integer(0),
    help="How many you have seen: if there are more, nothing is deleted. Default: those now.",
)
def purge(invocation: Invocation, admin: AdminChoice, queue: str, **given: Any) -> None:
    """
    Delete the messages of a backlog queue of the running gateway. They never arrive.

    The command shows how many there are and asks for the name of the queue. If more have come since
    then, nothing is deleted. Exit code 3: some were locked, and are left.
    """
    try:
        order = PurgeOrder(queue=queue, dead_letters=given["dead_letters"], reason=given["reason"])
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    seen = given["messages"]
    if seen is None or not given["yes"]:
        config, asks = with_keys_when_used(invocation, admin)
        _, found = run(asking.give, config, asks, PURGE, order)
        seen = found.messages if seen is None else seen
        if found.messages and not given["yes"]:
            ask_consent(_loss(order, found), queue)
    order = attrs.evolve(order, confirm=queue, messages=seen)
    with waiting("deleting", shown=not invocation.as_json):
        answer = give(invocation, admin, PURGE, order, partial(_lines, order))
    sys.exit(ExitCode.PARTLY if answer.left else ExitCode.DONE)


def _lines(order: PurgeOrder, _: str, answer: PurgeAnswer) -> list[str]:
    left = f", {answer.left} were locked and are left" if answer.left else ""
    return [f"{answer.purged} messages of {order.path} deleted{left}"]


def _loss(order: PurgeOrder, found: PurgeAnswer) -> str:
    return (
        f"{found.messages} messages of {order.path} will be deleted. They were accepted for the"
        " primary, and would never arrive there."
    )
