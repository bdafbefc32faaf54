"""
What brokers that speak AMQP 1.0 do differently, as data.

Measured on RabbitMQ 3.10 with its plugin: a message without a queue is accepted and dropped, so
that a link without credit keeps watch on each queue that is sent to; settlements aren't confirmed;
`modified` ends the session; deliveries aren't counted; several sections of a body come back in
another order; a list as a body or as a property ends the connection, and so does a send to a queue
that is full and rejects what is published. RabbitMQ 4 was never tried here: its data are from its
documentation.
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
)
from gateway.wire.amqp.events import ACCEPTED, RELEASED, Modified, Outcome
from gateway.wire.amqp.settlements import outcome_of


@attrs.frozen(kw_only=True)
class Dialect:
    """One broker's ways."""

    name: str
    prefix: str = ""  # of a queue's name in an address
    of_service_bus: bool = False  # tokens on $cbs, $management, batches, sessions, locks that end
    watched: bool = False  # what has no queue is accepted: each queue is watched
    confirms: bool = True  # a settlement is answered (receivers settle second)
    has_modified: bool = True  # else what is abandoned is released
    counts: bool = True  # the header tells the delivery count
    simple_properties: bool = False  # a list, map or array among them ends the connection
    simple_body: bool = False  # of one section, and no list
    own_user_id: bool = False  # a message may only name the user who is logged in
    # What a rejection without an error means.
    unexplained: type[BrokerError] = Unavailable

    def address(self, entity: EntityPath) -> str:
        return self.prefix + quote(entity.name, safe="") if self.prefix else entity.name

    def check(self, message: Message, user: str) -> None:
        """
        Raises:
            NotSupported: the message would not come out as it went in.
            InvalidRequest: the broker would end the link for it.
        """
        if message.scheduled is not None and not self.of_service_bus:
            raise NotSupported(f"scheduled: {self.name} would deliver the message at once")
        if self.simple_body and not _is_one(message.body):
            raise NotSupported(f"body: {self.name} takes one section only, and no list as a value")
        if self.simple_properties and not all(map(_is_simple, message.properties.values())):
            raise NotSupported(f"properties: {self.name} takes no list, map or array among them")
        if self.own_user_id and message.user_id not in {None, user.encode()}:
            raise InvalidRequest(f"user_id: {self.name} takes none but that of the login")

    def written(self, message: Message) -> Message:
        """What is sent: durable, where the broker would keep others in memory only."""
        return message if self.of_service_bus else attrs.evolve(message, durable=True)

    def read(self, message: Message) -> Message:
        """The message that was sent, from what has arrived."""
        return message if self.of_service_bus else attrs.evolve(message, durable=None)

    def outcome(self, settlement: Settlement) -> Outcome:
        """
        Raises:
            NotSupported: this broker has no outcome that means it.
            InvalidRequest: reason or description of a dead letter is too long.
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
    """What may stand there at all (part 3, 3.2.5)."""
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
GENERIC: Final = Dialect(name="this broker")
RABBITMQ_3: Final = Dialect(
    name="RabbitMQ 3",
    prefix="/amq/queue/",
    watched=True,
    confirms=False,
    has_modified=False,
    counts=False,
    simple_properties=True,
    simple_body=True,
    own_user_id=True,
    unexplained=QuotaExceeded,
)
RABBITMQ_4: Final = Dialect(name="RabbitMQ 4", prefix="/queues/", unexplained=QuotaExceeded)

_BY_NAME: Final = {"generic": GENERIC, "rabbitmq-3": RABBITMQ_3, "rabbitmq-4": RABBITMQ_4}


def dialect_of(wanted: str, properties: Mapping[str, Any]) -> Dialect:
    """The one that is configured, or else (`auto`) what the peer's open frame says."""
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    if properties.get("product") != "RabbitMQ":
        return GENERIC
    first = str(properties.get("version", "")).partition(".")[0]
    return RABBITMQ_3 if first in {"", "3"} else RABBITMQ_4
