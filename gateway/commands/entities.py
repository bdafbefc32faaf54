"""`pairgate list`, `create` and `delete`: queues, topics and subscriptions."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import attrs
import click
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from gateway.app.failure import Failure
from gateway.app.operations import entities
from gateway.app.operations.entities import Changed, EntityKind, Inventory, Listed, NamedEntity
from gateway.app.operations.ways_in import NamespaceChoice
from gateway.app.runtime import Runtime
from gateway.commands.place import add_place, complete_entity
from gateway.commands.terminal import (
    Duration,
    Integer,
    Invocation,
    add_config,
    add_json,
    add_yes,
    ask_consent,
    failing_in_words,
    printable,
    run,
)
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties

UNKNOWN: Final = "unknown"

_add_ttl = click.option(
    "--ttl",
    type=Duration(above_zero=True),
    help="Time to live of messages that have none, such as 14d.",
)
_add_lock = click.option(
    "--lock-duration", type=Duration(above_zero=True), help="Lock of a delivery, such as 30s."
)
_add_deliveries = click.option(
    "--max-delivery-count",
    type=Integer(1),
    help="Deliveries after which a message is dead-lettered.",
)
_add_sessions = click.option("--sessions", is_flag=True, help="Each message needs a session id.")
_add_expired = click.option(
    "--dead-letter-expired", is_flag=True, help="Dead-letter expired messages, not drop them."
)
_add_duplicates = click.option(
    "--detect-duplicates",
    type=Duration(),
    metavar="WINDOW",
    help="Drop a message whose id was sent within this time before, such as 10m.",
)
_add_forward = click.option("--forward-to", metavar="ENTITY", help="Forward every message there.")
_add_if_missing = click.option(
    "--if-missing", is_flag=True, help="Leave it as it is, with exit code 0, if it exists."
)


@click.command("list")
@add_config
@add_json
@failing_in_words
@add_place
@click.argument("prefix", default="", shell_complete=complete_entity)
def list_(invocation: Invocation, place: NamespaceChoice, prefix: str) -> None:
    """
    List queues, topics and subscriptions with their counts, whose names start with PREFIX.

    A count is `unknown` (null in JSON) where the namespace can't tell it.
    """
    config = invocation.read_with()
    found = run(entities.list_entities, config, Runtime(), place, prefix)
    value = attrs.asdict(found, value_serializer=_plain)
    if found.doubt is not None:
        text = (
            f"{found.target} can't list its queues ({found.doubt}); these are the configured ones"
        )
        click.echo(printable(text), err=True)
    invocation.print(value, _head(found), _table(found))


@click.group()
def create() -> None:
    """Create a queue, a topic or a subscription. Needs the right Manage."""


@click.group()
def delete() -> None:
    """Delete a queue, a topic or a subscription, with its messages. Needs the right Manage."""


def _member(group: click.Group, name: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the group, with the options that all have."""

    def register(function: Callable[..., None]) -> click.Command:
        decorated = add_config(add_json(failing_in_words(add_place(function))))
        return group.command(name)(decorated)

    return register


@_member(create, "queue")
@click.argument("name")
@_add_lock
@_add_deliveries
@_add_ttl
@_add_expired
@_add_sessions
@_add_duplicates
@_add_forward
@_add_if_missing
def create_queue(invocation: Invocation, place: NamespaceChoice, name: str, **given: Any) -> None:
    """Create the queue NAME."""
    if_missing = given.pop("if_missing")
    properties = QueueProperties(**_properties(given))
    entity = NamedEntity(kind=EntityKind.QUEUE, name=name)
    _create(invocation, entities.create_queue, place, entity, properties, if_missing=if_missing)


@_member(create, "topic")
@click.argument("name")
@_add_ttl
@_add_duplicates
@_add_if_missing
def create_topic(invocation: Invocation, place: NamespaceChoice, name: str, **given: Any) -> None:
    """Create the topic NAME, which drops messages until it has a subscription."""
    if_missing = given.pop("if_missing")
    properties = TopicProperties(**_properties(given))
    entity = NamedEntity(kind=EntityKind.TOPIC, name=name)
    _create(invocation, entities.create_topic, place, entity, properties, if_missing=if_missing)


@_member(create, "subscription")
@click.argument("topic")
@click.argument("name")
@click.option("--sql", metavar="CONDITION", help="Take only messages for which this is true.")
@_add_lock
@_add_deliveries
@_add_ttl
@_add_expired
@_add_sessions
@_add_forward
@_add_if_missing
def create_subscription(
    invocation: Invocation, place: NamespaceChoice, topic: str, name: str, **given: Any
) -> None:
    """Create the subscription NAME of TOPIC."""
    if_missing, sql = given.pop("if_missing"), given.pop("sql")
    properties = SubscriptionProperties(**_properties(given))
    make = partial(entities.create_subscription, sql=sql)
    entity = _subscription(topic, name)
    _create(invocation, make, place, entity, properties, if_missing=if_missing)


@_member(delete, "queue")
@click.argument("name", shell_complete=complete_entity)
@add_yes
def delete_queue(invocation: Invocation, place: NamespaceChoice, name: str, yes: bool) -> None:
    """Delete the queue NAME, with its messages and its dead letters."""
    _delete(invocation, place, NamedEntity(kind=EntityKind.QUEUE, name=name), yes=yes)


