"""Background work of a store, done in slices, so that no client waits long."""

from typing import Any, Final

import apsw
import attrs

from gateway.store.embedded.counters import DeliveryCounts
from gateway.store.embedded.schema import WAL_CAP

_PAGE: Final = 4096  # bytes: SQLite's default
_CHECKPOINT_PAGES: Final = 4 * 1024 * 1024 // _PAGE  # about SQLite's own default, 1,000 pages
_CAP_PAGES: Final = WAL_CAP // _PAGE
# Beyond 256 MiB a backup may not hold the log any longer: the disk fills.
_HELD_PAGES: Final = 256 * 1024 * 1024 // _PAGE
_SLICE: Final = 1000  # messages of a deleted queue that are deleted at once
_SPARE_PAGES: Final = 1024  # free pages that the file may keep, or a quarter of all
_VACUUM_PAGES: Final = 1000  # pages that are released at once: 5 ms

_DELETED: Final = "SELECT id FROM queue WHERE key IS NULL LIMIT 1"
_MESSAGES: Final = "SELECT sequence FROM message WHERE queue = ? LIMIT ?"
_REMOVE: Final = (
    "DELETE FROM message WHERE sequence = ?",
    "DELETE FROM delivered WHERE sequence = ?",
)
_REMOVE_OTHERS: Final = (
    "DELETE FROM session WHERE (queue, id) IN"
    " (SELECT queue, id FROM session WHERE queue = ? LIMIT ?)",
    "DELETE FROM seen WHERE (queue, id) IN (SELECT queue, id FROM seen WHERE queue = ? LIMIT ?)",
    "DELETE FROM rule WHERE (queue, key) IN (SELECT queue, key FROM rule WHERE queue = ? LIMIT ?)",
)


@attrs.define(eq=False)
class Upkeep:
    """Keeps the log short, and the file no larger than its content."""

    _connection: apsw.Connection
    _counts: DeliveryCounts
    _most_held: int = _HELD_PAGES
    _log_pages: int = 0

    def __attrs_post_init__(self) -> None:
        self._connection.set_wal_hook(self._record_log)

    # --- the log

    def wants_checkpoint(self, *, scarce: bool) -> bool:
        return self._log_pages > (0 if scarce else _CHECKPOINT_PAGES)

    @property
    def can_be_held(self) -> bool:
        """True while a backup may keep the log from being moved into the store."""
        return self._log_pages <= self._most_held

    def checkpoint(self, *, scarce: bool) -> None:
        """
        Move the log into the store. The log's file is kept, unless it is long or disk space is
        scarce.
        """
        if scarce or self._log_pages > _CAP_PAGES:
            self.empty_log()
        else:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._log_pages = 0

    def empty_log(self) -> None:
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._log_pages = 0

    def _record_log(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    # --- deleted queues

    def deleted_queue(self) -> int | None:
        queue: int | None = self._connection.execute(_DELETED).get
        return queue

    def remove_slice(self, queue: int) -> None:
        """
        Delete some rows of the queue, and with the last ones its own row, in the caller's
        transaction.
        """
        found: list[Any] = self._connection.execute(_MESSAGES, (queue, _SLICE)).fetchall()
        for statement in _REMOVE:
            self._connection.executemany(statement, found)
        for (sequence,) in found:
            self._counts.drop(sequence, self._connection)
        changes = self._connection.total_changes()
        for statement in _REMOVE_OTHERS:
            self._connection.execute(statement, (queue, _SLICE))
        if len(found) < _SLICE and self._connection.total_changes() - changes < _SLICE:
            self._connection.execute("DELETE FROM counter WHERE queue = ?", (queue,))
            self._connection.execute("DELETE FROM queue WHERE id = ?", (queue,))

    # --- free pages

    def shrink(self) -> bool:
        """
        Release free pages to the disk, keeping some for new messages. False: no page can be
        released.
        """
        free = self._connection.pragma("freelist_count")
        spare = max(_SPARE_PAGES, self._connection.pragma("page_count") // 4)
        if free <= spare:
            return False
        self._connection.execute("BEGIN IMMEDIATE")
        pages = min(_VACUUM_PAGES, free - spare)
        # Each step of the statement releases one page.
        self._connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        self._connection.execute("COMMIT")
        return True
