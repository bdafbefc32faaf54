"""`pairgate send`, `receive`, `peek` and `trigger`: one message, by hand."""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Final

import attrs
import click
from rich.text import Text

from gateway.app import messages, triggering
from gateway.app.failure import ExitCode
from gateway.app.messages import Where
from gateway.app.outside import Outside
from gateway.commands.lines import delivery_lines, delivery_value
from gateway.commands.terminal import (
    Duration,
    Invocation,
    add_port_offset,
    command,
    printable,
    run,
)
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message

STANDARD_INPUT: Final = "-"


def add_where(function: Callable[..., None]) -> Callable[..., None]:
    """The argument ENTITY, and the options that say through what."""

    @wraps(function)
    def wrapper(invocation: Invocation, entity: str, **rest: Any) -> None:
        where = Where(
            entity=entity,
            namespace=rest.pop("namespace"),
            port_offset=rest.pop("port_offset"),
        )
        function(invocation, where, **rest)

    add_namespace = click.option(
        "--namespace",
        metavar="NAME",
        help="Straight into this one. Default: the gateway that runs here, else the primary.",
    )
    return click.argument("entity")(add_namespace(add_port_offset(wrapper)))


@command
@add_where
@click.argument("body", default=STANDARD_INPUT)
@click.option("--id", "message_id", help="The message id. Default: a new one.")
@click.option("--session", "session_id", help="The session id.")
@click.option("--content-type", help="What the body is.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--ttl", type=Duration(), help="Time to live, such as 5m.")
def send(
    invocation: Invocation,
    where: Where,
    body: str,
    properties: tuple[str, ...],
    ttl: float | None,
    **fields: Any,
) -> None:
    """Send one message to ENTITY; without BODY, standard input is the body."""
    message = Message(
        body=sys.stdin.buffer.read() if body == STANDARD_INPUT else body.encode(),
        properties=_split(properties),
        time_to_live=None if ttl is None else timedelta(seconds=ttl),
        **fields,
    )
    sent = run(messages.send, invocation.read().config, Outside(), where, message)
    text = f"{sent.message_id} accepted by {sent.target} ({sent.leg})"
    invocation.print(attrs.asdict(sent), Text(printable(text)))


@command
@add_where
@click.option("--count", type=click.IntRange(1), default=1, show_default=True)
@click.option("--wait", type=Duration(), default="1s", show_default=True, help="For each.")
@click.option("--dead-letters", is_flag=True, help="From the dead-letter sub-queue.")
def receive(
    invocation: Invocation, where: Where, count: int, wait: float, dead_letters: bool
) -> None:
    """Take messages from ENTITY, print and complete them. Exit code 1: there was none."""
    place = _sub_queue(where, dead_letters)
    config = invocation.read().config
    show = partial(_print_delivery, invocation)
    if not run(messages.receive, config, Outside(), place, show, count=count, wait=wait):
        click.echo(f"no message in {printable(place.entity)}", err=True)
        sys.exit(ExitCode.FAILED)


@command
@add_where
@click.option("--count", type=click.IntRange(1), default=10, show_default=True)
@click.option("--from", "start", type=click.IntRange(0), default=0, help="A sequence number.")
@click.option("--dead-letters", is_flag=True, help="Into the dead-letter sub-queue.")
def peek(invocation: Invocation, where: Where, count: int, start: int, dead_letters: bool) -> None:
    """Show messages of ENTITY and leave them where they are."""
    place = _sub_queue(where, dead_letters)
    found = run(messages.peek, invocation.read().config, Outside(), place, count=count, start=start)
    for delivery in found:
        _print_delivery(invocation, delivery)


@command
@add_port_offset
@click.argument("queue")
@click.option("--size", type=click.IntRange(0), default=0, help="Bytes that have come, if known.")
def trigger(invocation: Invocation, queue: str, size: int, port_offset: int) -> None:
    """Tell the listeners of QUEUE that a message has come past the gateway that runs here."""
    config = invocation.read().config
    address = run(triggering.trigger, config, queue, size=size, port_offset=port_offset)
    told = {"queue": queue, "gateway": address}
    invocation.print(told, Text(f"the gateway at {address} tells the listeners of {queue}"))


def _print_delivery(invocation: Invocation, delivery: Delivery) -> None:
    invocation.print(delivery_value(delivery), *delivery_lines(delivery))


def _sub_queue(where: Where, dead_letters: bool) -> Where:
    if not dead_letters:
        return where
    return attrs.evolve(where, entity=EntityPath(where.entity).dead_letter.name)


def _split(properties: tuple[str, ...]) -> dict[str, str]:
    split = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(
                f"NAME=VALUE expected, found {text!r}", param_hint="--property"
            )
        split[name] = value
    return split
