"""The deliveries that a receiver has returned and that nobody has settled yet."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define(eq=False)
class HeldDeliveries(Generic[T]):
    """
    By lock token, in the order in which their locks were acquired or renewed. All locks of a
    receiver last equally long, so that is also the order in which they end.

    A delivery is all that its receiver needs to settle it. Beyond `most`, the oldest is dropped:
    its lock ended first.
    """

    most: float = math.inf
    weight: int = attrs.field(default=0, init=False)  # of all together: bytes in memory
    # Each with its weight and the end of its lock. Not a `dict`: see `Bounded`. Not objects: each
    # message comes here, and a tuple is made in a tenth of the time.
    _entries: OrderedDict[str, tuple[T, int, float]] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        """The deliveries, the oldest first; the table may change meanwhile."""
        return iter([delivery for delivery, _, _ in self._entries.values()])

    def __contains__(self, token: str) -> bool:
        return token in self._entries

    def add(self, token: str, delivery: T, *, weight: int = 0, ends: float = math.inf) -> None:
        """Add a delivery with the weight of its message and the end of its lock."""
        entries = self._entries
        if token in entries:
            self.pop(token)
        entries[token] = delivery, weight, ends
        self.weight += weight
        if len(entries) > self.most:
            self.pop(next(iter(entries)))

    def get(self, token: str | None) -> T | None:
        entry = self._entries.get(token or "")
        return None if entry is None else entry[0]

    def pop(self, token: str | None) -> T | None:
        """Remove and return the delivery: its caller settles it, or has."""
        entry = self._entries.pop(token or "", None)
        if entry is None:
            return None
        self.weight -= entry[1]
        return entry[0]

    def weigh(self, token: str, weight: int) -> None:
        """Record another weight: the message was changed, or dropped."""
        entry = self._entries.get(token)
        if entry is not None:
            delivery, former, ends = entry
            self.weight += weight - former
            self._entries[token] = delivery, weight, ends

    def renew(self, token: str | None, ends: float) -> None:
        """Record another end of the lock, which makes it the last to end."""
        entry = self._entries.pop(token or "", None)
        if entry is not None:
            self._entries[token or ""] = entry[0], entry[1], ends

    @property
    def next_end(self) -> float:
        """The end of the first lock; infinity: there is none."""
        first = next(iter(self._entries.values()), None)
        return math.inf if first is None else first[2]

    def pop_ended(self, now: float) -> list[T]:
        """Remove and return the deliveries whose locks have ended."""
        ended: list[T] = []
        while self._entries and self.next_end <= now:
            _, (delivery, weight, _) = self._entries.popitem(last=False)
            self.weight -= weight
            ended.append(delivery)
        return ended

    def clear(self) -> None:
        """Drop all."""
        self._entries.clear()
        self.weight = 0