@_member(delete, "topic")
@click.argument("name", shell_complete=complete_entity)
@add_yes
def delete_topic(invocation: Invocation, place: NamespaceChoice, name: str, yes: bool) -> None:
    """Delete the topic NAME, with its subscriptions and their messages."""
    _delete(invocation, place, NamedEntity(kind=EntityKind.TOPIC, name=name), yes=yes)


@_member(delete, "subscription")
@click.argument("topic")
@click.argument("name", shell_complete=complete_entity)
@add_yes
def delete_subscription(
    invocation: Invocation, place: NamespaceChoice, topic: str, name: str, yes: bool
) -> None:
    """Delete the subscription NAME of TOPIC, with its messages."""
    _delete(invocation, place, _subscription(topic, name), yes=yes)


def _create(
    invocation: Invocation,
    make: Callable[..., Any],
    place: NamespaceChoice,
    entity: NamedEntity,
    properties: Any,
    *,
    if_missing: bool,
) -> None:
    made: Changed = run(make, invocation.read_with(), Runtime(), place, entity, properties)
    there = f"{made.kind.value} {made.name}"
    if not (made.done or if_missing):
        raise Failure(f"{there} exists already at {made.target}, and stays as it is")
    verb = "created at" if made.done else "exists already at"
    _print(invocation, made, "created", f"{there} {verb} {made.target}")


def _delete(
    invocation: Invocation, place: NamespaceChoice, entity: NamedEntity, *, yes: bool
) -> None:
    config = invocation.read_with()
    if not yes:
        found = run(entities.show, config, Runtime(), place, entity)
        ask_consent(loss_of(found), found.name)
    gone: Changed = run(entities.delete_entity, config, Runtime(), place, entity)
    text = f"{gone.kind.value} {gone.name} deleted at {gone.target}"
    if gone.is_configured:
        text += "; the configuration names it: `serve` or `provision` creates it again"
    _print(invocation, gone, "deleted", text)


def loss_of(found: Listed) -> str:
    """The things that are lost when the entity is deleted, as a sentence."""
    counts = {"active": found.active, "dead-lettered": found.dead_lettered}
    if found.scheduled or found.kind is EntityKind.TOPIC:
        counts["scheduled"] = found.scheduled
    if found.deferred:
        counts["deferred"] = found.deferred
    parts = [
        f"an unknown number of {name} messages" if count is None else f"{count} {name} messages"
        for name, count in counts.items()
    ]
    if found.subscriptions is not None:
        parts.insert(0, f"{found.subscriptions} subscriptions")
    text = f"{found.kind.value} {found.name} will be deleted with {', '.join(parts)}."
    if backlog.is_backlog(EntityPath(found.name)):
        text += (
            "\nIt is a backlog queue: its messages were accepted for the primary, and would never"
            " arrive there."
        )
    return text


def _print(invocation: Invocation, changed: Changed, verb: str, text: str) -> None:
    value = {
        verb: changed.done,
        "kind": changed.kind.value,
        "name": changed.name,
        "namespace": changed.namespace,
        "target": changed.target,
        "through_gateway": changed.through_gateway,
    }
    invocation.print(value, Text(printable(text)))


def _subscription(topic: str, name: str) -> NamedEntity:
    return NamedEntity(kind=EntityKind.SUBSCRIPTION, name=f"{topic}/subscriptions/{name}")


def _properties(given: dict[str, Any]) -> dict[str, Any]:
    """The properties for which options were given, by their names."""
    times = {"lock_duration": "lock_duration", "ttl": "default_time_to_live"}
    plain = {
        "max_delivery_count": "max_delivery_count",
        "dead_letter_expired": "dead_lettering_on_expiration",
        "sessions": "requires_session",
        "forward_to": "forward_to",
    }
    found: dict[str, Any] = {}
    for option, name in times.items():
        if given.get(option) is not None:
            found[name] = timedelta(seconds=given[option])
    for option, name in plain.items():
        if given.get(option):
            found[name] = given[option]
    if given.get("detect_duplicates") is not None:
        found["requires_duplicate_detection"] = True
        found["duplicate_detection_window"] = timedelta(seconds=given["detect_duplicates"])
    return found


def _plain(_: object, __: object, value: object) -> object:
    return value.value if isinstance(value, EntityKind) else value


def _head(found: Inventory) -> Text:
    number = len(found.entities)
    entity = "1 entity" if number == 1 else f"{number} entities"
    return Text(printable(f"{found.target}: {entity}"))


def _table(found: Inventory) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    for column in ("active", "dead-lettered", "scheduled", "deferred"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    for each in found.entities:
        is_queue = each.kind is EntityKind.QUEUE
        has_schedule = each.kind is not EntityKind.SUBSCRIPTION
        status = f"{each.status}, sessions" if each.requires_session else each.status
        table.add_row(
            each.kind.value,
            Text(printable(each.name)),
            _count(each.active),
            _count(each.dead_lettered),
            _count(each.scheduled) if has_schedule else "",
            _count(each.deferred) if is_queue else "",
            UNKNOWN if each.bytes is None else decimal(each.bytes),
            status,
        )
    return table


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
