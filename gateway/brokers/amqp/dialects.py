"""
The differences of brokers that speak AMQP 1.0, as data.

Measured on RabbitMQ 3.10 with its plugin: a message to a missing queue is accepted and dropped, so
each queue that is sent to is watched by a link without credit; settlements aren't confirmed;
`modified` ends the session; deliveries aren't counted; a link that was drained once answers nothing
any more; what was sent to a link that is detached stays locked until its session ends; the sections
of a body are returned in another order; a list as a body or as a property ends the connection, as
does a send to a full queue that rejects messages.

Measured on RabbitMQ 4.0: a receiver that settles second is refused, and each outcome that isn't
settled is answered all the same; two annotations say where a message was published.

Measured on ActiveMQ Artemis 2.40: a message to a missing address is accepted and dropped where
addresses are made automatically, unless the link asks for a queue; a message whose
absolute-expiry-time is past is accepted and dropped, whatever its time to live.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Body,
    Complete,
    DataBody,
    Described,
    Kind,
    Message,
    SequenceBody,
    Settlement,
    Typed,
    ValueBody,
    derive_message,
)
from gateway.wire.amqp.events import ACCEPTED, RELEASED, Modified, Outcome
from gateway.wire.amqp.servicebus.settlements import outcome_of


@attrs.frozen(kw_only=True)
class Dialect:
    """The behaviour of one broker."""

    name: str
    prefix: str = ""  # of a queue's name in an address
    # Tokens on $cbs, $management, batches, sessions, locks that expire.
    of_service_bus: bool = False
    node: tuple[str, ...] = ()  # capabilities that a link asks of its queue
    heeds_expiry: bool = False  # of absolute-expiry-time, which Service Bus ignores
    watched: bool = False  # messages to a missing queue are accepted: each queue is watched
    confirms: bool = True  # a settlement is answered
    settles_second: bool = True  # receivers ask for that answer by their mode
    has_modified: bool = True  # otherwise abandoned messages are released
    counts: bool = True  # the header has the delivery count
    drains: bool = True  # a drain is answered, also the second one of a link
    releases: bool = True  # what a link holds when it is detached; else when its session ends
    simple_properties: bool = False  # a list, map or array among the properties ends the connection
    simple_body: bool = False  # one section only, and no list
    added: frozenset[str] = frozenset()  # annotations of the broker's own
    own_user_id: bool = False  # a message may only name the user who is logged in
    # The meaning of a rejection without an error.
    unexplained: type[BrokerError] = Unavailable

    def address(self, entity: EntityPath) -> str:
        return self.prefix + quote(entity.name, safe="") if self.prefix else entity.name

    def check(self, message: Message, user: str) -> None:
        """
        Check that the broker delivers the message as it is.

        Raises:
            NotSupported: the message would be changed.
            InvalidRequest: the broker would end the link.
        """
        if message.scheduled is not None and not self.of_service_bus:
            raise NotSupported(f"scheduled: {self.name} would deliver the message at once")
        if self.simple_body and not _is_one(message.body):
            raise NotSupported(f"body: {self.name} takes one section only, and no list as a value")
        if self.simple_properties and not all(map(_is_simple, message.properties.values())):
            raise NotSupported(f"properties: {self.name} takes no list, map or array among them")
        if self.own_user_id and message.user_id not in {None, user.encode()}:
            raise InvalidRequest(f"user_id: {self.name} allows only the user of the login")

    def written(self, message: Message) -> Message:
        """
        The message to send: durable, since the broker would keep others in memory only. Where the
        broker heeds a producer's guess of the expiry, the time to live alone says it.
        """
        if self.of_service_bus:
            return message
        if self.heeds_expiry and message.time_to_live is not None:
            return derive_message(message, durable=True, absolute_expiry=None)
        return derive_message(message, durable=True)

    def read(self, message: Message) -> Message:
        """The message that was sent, from the one that arrived."""
        if self.of_service_bus:
            return message
        if self.added.isdisjoint(message.annotations):
            return derive_message(message, durable=None)
        kept = {
            name: value for name, value in message.annotations.items() if name not in self.added
        }
        return derive_message(message, durable=None, annotations=kept)

    def outcome(self, settlement: Settlement) -> Outcome:
        """
        The AMQP outcome of a settlement.

        Raises:
            NotSupported: this broker has no such outcome.
            InvalidRequest: the reason or description of a dead letter is too long.
        """
        if self.of_service_bus:
            return outcome_of(settlement)
        match settlement:
            case Complete():
                return ACCEPTED
            case Abandon(delivered=delivered, properties=properties) if not properties:
                return (
                    Modified(delivery_failed=True) if delivered and self.has_modified else RELEASED
                )
        what = type(settlement).__name__.lower()
        raise NotSupported(f"{what}: over AMQP, {self.name} can't do that without losing something")


def _is_simple(value: Any) -> bool:
    """True if the value is allowed in application properties (AMQP 1.0 part 3, 3.2.5)."""
    if isinstance(value, Typed):
        return value.kind is not Kind.ARRAY
    return not isinstance(value, list | dict | Described)


def _is_one(body: Body) -> bool:
    match body:
        case DataBody():
            return False
        case SequenceBody(sequences=sequences):
            return len(sequences) == 1
        case ValueBody(value=value):
            return not isinstance(value, list)
    return True


SERVICE_BUS: Final = Dialect(name="Service Bus", of_service_bus=True)
# The capability is that of the JMS mapping: a queue, each message of which one consumer gets. A
# broker that doesn't know it ignores it (AMQP 1.0, part 3, 3.5.4).
GENERIC: Final = Dialect(name="this broker", node=("queue",), heeds_expiry=True)
RABBITMQ_3: Final = Dialect(
    name="RabbitMQ 3",
    prefix="/amq/queue/",
    watched=True,
    confirms=False,
    has_modified=False,
    counts=False,
    drains=False,
    releases=False,
    simple_properties=True,
    simple_body=True,
    own_user_id=True,
    unexplained=QuotaExceeded,
)
RABBITMQ_4: Final = Dialect(
    name="RabbitMQ 4",
    prefix="/queues/",
    settles_second=False,
    added=frozenset({"x-exchange", "x-routing-key"}),
    unexplained=QuotaExceeded,
)

_BY_NAME: Final = {"generic": GENERIC, "rabbitmq-3": RABBITMQ_3, "rabbitmq-4": RABBITMQ_4}


def dialect_of(wanted: str, properties: Mapping[str, Any]) -> Dialect:
    """The configured dialect, or with `auto` the one that the peer's open frame indicates."""
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    if properties.get("product") != "RabbitMQ":
        return GENERIC
    first = str(properties.get("version", "")).partition(".")[0]
    return RABBITMQ_3 if first in {"", "3"} else RABBITMQ_4
