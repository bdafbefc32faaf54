"""
What brokers that speak AMQP 1.0 do differently, as data.

Measured on RabbitMQ 3.10 with its plugin: a message without a queue is accepted and dropped, so
that a link without credit keeps watch on each queue that is sent to; `modified` ends the session;
deliveries aren't counted; several data sections come back in another order; a missing `to` is
filled in. RabbitMQ 4 was never tried here: its data are from its documentation.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Abandon, Complete, DataBody, Message, Settlement
from gateway.wire.amqp.events import ACCEPTED, RELEASED, Modified, Outcome
from gateway.wire.amqp.settlements import outcome_of


@attrs.frozen(kw_only=True)
class Dialect:
    """One broker's ways."""

    name: str
    prefix: str = ""  # of a queue's name in an address
    of_service_bus: bool = False  # tokens on $cbs, $management, batches, sessions, locks that end
    watched: bool = False  # what has no queue is accepted: each queue is watched
    has_modified: bool = True  # else what is abandoned is released
    counts: bool = True  # the header tells the delivery count
    fills_to: bool = False  # the address is written where the producer has said nothing
    keeps_parts: bool = True  # a body of several data sections comes back as it was
    own_user_id: bool = False  # a message may only name the user who is logged in
    # What a rejection without an error means.
    unexplained: type[BrokerError] = Unavailable

    def address(self, entity: EntityPath) -> str:
        return self.prefix + entity.name

    def check(self, message: Message, user: str) -> None:
        """
        Raises:
            NotSupported: the message would not come out as it went in.
            InvalidRequest: the broker would end the link for it.
        """
        if not self.keeps_parts and isinstance(message.body, DataBody):
            raise NotSupported(f"body: {self.name} changes the order of several data sections")
        if self.own_user_id and message.user_id not in {None, user.encode()}:
            raise InvalidRequest(f"user_id: {self.name} takes none but that of the login")

    def written(self, message: Message) -> Message:
        """What is sent: durable, where the broker would keep others in memory only."""
        return message if self.of_service_bus else attrs.evolve(message, durable=True)

    def read(self, message: Message, address: str) -> Message:
        """The message that was sent, from what has arrived."""
        if self.of_service_bus:
            return message
        to = None if self.fills_to and message.to == address else message.to
        return attrs.evolve(message, durable=None, to=to)

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


SERVICE_BUS: Final = Dialect(name="Service Bus", of_service_bus=True)
GENERIC: Final = Dialect(name="this broker")
RABBITMQ_3: Final = Dialect(
    name="RabbitMQ 3",
    prefix="/amq/queue/",
    watched=True,
    has_modified=False,
    counts=False,
    fills_to=True,
    keeps_parts=False,
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
