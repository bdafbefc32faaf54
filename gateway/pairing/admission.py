"""What is checked of a send when it arrives: an outage refuses nothing that health takes."""

from collections.abc import Callable, Sequence

import attrs

from gateway.domain import envelope
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    SessionRequired,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.pairing.knowledge import Knowledge, KnownEntity
from gateway.pairing.options import UnknownEntity

Measure = Callable[[Message], int]
"""The size of a message in bytes, encoded. `wire.amqp` has it."""


@attrs.define(eq=False, kw_only=True)
class Admission:
    """
    Checks messages against what is known of their entity and of the backlog.

    `backlog_limit` is the smallest maximum message size of the backlog queues, None where the
    secondary can't tell, or hasn't yet.
    """

    knowledge: Knowledge
    measure: Measure
    backlog_limit: int | None = None

    def admit(self, entity: EntityPath, messages: Sequence[Message]) -> int:
        """
        The bytes of these messages, together.

        Raises:
            InvalidRequest: nobody sends there, a message carries a property of the envelope, or
                can't be encoded.
            MessageTooLarge: it could not be diverted, or the primary would refuse it.
        """
        if entity.is_dead_letter or entity.is_subscription:
            raise InvalidRequest(f"{entity}: nobody sends to a sub-queue or a subscription")
        known = self.knowledge.of(entity)
        total = 0
        for message in messages:
            envelope.refuse_reserved(message)
            size = self._size_of(message)
            self._refuse_too_large(entity, message, size, known)
            total += size
        return total

    def _size_of(self, message: Message) -> int:
        try:
            return self.measure(message)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error

    def admit_to_backlog(
        self, entity: EntityPath, messages: Sequence[Message], policy: UnknownEntity
    ) -> None:
        """
        What the primary would say of these messages if it could be asked.

        Raises:
            SessionRequired: the entity needs a session and a message has none.
            Unavailable: nobody knows that there is such an entity, and the policy is to refuse.
        """
        known = self.knowledge.of(entity)
        if known is None and policy is UnknownEntity.REFUSE:
            raise Unavailable(f"{entity} was never seen before, and the primary can't be asked")
        if known is not None and known.requires_session:
            for message in messages:
                if message.session_id is None:
                    raise SessionRequired(f"{entity} requires sessions: SessionId is missing")

    def _refuse_too_large(
        self, entity: EntityPath, message: Message, size: int, known: KnownEntity | None
    ) -> None:
        limits = []
        if known is not None and known.max_message_size is not None:
            limits.append(known.max_message_size)
        if self.backlog_limit is not None:
            limits.append(self.backlog_limit - envelope.reserve(entity, message))
        if limits and size > min(limits):
            raise MessageTooLarge(f"message of {size} bytes; the pair takes {min(limits)}")
