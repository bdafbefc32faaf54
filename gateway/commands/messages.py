"""`pairgate send`, `receive`, `peek` and `trigger`: single messages, by hand."""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import messages, triggering
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.json_schema import read_schema
from gateway.app.operations.messages import Where
from gateway.app.operations.typed_message import (
    BodyType,
    EventAttributes,
    event_around,
    kind_of,
    parse_properties,
    parse_schedule,
    typed_body,
)
from gateway.app.operations.ways_in import NamespaceChoice
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_gateway, with_keys_when_used
from gateway.commands.lines import delivery_head, delivery_lines, delivery_value, write_body
from gateway.commands.place import add_body_type, add_place, complete_entity
from gateway.commands.terminal import Duration, Integer, Invocation, command, printable, run
from gateway.domain.entity import EntityPath
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Message, Settlement

STANDARD_INPUT: Final = "-"


def add_where(function: Callable[..., None]) -> Callable[..., None]:
    """Add the argument ENTITY, and the options that select the way to it."""

    @wraps(function)
    def wrapper(invocation: Invocation, entity: str, place: NamespaceChoice, **rest: Any) -> None:
        function(invocation, Where(entity=entity, **attrs.asdict(place, recurse=False)), **rest)

    return click.argument("entity", shell_complete=complete_entity)(add_place(wrapper))


@command
@add_where
@click.argument("body", default=STANDARD_INPUT)
@click.option("--id", "message_id", help="The message id. Default: a new one, or the event's.")
@add_body_type("Check the body, and set the content type.")
@click.option("--event-type", help="Make a CloudEvent of this type, with BODY as its data.")
@click.option("--event-source", help="The source of that event.")
@click.option("--session", "session_id", help="The session id.")
@click.option("--subject", help="The subject (Service Bus: the label).")
@click.option("--correlation-id", help="The correlation id.")
@click.option("--reply-to", help="The entity to answer to.")
@click.option("--content-type", help="The content type of the body. Default: that of --type.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=TEXT",
    help="Repeatable. NAME:=JSON is a number, true or false.",
)
@click.option("--ttl", type=Duration(above_zero=True), help="Time to live, such as 5m.")
@click.option("--schedule", metavar="TIME", help="Deliver it in 10m, or at 2026-11-25T06:00:00Z.")
def send(invocation: Invocation, where: Where, body: str, **given: Any) -> None:
    """
    Send one message to ENTITY; without BODY, the body is read from standard input.

    The message goes through the gateway of this configuration if it answers, otherwise directly to
    the primary. The output says which way it went.
    """
    content = sys.stdin.buffer.read() if body == STANDARD_INPUT else body.encode()
    runtime = Runtime()
    message = _message(content, runtime, **given)
    sent = run(messages.send, invocation.read_with(), runtime, where, message)
    if not (sent.through_gateway or where.namespace or invocation.as_json):
        text = (
            "no gateway answers at an endpoint of this configuration: the message went directly"
            f" to namespace {sent.namespace}"
        )
        click.echo(printable(text), err=True)
    text = f"{sent.message_id or 'message'} accepted by {sent.target} ({sent.accepted_by})"
    invocation.print(attrs.asdict(sent), Text(printable(text)))


@command
@add_where
@click.option("--count", type=Integer(1), default=1, show_default=True, help="Messages at most.")
@click.option(
    "--wait", type=Duration(), default="1s", show_default=True, help="Time to wait for each."
)
@click.option("--dead-letters", is_flag=True, help="Receive from the dead-letter sub-queue.")
@click.option("--session", help="Only messages of this session.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write the body to a new file of that name, or each body to a file in that folder.",
)
@click.option("--leave", is_flag=True, help="Abandon instead of complete, as if never delivered.")
@click.option("--abandon", is_flag=True, help="Abandon instead of complete; this delivery counts.")
@click.option("--dead-letter", "reason", metavar="REASON", help="Dead-letter instead of complete.")
def receive(
    invocation: Invocation, where: Where, count: int, output: Path | None, **given: Any
) -> None:
    """
    Receive messages from ENTITY, print and complete them. Exit code 1: none came.

    A message is completed after its body was printed (in Base64 if it isn't text), or written to
    the file of --output.
    """
    place = _sub_queue(where, given.pop("dead_letters"))
    place = attrs.evolve(place, session=given.pop("session"))
    wait = given.pop("wait")
    wish = messages.ReceiveOptions(count=count, wait=wait, settlement=_settlement(**given))
    if output is not None and count > 1 and not output.is_dir():
        raise click.BadParameter("an existing folder expected with --count", param_hint="--output")
    config = invocation.read_with()
    show = partial(_show, invocation, output)
    taken = run(messages.receive, config, Runtime(), place, show, wish)
    if not taken:
        click.echo(f"no message in {printable(place.entity)}", err=True)
        sys.exit(ExitCode.FAILED)


