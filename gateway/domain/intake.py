"""How messages come into a queue: sent by somebody, or forwarded by another queue."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from gateway.domain.contents import NO_SESSION, Contents, Onward, Target
from gateway.domain.duplicates import Duplicates
from gateway.domain.entity import EntityStatus
from gateway.domain.errors import EntityDisabled, MessageTooLarge, QuotaExceeded
from gateway.domain.queue_checks import accept, check_message
from gateway.domain.stored import Incoming, Now, Row, State, later

_TAKES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.SEND_DISABLED})


@attrs.define(eq=False)
class Intake:
    """Of one queue. `id_of` tells the message id of stored content."""

    _contents: Contents
    _id_of: Callable[[Any], str | None]
    _duplicates: Duplicates = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._duplicates = Duplicates(self._contents.storage.seen)

    def check_sendable(self) -> None:
        """
        Raises:
            EntityDisabled: it takes nothing.
        """
        entity = self._contents.entity
        if entity.properties.status in _TAKES_NOTHING:
            raise EntityDisabled(f"{entity.path} is {entity.properties.status.value}")

    def check_size(self, size: int) -> None:
        """
        Raises:
            MessageTooLarge: a message of so many bytes is.
        """
        entity = self._contents.entity
        if size > entity.max_message_size:
            raise MessageTooLarge(
                f"{entity.path}: a message of {size} bytes,"
                f" at most {entity.max_message_size} expected"
            )

    def check_quota(self, added: int) -> None:
        """
        Raises:
            QuotaExceeded: so many bytes don't fit.
        """
        entity, held = self._contents.entity, self._contents.account.bytes
        quota = entity.properties.max_size_in_megabytes * 2**20
        if added and held + added > quota:
            raise QuotaExceeded(f"{entity.path} holds {held} of {quota} bytes")

    def send(self, messages: Sequence[Incoming], now: Now) -> list[int]:
        """As `Queue.send`, after the sweep."""
        properties = self._contents.entity.properties
        for message in messages:
            self.check_size(message.size)
            check_message(message, properties)
        numbered = [(self._contents.next_sequence(), message) for message in messages]
        kept = self._duplicates.sift(numbered, properties, now)
        self.check_quota(sum(message.size for _, message in kept))
        rows = [accept(message, number, properties, now) for number, message in kept]
        if self._contents.onward is None:
            self._contents.add(rows)
        else:
            self._pass_on(rows, self._contents.onward, now)
        self._duplicates.remember([message for _, message in kept], properties, now)
        return [number for number, _ in numbered]

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """As `Target.arrive`."""
        properties = self._contents.entity.properties
        if not self._is_new(row, now):
            return
        life = properties.default_time_to_live
        ends = (row.expires, None if life is None else later(now.wall, life))
        new = attrs.evolve(
            row,
            sequence=self._contents.next_sequence(),
            state=State.ACTIVE,
            enqueued=now.wall,
            expires=min((end for end in ends if end is not None), default=None),
            deliveries=0,
            original=row.first,
        )
        if properties.requires_session and row.session is None:
            self._contents.bury_new(new, NO_SESSION, hops + 1, now)
        elif self._contents.onward is not None:
            self._contents.pass_on(new, self._contents.onward, hops + 1, now)
        else:
            self._contents.add([new])

    def _pass_on(self, rows: Sequence[Row], onward: Onward, now: Now) -> None:
        ready = [row for row in rows if row.state is State.ACTIVE]
        ways: list[tuple[Row, Sequence[Target]]] = []
        if onward.to_sender:
            ways = [(row, onward.targets(row, 1, now)) for row in ready]
            self.check_quota(sum(row.size * len(targets) for row, targets in ways))
            ready = []
        self._contents.add([row for row in rows if row.state is not State.ACTIVE])
        for row, targets in ways:
            for target in targets:
                target.arrive(row, 1, now)
        for row in ready:
            self._contents.pass_on(row, onward, 1, now)

    def _is_new(self, row: Row, now: Now) -> bool:
        properties = self._contents.entity.properties
        if not properties.requires_duplicate_detection:
            return True
        message = Incoming(content=None, size=0, message_id=self._id_of(row.content))
        kept = self._duplicates.sift([(0, message)], properties, now)
        self._duplicates.remember([each for _, each in kept], properties, now)
        return len(kept) > 0
