"""Adds messages to a queue, but for duplicates: sent by a client, or forwarded by another queue."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import MICROSECOND, Now, later
from gateway.domain.entity import EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    QuotaExceeded,
)
from gateway.domain.message import DeadLetter
from gateway.store.engine.queue_checks import accept, check_message
from gateway.store.engine.queue_content import NO_SESSION, Copy, Onward, QueueContent, check_changed
from gateway.store.engine.records import (
    Incoming,
    MessageNumbers,
    ReservedPlaces,
    Row,
    SeenIds,
    State,
)

Numbered = tuple[int, Incoming]
_NO_PLACE: Final = MessageNumbers(0, 0)  # of a message that gets its place in a sub-queue


@attrs.define(eq=False)
class Duplicates:
    """The duplicate detection of one queue that requires it."""

    _seen: SeenIds

    def sift(self, numbered: Sequence[Numbered], now: Now) -> Sequence[Numbered]:
        """Return the messages that duplicate neither an earlier one nor each other."""
        kept: list[Numbered] = []
        ids: set[str] = set()
        for number, message in numbered:
            if message.message_id is not None:
                until = self._seen.until(message.message_id)
                if message.message_id in ids or (until is not None and until > now.own):
                    continue
                ids.add(message.message_id)
            kept.append((number, message))
        return kept

    def remember(self, messages: Sequence[Incoming], properties: QueueProperties, now: Now) -> None:
        until = now.own + properties.duplicate_detection_window // MICROSECOND
        for message in messages:
            if message.message_id is not None:
                self._seen.put(message.message_id, until)
        if now.trusted:
            # Forget twice as many as were added, so that outdated ids don't accumulate.
            self._seen.forget(now.own, 2 * len(messages) + 1)


_TAKES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.SEND_DISABLED})


@attrs.define(eq=False)
class EnqueueRules:
    """The rules by which a queue adds messages."""

    _content: QueueContent

    def check_sendable(self) -> None:
        """
        Check that the entity's status allows sending.

        Raises:
            EntityDisabled: the entity is disabled, or disabled for sending.
        """
        entity = self._content.entity
        if entity.properties.status in _TAKES_NOTHING:
            raise EntityDisabled(f"{entity.path} is {entity.properties.status.value}")

    def check_size(self, size: int) -> None:
        """
        Check a message's size in bytes.

        Raises:
            MessageTooLarge: the message is larger than the entity allows.
        """
        entity = self._content.entity
        if size > entity.max_message_size:
            raise MessageTooLarge(
                f"{entity.path}: a message of {size} bytes,"
                f" at most {entity.max_message_size} expected"
            )

    def check_quota(self, added: int, now: Now) -> None:
        """
        Check that `added` more bytes fit, after the sweep of the entity. A full topic expires
        messages of its subscriptions first: without receivers nobody else does.

        Raises:
            QuotaExceeded: the entity would hold more than `max_size_in_megabytes`.
        """
        content = self._content
        entity, index = content.entity, content.index
        quota = content.quota
        if not added or index.used + added <= quota:
            return
        if content.onward is not None:
            content.onward.free_room(now)
        if index.used + added > quota:
            raise QuotaExceeded(f"{entity.path} holds {index.used} of {quota} bytes")

    def send(
        self, messages: Sequence[Incoming], now: Now, reserved: ReservedPlaces | None = None
    ) -> Sequence[MessageNumbers]:
        """As `Queue.send`, after its sweep."""
        content = self._content
        properties = content.entity.properties
        for message in messages:
            self.check_size(message.size)
            check_message(message, properties)
        kept: Sequence[Numbered] = [*enumerate(messages)]
        if properties.requires_duplicate_detection:
            kept = self._duplicates.sift(kept, now)
        self.check_quota(sum([message.size for _, message in kept]), now)
        mark = 0 if content.onward is None else content.journal.mark()
        places = self._places(len(messages), reserved)
        rows = [accept(message, places[each], properties, now) for each, message in kept]
        if reserved is not None:  # what is due already takes the next number, as always
            rows = [
                row
                if row.state is State.SCHEDULED
                else content.placed(attrs.evolve(row, original=row.number))
                for row in rows
            ]
        if content.onward is None:
            content.add(rows)
        else:
            try:
                self._forward_new(rows, content.onward, now)
            except BrokerError:
                content.journal.rewind(mark)  # what is refused takes no number
                raise
        if properties.requires_duplicate_detection:
            self._duplicates.remember([message for _, message in kept], properties, now)
        return places

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """As `Target.arrive`."""
        properties = self._content.entity.properties
        if not self._is_new(row, now):
            return
        life = properties.default_time_to_live
        ends = (row.expires, None if life is None else later(now.own_latest, life))
        refused = properties.requires_session and row.session is None
        place = row if refused else self._content.next_place()
        new = attrs.evolve(
            row,
            sequence=place.sequence,
            number=place.number,
            state=State.ACTIVE,
            enqueued=now.own,
            expires=min((end for end in ends if end is not None), default=None),
            deliveries=0,
            original=row.first,
        )
        if refused:
            self._content.dead_letter_new(new, NO_SESSION, hops + 1, now)
        elif self._content.onward is not None:
            self._content.forward(new, self._content.onward, hops + 1, now)
        else:
            self._content.add([new])

    def arrive_dead(self, row: Row, why: DeadLetter, hops: int, now: Now) -> None:
        """Take a message that was forwarded `hops` times as a dead letter; never refuses."""
        new = attrs.evolve(row, enqueued=now.own, deliveries=0, original=row.first)
        self._content.dead_letter_new(new, why, hops + 1, now)

    def add_dead_letter(self, message: Incoming, why: DeadLetter, now: Now) -> None:
        """
        Add a message that was dead-lettered elsewhere to the dead letters of this entity, which
        keeps it even if it forwards its own.
        """
        content = self._content
        self.check_size(message.size)
        self.check_quota(message.size, now)
        row = accept(message, _NO_PLACE, content.entity.properties, now)
        dead = attrs.evolve(
            row,
            state=State.DEAD,
            due=None,
            expires=None,
            reason=why.reason or None,
            description=why.description or None,
        )
        content.add([content.placed(dead)])

    def _forward_new(self, rows: Sequence[Row], onward: Onward, now: Now) -> None:
        ready = [row for row in rows if row.state is State.ACTIVE]
        copies: list[Copy] = []
        if onward.to_sender:
            changed = 0
            for row in ready:
                found = onward.copies(row, 1, now)
                copies += found
                changed += sum([copy.size for _, copy in found if copy is not row])
                check_changed(changed)
            self.check_quota(sum([copy.size for _, copy in copies]), now)
            ready = []
        self._content.add([row for row in rows if row.state is not State.ACTIVE])
        for target, copy in copies:
            target.arrive(copy, 1, now)
        for row in ready:
            self._content.forward(row, onward, 1, now)

    def _places(self, count: int, reserved: ReservedPlaces | None) -> Sequence[MessageNumbers]:
        if reserved is None:
            return self._content.next_places(count)
        entity = self._content.entity
        if reserved.created != entity.created:
            raise EntityNotFound(f"{entity.path} was deleted since the messages were scheduled")
        return reserved.places

    @property
    def _duplicates(self) -> Duplicates:
        return Duplicates(self._content.storage.seen)

    def _is_new(self, row: Row, now: Now) -> bool:
        properties = self._content.entity.properties
        if not properties.requires_duplicate_detection:
            return True
        message = Incoming(
            content=None, size=0, message_id=self._content.packing.id_of(row.content)
        )
        kept = self._duplicates.sift([(0, message)], now)
        self._duplicates.remember([each for _, each in kept], properties, now)
        return len(kept) > 0
