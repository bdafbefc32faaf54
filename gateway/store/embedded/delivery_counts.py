"""
Delivery counts of messages, in a table of their own so that they can be written when it costs
least.
"""

from typing import Final

import apsw
import attrs

from gateway.store.engine.journal import Journal, put_entry

_DELETE: Final = "DELETE FROM delivered WHERE sequence = ?"
_SAVE: Final = (
    "INSERT INTO delivered VALUES (?, ?)"
    " ON CONFLICT (sequence) DO UPDATE SET times = excluded.times"
)


@attrs.define(eq=False)
class DeliveryCounts:
    """
    The delivery counts that aren't written yet.

    A receive alone needs no commit: its counts are written with a later one, unless `urgent` asks
    for a commit. Otherwise a message that crashes the process at each delivery would be delivered
    for ever. So no message loses more than one of its counted attempts, and a message below
    `survivors`, which was in the store at an unclean end, loses none.
    """

    survivors: int = 0
    _journal: Journal = attrs.field(factory=Journal)
    _pending: dict[int, int] = attrs.field(factory=dict)
    _stored: set[int] = attrs.field(factory=set)  # sequence numbers that are known to have a row
    urgent: bool = False

    def __len__(self) -> int:
        return len(self._pending)

    def set(self, sequence: int, times: int, *, durable: bool = False) -> None:
        again = 0 < self._pending.get(sequence, 0) < times
        self._journal.keep(self)
        self.urgent = self.urgent or durable or again or sequence < self.survivors
        self._journal.note(put_entry, self._pending, sequence, self._pending.get(sequence))
        self._pending[sequence] = times

    def get(self, sequence: int, stored: int | None) -> int:
        """The delivery count, given the count that the table has."""
        if stored is not None:
            self._stored.add(sequence)
        return self._pending.get(sequence, stored or 0)

    def drop(self, sequence: int, connection: apsw.Connection) -> None:
        if sequence in self._pending:
            self._journal.note(self._pending.__setitem__, sequence, self._pending[sequence])
            del self._pending[sequence]
        if sequence in self._stored:
            self._journal.note(self._stored.add, sequence)
            self._stored.discard(sequence)
            connection.execute(_DELETE, (sequence,))

    def save(self, connection: apsw.Connection) -> None:
        connection.executemany(_SAVE, self._pending.items())

    def saved(self) -> None:
        """Note that the counts written by `save` are committed."""
        self._stored.update(self._pending)
        self._pending.clear()
        self.urgent = False