@command
@add_where
@click.option("--count", type=Integer(1), default=10, show_default=True, help="Messages at most.")
@click.option(
    "--from", "start", type=Integer(0), default=0, help="The sequence number to start from."
)
@click.option("--dead-letters", is_flag=True, help="Peek the dead-letter sub-queue.")
def peek(invocation: Invocation, where: Where, count: int, start: int, dead_letters: bool) -> None:
    """Print messages of ENTITY without locking them."""
    place = _sub_queue(where, dead_letters)
    found = run(messages.peek, invocation.read_with(), Runtime(), place, count=count, start=start)
    for delivery in found:
        _print_delivery(invocation, delivery)


@command
@add_gateway
@click.argument("queue", shell_complete=complete_entity)
@click.option("--size", type=Integer(0), default=0, help="Size of the message in bytes, if known.")
def trigger(invocation: Invocation, queue: str, size: int, admin: AdminChoice) -> None:
    """Tell the listeners of QUEUE of a message that didn't come through the gateway."""
    config, admin = with_keys_when_used(invocation, admin)
    address = run(triggering.trigger, config, queue, admin, size=size)
    told = {"queue": queue, "gateway": address}
    invocation.print(told, Text(f"the gateway at {address} has woken the listeners of {queue}"))


def _print_delivery(invocation: Invocation, delivery: Delivery) -> None:
    invocation.print(delivery_value(delivery), *delivery_lines(delivery))


def _settlement(*, leave: bool, abandon: bool, reason: str | None) -> Settlement:
    if leave + abandon + (reason is not None) > 1:
        raise click.UsageError("one of --leave, --abandon and --dead-letter expected")
    if leave:
        return messages.GIVE_BACK
    if abandon:
        return Abandon()
    return Complete() if reason is None else DeadLetter(reason=reason)


def _show(invocation: Invocation, output: Path | None, delivery: Delivery) -> None:
    """Return when the message is printed, or durable in its file."""
    if output is None:
        _print_delivery(invocation, delivery)
        return
    file = write_body(output, delivery)
    value = {**delivery_value(delivery, with_body=False), "body_file": str(file)}
    invocation.print(value, *delivery_head(delivery), Text(printable(f"body in {file}")))


def _sub_queue(where: Where, dead_letters: bool) -> Where:
    if not dead_letters:
        return where
    return attrs.evolve(where, entity=EntityPath(where.entity).dead_letter.name)


def _message(content: bytes, runtime: Runtime, **given: Any) -> Message:
    """
    The message of these options.

    Raises:
        Failure: an option, or the body, has another form.
    """
    file, event_type = given.pop("schema"), given.pop("event_type")
    kind = kind_of(given.pop("kind"), file)
    source, ttl, schedule = given.pop("event_source"), given.pop("ttl"), given.pop("schedule")
    if (event_type is None) is not (source is None):
        raise Failure("--event-type and --event-source are given together", ExitCode.WRONG)
    if event_type is not None:
        kind = BodyType.CLOUD_EVENT
        attributes = EventAttributes(
            type=event_type,
            source=source,
            id=given["message_id"] or runtime.new_id(),
            time=runtime.now(),
            subject=given["subject"],
        )
        content = event_around(content, attributes)
    typed = typed_body(content, kind, None if file is None else read_schema(file))
    given["message_id"] = given["message_id"] or typed.event_id
    given["content_type"] = given["content_type"] or typed.content_type
    return Message(
        body=typed.body,
        properties=parse_properties(given.pop("properties")),
        time_to_live=None if ttl is None else timedelta(seconds=ttl),
        scheduled=None if schedule is None else parse_schedule(schedule, runtime.now()),
        **given,
    )
