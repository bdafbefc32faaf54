"""Checks each send on arrival, so that an outage doesn't change whether it is accepted."""

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
from gateway.pairing.entity_cache import EntityCache, KnownEntity
from gateway.pairing.options import UnknownEntity

Measure = Callable[[Message], int]
"""The size of a message in bytes, encoded. `wire.amqp` has it."""


@attrs.define(eq=False, kw_only=True)
class Admission:
    """
    Checks messages against the limits of their entity and of the backlog.

    `backlog_limit` is the smallest maximum message size of the backlog queues. None: the secondary
    hasn't reported it, or can't.
    """

    entity_cache: EntityCache
    measure: Measure
    backlog_limit: int | None = None

    def admit(self, entity: EntityPath, messages: Sequence[Message]) -> int:
        """
        Check the messages; return their total size in bytes.

        Raises:
            InvalidRequest: the entity is no queue or topic, or a message carries a property of the
                envelope or can't be encoded.
            MessageTooLarge: a message is too large for the backlog or for its entity.
        """
        if entity.is_dead_letter or entity.is_subscription:
            raise InvalidRequest(f"{entity}: a sub-queue or a subscription can't be sent to")
        known = self.entity_cache.of(entity)
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
        Check the messages as the primary would, before they are diverted.

        Raises:
            SessionRequired: the entity requires sessions and a message has no session id.
            Unavailable: the entity isn't in the entity cache, and `policy` is to refuse.
        """
        known = self.entity_cache.of(entity)
        if known is None and policy is UnknownEntity.REFUSE:
            raise Unavailable(
                f"{entity} is not known to exist, and the primary can't be asked now"
                " (unknown_entity is refuse)"
            )
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
            raise MessageTooLarge(f"message of {size} bytes; the pair accepts {min(limits)}")
