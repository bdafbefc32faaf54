"""
A store: the entities and messages of a namespace in SQLite, and its transactions.

Plain blocking code for one thread. A commit is on the disk when it returns: see `schema.PRAGMAS`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import apsw
import attrs

from gateway.domain.clocks.clock_note import ClockNote, note_of, write_note
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import StorageFull
from gateway.domain.topics.filters import Rule
from gateway.store.embedded import schema
from gateway.store.embedded.changes import StoreChanges
from gateway.store.embedded.counters import Counters, DeliveryCounts, SqliteNumbers
from gateway.store.embedded.entities import EntityRows
from gateway.store.embedded.files import Disk, HighWaterMark, StoreLock
from gateway.store.embedded.opening import open_store
from gateway.store.embedded.rows import NO_TOTALS, SqliteRows, all_totals
from gateway.store.embedded.session_rows import SqliteSeenIds, SqliteSessions
from gateway.store.embedded.upkeep import Upkeep
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.journal import Journal
from gateway.store.engine.records import Storage, Totals

LOW_WATER: Final = 2 * schema.WAL_CAP + 64 * 1024 * 1024  # bytes that must stay free
CRITICAL: Final = LOW_WATER // 2  # below this the log is kept as short as possible
_LOOK_EVERY: Final = 1.0  # seconds between two checks of the free space
_COUNT_EVERY: Final = 0.1  # seconds that delivery counts wait: most messages are settled by then
_ADVANCE: Final = (
    "UPDATE store SET commits = ?1, next_sequence = ?2, survivors = ?3, clock = ?4,"
    " checksum = row_checksum(store_id, ?1, ?2, ?3, identity, ?4)"
)


@attrs.define(eq=False, kw_only=True)
class Store:
    """`EntityStore` on disk, made by `open`."""

    _path: Path
    _connection: apsw.Connection
    _lock: StoreLock
    _mark: HighWaterMark
    _disk: Disk
    _commits: int
    _next_sequence: int
    _counts: DeliveryCounts
    doubts: tuple[str, ...]  # about the file system, for the operator
    identity: int  # shared by all copies of the store
    clock: ClockNote  # in the store
    journal: Journal
    _rows: StoreChanges = attrs.field(init=False)
    _entities: EntityRows = attrs.field(init=False)
    _counters: Counters = attrs.field(init=False)
    _upkeep: Upkeep = attrs.field(init=False)
    _note: ClockNote = attrs.field(factory=ClockNote, init=False)  # of the prepared commit
    _changes: int = 0
    _stored_sequence: int = 0
    _now: Now = attrs.field(factory=lambda: Now(0, 0.0), init=False)
    _looked: float = -math.inf
    _counted: float = -math.inf
    _survivors: int | None = None  # None in the store: it isn't closed
    _saving: bool = False  # the prepared commit contains delivery counts
    _advancing: bool = False
    _full: bool = False
    _critical: bool = False

    def __attrs_post_init__(self) -> None:
        self._rows = StoreChanges(self._connection)
        self._entities = EntityRows(self._path, self._connection)
        self._counters = Counters(self._connection, self.journal)
        self._upkeep = Upkeep(self._connection, self._counts)
        self._stored_sequence = self._next_sequence

    @classmethod
    def open(cls, path: Path, new_id: Callable[[], int], disk: Disk) -> Self:
        """As `open_store`."""
        opened = open_store(path, new_id, disk)
        journal = Journal()
        return cls(
            path=path,
            connection=opened.connection,
            lock=opened.lock,
            mark=opened.mark,
            disk=disk,
            commits=opened.commits,
            next_sequence=opened.next_sequence,
            counts=DeliveryCounts(opened.survivors, journal),
            doubts=opened.doubts,
            identity=opened.identity,
            clock=opened.clock,
            journal=journal,
        )

    # --- transactions

    def begin(self, now: Now) -> None:
        self._now = now
        self._check_disk()
        self._begin()

    def roll_back(self) -> None:
        """
        Undo on disk all changes since `begin`, unless SQLite has done so. The journal undoes those
        in memory.
        """
        self._rows.forget()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """As `EntityStore.savepoint`: write all changes made within, or undo them on disk."""
        self._rows.flush()
        self._connection.execute("SAVEPOINT part")
        try:
            yield
            self._rows.flush()
        except Exception:
            self._rows.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")
            raise
        self._connection.execute("RELEASE part")

    def prepare(self) -> None:
        """
        Write everything that belongs to the commit: after it, only the disk can fail.

        Raises:
            apsw.Error: as any statement; everything may be undone.
        """
        self._rows.flush()
        self._counters.save()
        self._saving = self._counts.urgent or self._now.monotonic - self._counted >= _COUNT_EVERY
        if self._saving:
            self._counts.save(self._connection)
        numbered = self._next_sequence != self._stored_sequence
        changed = self._connection.total_changes() != self._changes
        self._note = note_of(self._now.wall, self._now.shift, self._disk.boot())
        # A step or a boot is noted at once: the next process can't tell one from the other.
        self._advancing = numbered or changed or not self._note.continues(self.clock)
        if self._advancing:
            clock = write_note(self._note)
            values = (self._commits + 1, self._next_sequence, self._survivors, clock)
            self._connection.execute(_ADVANCE, values)

    def commit(self) -> None:
        """
        Return once everything that was prepared since `begin` is on the disk.

        Raises:
            apsw.Error: the state on the disk is unknown; the connection must not be used again.
        """
        self._connection.execute("COMMIT")
        if not self._advancing:
            return
        self._commits += 1
        self.clock = self._note
        self._stored_sequence = self._next_sequence
        self._counters.saved()
        if self._saving:
            self._counts.saved()
            self._counted = self._now.monotonic
        self._mark.set(self._commits)

    # --- between transactions

    @property
    def wants_checkpoint(self) -> bool:
        return self._upkeep.wants_checkpoint(scarce=self._critical)

    def checkpoint(self) -> bool:
        """Move the log into the store. False if it waits for a backup that copies the log."""
        if not self._critical and self._upkeep.can_be_held and self._mark.is_held():
            return False
        self._upkeep.checkpoint(scarce=self._critical)
        return True

    def tidy(self) -> bool:
        """
        Write the delivery counts that wait, and do one slice of background work: delete messages of
        deleted queues, then release free pages. False if nothing is left to do.
        """
        if len(self._counts) > 0:
            self._save_counts()
        queue = self._upkeep.deleted_queue()
        if queue is None:
            return self._upkeep.shrink()
        self._begin()
        self._upkeep.remove_slice(queue)
        self._commit_prepared()
        return True

    def close(self) -> None:
        """Write the waiting delivery counts, empty the log, and close the store."""
        try:
            self._close_tidily()
            self._upkeep.empty_log()
        except BaseException:
            self.forsake()
            raise
        self._connection.close()
        self._mark.close()
        self._lock.release()

    def _close_tidily(self) -> None:
        """Note in the store that the counts are complete."""
        self._counts.urgent = True
        self._begin()
        self._survivors = self._counts.survivors
        self._connection.execute(
            "UPDATE store SET survivors = ? WHERE survivors IS NULL", (self._survivors,)
        )
        self._commit_prepared()

    def forsake(self) -> None:
        """Close after an error: write nothing more, not even a checkpoint."""
        schema.forsake(self._connection)
        self._mark.close()
        self._lock.release()

    # --- as an entity store

    def load(self) -> Iterable[tuple[StoredEntity, Totals]]:
        """As `EntityStore.load`, and `EntityRows.load`."""
        totals = all_totals(self._connection)
        for number, entity in self._entities.load():
            yield entity, totals.get(number, NO_TOTALS)
        self._counters.load()

    def storage(self, path: EntityPath) -> Storage:
        number = self._entities.number(path)
        return self._storage(number, self._counters.of(number))

    def add(self, entity: StoredEntity) -> Storage:
        number = self._entities.add(entity)
        return self._storage(number, self._counters.begin(number))

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

    def _storage(self, number: int, numbers: SqliteNumbers) -> Storage:
        return Storage(
            numbers,
            SqliteRows(self._connection, number, self._rows, self._counts),
            SqliteSessions(self._connection, number),
            SqliteSeenIds(self._connection, number),
        )

    def _save_counts(self) -> None:
        self._counts.urgent = True
        self._begin()
        self._commit_prepared()

    def _commit_prepared(self) -> None:
        self.prepare()
        self.commit()

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._changes = self._connection.total_changes()

    def _check_disk(self) -> None:
        if self._now.monotonic - self._looked >= _LOOK_EVERY:
            self._looked = self._now.monotonic
            free = self._disk.free_bytes(self._path.parent)
            self._full, self._critical = free < LOW_WATER, free < CRITICAL
