"""
One store: a namespace's queues in SQLite, and its transactions.

Plain blocking code for one thread. An acknowledged commit is on the disk: see `schema.PRAGMAS`.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

import apsw
import attrs

from gateway.brokers.embedded import schema
from gateway.brokers.embedded.changes import Changes
from gateway.brokers.embedded.delivery_counts import DeliveryCounts
from gateway.brokers.embedded.entity_rows import EntityRows
from gateway.brokers.embedded.files import Disk, HighWaterMark, StoreLock
from gateway.brokers.embedded.opening import open_store
from gateway.brokers.embedded.rows import SqliteRows
from gateway.brokers.embedded.session_rows import SqliteSeenIds, SqliteSessions
from gateway.brokers.embedded.upkeep import Upkeep
from gateway.domain.entity import EntityPath
from gateway.domain.errors import StorageFull
from gateway.domain.rules import Rule
from gateway.domain.shelf import StoredEntity
from gateway.domain.stored import Storage

LOW_WATER: Final = 2 * schema.WAL_CAP + 64 * 1024 * 1024  # bytes that must stay free
CRITICAL: Final = LOW_WATER // 2  # of them: from here on the log is kept as short as can be
_LOOK_EVERY: Final = 1.0  # seconds between two looks at the disk
_COUNT_EVERY: Final = 0.1  # seconds that counts of deliveries wait: most messages are done by then
_ADVANCE: Final = (
    "UPDATE store SET commits = ?1, next_sequence = ?2, survivors = ?3,"
    " checksum = row_checksum(store_id, ?1, ?2, ?3)"
)


@attrs.define(eq=False, kw_only=True)
class Store:
    """`Shelf` on disk. `open` makes one."""

    _path: Path
    _connection: apsw.Connection
    _lock: StoreLock
    _mark: HighWaterMark
    _disk: Disk
    _commits: int
    _next_sequence: int
    _counts: DeliveryCounts
    doubts: tuple[str, ...]  # about the place, for the operator
    _rows: Changes = attrs.field(init=False)
    _entities: EntityRows = attrs.field(init=False)
    _upkeep: Upkeep = attrs.field(init=False)
    _changes: int = 0
    _stored_sequence: int = 0
    _monotonic: float = 0.0
    _looked: float = -math.inf
    _counted: float = -math.inf
    _survivors: int | None = None  # None in the store: it isn't closed
    _full: bool = False
    _critical: bool = False

    def __attrs_post_init__(self) -> None:
        self._rows = Changes(self._connection)
        self._entities = EntityRows(self._path, self._connection)
        self._upkeep = Upkeep(self._connection, self._counts)
        self._stored_sequence = self._next_sequence

    @classmethod
    def open(cls, path: Path, new_id: Callable[[], int], disk: Disk) -> Self:
        """As `open_store`."""
        opened = open_store(path, new_id, disk)
        return cls(
            path=path,
            connection=opened.connection,
            lock=opened.lock,
            mark=opened.mark,
            disk=disk,
            commits=opened.commits,
            next_sequence=opened.next_sequence,
            counts=DeliveryCounts(opened.survivors),
            doubts=opened.doubts,
        )

    # --- transactions

    def begin(self, monotonic: float) -> None:
        self._monotonic = monotonic
        self._look_at_disk()
        self._begin()

    def flush(self) -> None:
        """
        Write what the steps left to be written together.

        Raises:
            apsw.Error: as any statement of theirs.
        """
        self._rows.flush()

    def take_back(self) -> None:
        """Undo all since `begin`, if SQLite hasn't done so yet."""
        self._rows.forget()
        self._counts.forget()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def commit(self) -> None:
        """
        Return once everything since `begin` is on the disk.

        Raises:
            apsw.Error: nobody knows what is; the connection must not be used again.
        """
        counts = self._counts.urgent or self._monotonic - self._counted >= _COUNT_EVERY
        if counts:
            self._counts.save(self._connection)
        numbered = self._next_sequence != self._stored_sequence
        if not numbered and self._connection.total_changes() == self._changes:
            self._connection.execute("COMMIT")
            return
        values = (self._commits + 1, self._next_sequence, self._survivors)
        self._connection.execute(_ADVANCE, values)
        self._connection.execute("COMMIT")
        self._commits += 1
        self._stored_sequence = self._next_sequence
        if counts:
            self._counts.saved()
            self._counted = self._monotonic
        self._mark.set(self._commits)

    # --- between transactions

    @property
    def wants_checkpoint(self) -> bool:
        return self._upkeep.wants_checkpoint(scarce=self._critical)

    def checkpoint(self) -> None:
        """Move the log into the store."""
        self._upkeep.checkpoint(scarce=self._critical)

    def tidy(self) -> bool:
        """
        Write the counts that wait, and do one slice of what is left: messages of deleted queues
        go, then free pages. False if nothing is.
        """
        if len(self._counts) > 0:
            self._save_counts()
        queue = self._upkeep.deleted_queue()
        if queue is None:
            return self._upkeep.shrink()
        self._begin()
        self._upkeep.remove_slice(queue)
        self.commit()
        return True

    def close(self) -> None:
        """Write what waits, empty the log, and let go of the store."""
        try:
            self._end_tidily()
            self._upkeep.empty_log()
        except BaseException:
            self.forsake()
            raise
        self._connection.close()
        self._mark.close()
        self._lock.release()

    def _end_tidily(self) -> None:
        """Write that the counts are whole, if the store doesn't say so."""
        self._counts.urgent = True
        self._begin()
        self._survivors = self._counts.survivors
        self._connection.execute(
            "UPDATE store SET survivors = ? WHERE survivors IS NULL", (self._survivors,)
        )
        self.commit()

    def forsake(self) -> None:
        """Let go after an error: write nothing more, not even a checkpoint."""
        schema.forsake(self._connection)
        self._mark.close()
        self._lock.release()

    # --- as a shelf

    def load(self) -> Iterable[tuple[StoredEntity, Storage]]:
        """As `Shelf.load`, and `EntityRows.load`."""
        for number, entity in self._entities.load():
            yield entity, self._storage(number)

    def add(self, entity: StoredEntity) -> Storage:
        return self._storage(self._entities.add(entity))

    def update(self, entity: StoredEntity) -> None:
        self._entities.update(entity)

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None:
        self._entities.put_rule(subscription, rule)

    def remove_rule(self, subscription: EntityPath, name: str) -> None:
        self._entities.remove_rule(subscription, name)

    def remove(self, path: EntityPath) -> None:
        self._entities.remove(path)

    def check_room(self) -> None:
        if self._full:
            raise StorageFull(f"less than {LOW_WATER} bytes are free on the disk of {self._path}")

    def next_sequence(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        return sequence

    def _storage(self, number: int) -> Storage:
        return Storage(
            SqliteRows(self._connection, number, self._rows, self._counts),
            SqliteSessions(self._connection, number),
            SqliteSeenIds(self._connection, number),
        )

    def _save_counts(self) -> None:
        self._counts.urgent = True
        self._begin()
        self.commit()

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._changes = self._connection.total_changes()

    def _look_at_disk(self) -> None:
        if self._monotonic - self._looked >= _LOOK_EVERY:
            self._looked = self._monotonic
            free = self._disk.free_bytes(self._path.parent)
            self._full, self._critical = free < LOW_WATER, free < CRITICAL
