"""How often messages were delivered: a table of its own, written when it costs least."""

from typing import Final

import apsw
import attrs

_DELETE: Final = "DELETE FROM delivered WHERE sequence = ?"
_SAVE: Final = (
    "INSERT INTO delivered VALUES (?, ?)"
    " ON CONFLICT (sequence) DO UPDATE SET times = excluded.times"
)


@attrs.define(eq=False)
class DeliveryCounts:
    """
    How often messages were delivered, as far as that isn't written yet.

    A receive alone needs no commit: its counts ride on a later one, and `urgent` asks for one.
    Else a message that ends the process whenever it's delivered would come for ever: so no message
    loses more than one of its attempts, and none that has a number below `survivors`, which was in
    the store at an unclean end.
    """

    survivors: int = 0
    _pending: dict[int, int] = attrs.field(factory=dict)
    _stored: set[int] = attrs.field(factory=set)  # sequence numbers that have a row, as far as seen
    urgent: bool = False

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, sequence: int, times: int, *, durable: bool = False) -> None:
        again = 0 < self._pending.get(sequence, 0) < times
        self.urgent = self.urgent or durable or again or sequence < self.survivors
        self._pending[sequence] = times

    def get(self, sequence: int, stored: int | None) -> int:
        """The count, when `stored` is what the table says."""
        if stored is not None:
            self._stored.add(sequence)
        return self._pending.get(sequence, stored or 0)

    def drop(self, sequence: int, connection: apsw.Connection) -> None:
        self._pending.pop(sequence, None)
        if sequence in self._stored:
            self._stored.discard(sequence)
            connection.execute(_DELETE, (sequence,))

    def forget(self) -> None:
        """The transaction is undone and all locks are gone: what isn't written is void."""
        self._pending.clear()
        self.urgent = False

    def save(self, connection: apsw.Connection) -> None:
        connection.executemany(_SAVE, self._pending.items())

    def saved(self) -> None:
        """What `save` wrote is committed."""
        self._stored.update(self._pending)
        self._pending.clear()
        self.urgent = False
