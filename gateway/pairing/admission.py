"""
Checks each send on arrival, so that an outage doesn't change whether it is accepted. One exception
is an option: a message that only the primary can take (`Oversized.PRIMARY_ONLY`).
"""

import math
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
    hasn't reported it, or can't. With `primary_only` the primary decides which message is too
    large, and the limits count before a diversion only.
    """

    entity_cache: EntityCache
    measure: Measure
    backlog_limit: int | None = None
    primary_only: bool = False
    oversized: int = attrs.field(default=0, init=False)  # messages that only the primary could take

    def admit(self, entity: EntityPath, messages: Sequence[Message]) -> int:
        """
        Check the messages; return their total size in bytes.

        Raises:
            InvalidRequest: the entity is no queue or topic, or a message carries a property of the
                envelope or can't be encoded.
            MessageTooLarge: a message is too large for the backlog or for its entity; not with
                `primary_only`.
        """
        if entity.is_dead_letter or entity.is_subscription:
            raise InvalidRequest(f"{entity}: a sub-queue or a subscription can't be sent to")
        known = self.entity_cache.of(entity)
        total = 0
        for message in messages:
            envelope.refuse_reserved(message)
            size = self._size_of(message)
            if self.primary_only:
                self.oversized += size > self._backlog_room(entity, message)
            else:
                self._refuse_too_large(entity, message, size, known)
            total += size
        return total

    def _size_of(self, message: Message) -> int:
        try:
            return self.measure(message)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error

    def is_for_primary_alone(self, entity: EntityPath, messages: Sequence[Message]) -> bool:
        """True if a message is accepted, but can't be diverted for its size."""
        return self.primary_only and any(
            self._size_of(message) > self._backlog_room(entity, message) for message in messages
        )

    def admit_to_backlog(
        self, entity: EntityPath, messages: Sequence[Message], policy: UnknownEntity
    ) -> None:
        """
        Check the messages as the primary would, before they are diverted.

        Raises:
            MessageTooLarge: a message is too large for the backlog or for its entity.
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
        if self.primary_only:
            for message in messages:
                self._refuse_too_large(entity, message, self._size_of(message), known)

    def _refuse_too_large(
        self, entity: EntityPath, message: Message, size: int, known: KnownEntity | None
    ) -> None:
        limit = self._backlog_room(entity, message)
        if known is not None and known.max_message_size is not None:
            limit = min(limit, known.max_message_size)
        if size > limit:
            when = " in an outage" if self.primary_only else ""
            raise MessageTooLarge(f"message of {size} bytes; the pair accepts {limit:.0f}{when}")

    def _backlog_room(self, entity: EntityPath, message: Message) -> float:
        """The size of the largest message of that kind that fits into the backlog, in bytes."""
        if self.backlog_limit is None:
            return math.inf
        return self.backlog_limit - envelope.reserve(entity, message)
