"""
A namespace in memory: the same rules as the embedded one, and nothing stays.

Supports queues with their dead-letter sub-queues, both receive modes, scheduled messages, peek.
"""

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import attrs
import trio

from gateway.brokers.local import LocalBroker, LocalOptions, Step
from gateway.brokers.moments import Moments
from gateway.brokers.tokens import lock_tokens
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.domain.namespace import Namespace, StoredQueue
from gateway.domain.stored import Row, State, Total
from gateway.ports import WallClock
from gateway.wire.amqp.message import encoded_size

_EVER: Final = 2**63

T = TypeVar("T")


@attrs.define(eq=False)
class _Index:
    """Sequence numbers by a key, in order."""

    _entries: list[tuple[int, int]] = attrs.field(factory=list)

    def add(self, key: int, sequence: int) -> None:
        bisect.insort(self._entries, (key, sequence))

    def discard(self, key: int, sequence: int) -> None:
        del self._entries[bisect.bisect_left(self._entries, (key, sequence))]

    def between(self, after: int, upto: int, limit: int) -> list[int]:
        """Those with a key above `after` and not above `upto`."""
        start = bisect.bisect_right(self._entries, (after, math.inf))
        end = bisect.bisect_right(self._entries, (upto, math.inf))
        return [sequence for _, sequence in self._entries[start : min(end, start + limit)]]

    def first(self, after: int) -> int | None:
        start = bisect.bisect_right(self._entries, (after, math.inf))
        return self._entries[start][0] if start < len(self._entries) else None


@attrs.define(eq=False)
class MemoryRows:
    """`Rows` in a dict and sorted lists."""

    _rows: dict[int, Row] = attrs.field(factory=dict)
    _order: dict[State, _Index] = attrs.field(factory=lambda: {state: _Index() for state in State})
    _due: _Index = attrs.field(factory=_Index)
    _expiry: _Index = attrs.field(factory=_Index)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows[row.sequence] = row
            for index, key in self._places(row):
                index.add(key, row.sequence)

    def get(self, sequence: int) -> Row | None:
        return self._rows.get(sequence)

    def after(self, state: State, sequence: int, limit: int) -> Sequence[Row]:
        return self._found(self._order[state].between(sequence, _EVER, limit))

    def due(self, wall: int, limit: int) -> Sequence[Row]:
        return self._found(self._due.between(-1, wall, limit))

    def expired(self, since: int, wall: int, limit: int) -> Sequence[Row]:
        return self._found(self._expiry.between(since, wall, limit))

    def next_due(self) -> int | None:
        return self._due.first(-1)

    def next_expiry(self, since: int) -> int | None:
        return self._expiry.first(since)

    def count_delivery(self, row: Row, deliveries: int, *, durable: bool) -> None:
        stored = self._rows[row.sequence]
        self._rows[row.sequence] = attrs.evolve(stored, deliveries=deliveries)

    def replace(self, old: Row, new: Row) -> None:
        content = self._rows[old.sequence].content
        self.remove(old.sequence)
        self.add([attrs.evolve(new, content=content)])

    def remove(self, sequence: int) -> None:
        row = self._rows.pop(sequence)
        for index, key in self._places(row):
            index.discard(key, sequence)

    def quarantine(self, sequence: int) -> None:
        self.remove(sequence)

    def totals(self) -> Mapping[State, Total]:
        rows = {state: self.after(state, -1, len(self._rows)) for state in State}
        return {
            state: Total(len(some), sum(row.size for row in some)) for state, some in rows.items()
        }

    def _places(self, row: Row) -> Iterator[tuple[_Index, int]]:
        yield self._order[row.state], row.sequence
        if row.due is not None:
            yield self._due, row.due
        elif row.expires is not None:
            yield self._expiry, row.expires

    def _found(self, sequences: Iterable[int]) -> list[Row]:
        return [self._rows[sequence] for sequence in sequences]


@attrs.define(eq=False)
class MemoryShelf:
    """`Shelf` for a namespace that begins empty and ends with the process."""

    _sequences: "count[int]" = attrs.field(factory=lambda: count(1))

    def load(self) -> Iterable[StoredQueue]:
        return ()

    def add_queue(self, path: EntityPath, properties: QueueProperties, created: int) -> MemoryRows:
        return MemoryRows()

    def remove_queue(self, path: EntityPath) -> None:
        """The rows go with the queue that holds them."""

    def check_room(self) -> None:
        """Each queue's quota is the only limit."""

    def next_sequence(self) -> int:
        return next(self._sequences)


class MemoryBroker(LocalBroker):
    """Implements `ports.Broker` and `ports.Peeks`. All of it happens at once, on any clock."""

    def __init__(
        self, clock: WallClock, rng: random.Random, options: LocalOptions | None = None
    ) -> None:
        options = options or LocalOptions()
        super().__init__(Moments(clock))
        self._namespace = Namespace(
            max_message_size=options.max_message_size,
            max_queues=options.max_queues,
            create_missing=options.create_missing,
            shelf=MemoryShelf(),
            new_token=lock_tokens(rng),
        )

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _run(self, step: Step[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._post(step)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        step.run(self._namespace)
        self._report(step)

    def _pack(self, message: Message) -> tuple[Message, int]:
        return message, encoded_size(message)

    def unpack(self, content: Any) -> Message:
        message: Message = content
        return message
