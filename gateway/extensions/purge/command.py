"""`pairgate purge`: deletes the messages of a backlog queue, after a typed confirmation."""

import sys
from functools import partial
from typing import Any, Final

import attrs
import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import asking
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_gateway, give, with_keys_when_used
from gateway.commands.terminal import (
    Invocation,
    add_reason,
    command,
    confirm_by_name,
    run,
    waiting,
)
from gateway.domain.errors import InvalidRequest
from gateway.extensions.purge.order import PURGE, PurgeAnswer, PurgeOrder

_UNCOUNTED: Final = (
    "--messages: beside --confirm, the number of messages that you have seen expected; `pairgate"
    " purge {}` counts them"
)


@command
@add_gateway
@click.argument("queue")
@click.option("--dead-letters", is_flag=True, help="Its dead letters instead of its messages.")
@add_reason
@click.option("--confirm", metavar="QUEUE", help="For scripts: repeats the name of the queue.")
@click.option("--messages", type=click.IntRange(0), help="With --confirm: how many have been seen.")
def purge(invocation: Invocation, admin: AdminChoice, queue: str, **given: Any) -> None:
    """
    Delete the messages of a backlog queue of the running gateway. They never arrive.

    Without --confirm the command shows how many there are and asks for the name of the queue. If
    more have come since then, nothing is deleted. Exit code 3: some were locked, and are left.
    """
    try:
        order = PurgeOrder(queue=queue, dead_letters=given["dead_letters"], reason=given["reason"])
        if given["confirm"] is None:
            config, asks = with_keys_when_used(invocation, admin)
            _, found = run(asking.give, config, asks, PURGE, order)
            if found.messages:
                _confirm(order, found)
            order = attrs.evolve(order, confirm=queue, messages=found.messages)
        elif given["messages"] is None:
            raise Failure(_UNCOUNTED.format(queue), ExitCode.WRONG)
        else:
            order = attrs.evolve(order, confirm=given["confirm"], messages=given["messages"])
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    with waiting("deleting", shown=not invocation.as_json):
        answer = give(invocation, admin, PURGE, order, partial(_lines, order))
    sys.exit(ExitCode.PARTLY if answer.left else ExitCode.DONE)


def _lines(order: PurgeOrder, _: str, answer: PurgeAnswer) -> list[str]:
    left = f", {answer.left} were locked and are left" if answer.left else ""
    return [f"{answer.purged} messages of {order.path} deleted{left}"]


def _confirm(order: PurgeOrder, found: PurgeAnswer) -> None:
    """
    Return when the user has typed the queue's name.

    Raises:
        Failure: the user has typed something else, or there is no terminal.
    """
    if not sys.stdin.isatty():
        text = f"{found.messages} messages; no terminal can confirm it: --confirm and --messages"
        raise Failure(text, ExitCode.WRONG)
    loss = (
        f"{found.messages} messages of {order.path} will be deleted. They were accepted for the"
        " primary, and would never arrive there."
    )
    confirm_by_name(loss, order.queue, "them")
