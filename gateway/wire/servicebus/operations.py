"""Operations of Service Bus REST, and their answers, as values."""

import enum
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode, Settlement
from gateway.wire.pairgate import frames
from gateway.wire.servicebus import batch

MAX_LIMIT: Final = frames.MAX_MESSAGES  # of deliveries in one answer


class Form(enum.Enum):
    """The encoding of messages in the body of a send."""

    SINGLE = "single"  # a single message: properties in the headers, the body unchanged
    JSON = batch.CONTENT_TYPE
    AMQP = frames.CONTENT_TYPE


@attrs.frozen(kw_only=True)
class SendMessages:
    entity: EntityPath
    messages: tuple[Message, ...]
    form: Form = Form.SINGLE


@attrs.frozen(kw_only=True)
class ReceiveMessages:
    """
    Wait up to `timeout` seconds for a message, rounded up to whole seconds without a `limit`. A
    `limit` asks a Pairgate for up to `limit` messages.
    """

    entity: EntityPath
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    timeout: float = 60.0
    limit: int | None = None

    @property
    def most(self) -> int:
        """The maximum number of deliveries in the answer."""
        return 1 if self.limit is None else self.limit


@attrs.frozen(kw_only=True)
class SettleMessage:
    entity: EntityPath
    message: str  # sequence number or message id, as the client wrote it
    lock_token: str
    settlement: Settlement


@attrs.frozen(kw_only=True)
class RenewLock:
    entity: EntityPath
    message: str
    lock_token: str


@attrs.frozen(kw_only=True)
class PeekMessages:
    entity: EntityPath
    from_sequence: int = 0
    limit: int = 1


@attrs.frozen(kw_only=True)
class ProbeEntity:
    entity: EntityPath


# All but the operation that waits for messages.
BriefOperation = SendMessages | SettleMessage | RenewLock | PeekMessages | ProbeEntity
Operation = BriefOperation | ReceiveMessages


@attrs.frozen(kw_only=True)
class SendAccepted:
    """The messages are accepted; `accepted_by` says which part of the pair has them."""

    accepted_by: AcceptedBy = AcceptedBy.PRIMARY


@attrs.frozen(kw_only=True)
class Delivered:
    deliveries: tuple[Delivery, ...] = ()


@attrs.frozen(kw_only=True)
class Renewed:
    locked_until: datetime | None = None  # None: the namespace doesn't say


@attrs.frozen
class Done:
    """The delivery is settled; or the entity could be sent to."""


Answer = SendAccepted | Delivered | Renewed | Done
