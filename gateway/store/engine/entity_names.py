"""The names of a namespace's entities in order, separately for each kind."""

import bisect
from collections.abc import Iterable, Sequence

import attrs

from gateway.domain.topics.topology import Properties


@attrs.define(eq=False)
class Names:
    """The keys of a namespace's entities."""

    _keys: dict[type[Properties], list[str]] = attrs.field(factory=dict)

    def add(self, kind: type[Properties], key: str) -> None:
        """Add a key, unless it exists."""
        keys = self._keys.setdefault(kind, [])
        place = bisect.bisect_left(keys, key)
        if keys[place : place + 1] != [key]:
            keys.insert(place, key)

    def fill(self, kind: type[Properties], keys: Iterable[str]) -> None:
        """Set all keys of one kind."""
        self._keys[kind] = sorted(keys)

    def drop(self, kind: type[Properties], key: str) -> None:
        """Remove a key, if it exists."""
        keys = self._keys.get(kind, [])
        place = bisect.bisect_left(keys, key)
        if keys[place : place + 1] == [key]:
            del keys[place]

    def clear(self) -> None:
        self._keys.clear()

    def page(self, kind: type[Properties], prefix: str, skip: int, top: int) -> Sequence[str]:
        """A page of the keys of one kind that start with `prefix`, in order."""
        keys, low = self._keys.get(kind, []), prefix.lower()
        first = bisect.bisect_left(keys, low) + max(skip, 0)
        end = bisect.bisect_right(keys, low + "\U0010ffff")
        return keys[first : min(end, first + max(top, 0))]
