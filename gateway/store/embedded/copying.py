"""Copies a store that no gateway has open: as a backup, or to replace it by a smaller one."""

from collections import Counter
from pathlib import Path
from typing import Final

import apsw
import attrs

from gateway.store.embedded import schema
from gateway.store.embedded.checksums import sealing, teach
from gateway.store.embedded.counters import skip
from gateway.store.embedded.files import (
    Disk,
    StoreDamaged,
    StoreError,
    has_log,
    log_path,
    mark_path,
)
from gateway.store.embedded.inspection import alone
from gateway.store.embedded.opening import check_log, errors_in_words, open_store

_COUNTS: Final = """
SELECT 'message', queue, state, count(*) FROM message GROUP BY queue, state
UNION ALL SELECT 'queue', 0, 0, count(*) FROM queue
UNION ALL SELECT 'quarantine', 0, 0, count(*) FROM quarantine
"""

Counts = Counter[tuple[str, int, int]]


@attrs.frozen(kw_only=True)
class Copy:
    """The result of a copy that is complete and synced to the disk."""

    bytes_before: int
    bytes_after: int
    messages: int


def back_up(source: Path, target: Path, new_id: int, disk: Disk) -> Copy:
    """
    Copy a store, without changing it, to a file that must not exist.

    The copy is a store of its own with the id `new_id`. A gateway that starts with it delivers
    again the messages that were completed since the copy, and lacks those sent since.

    Raises:
        StoreInUse, StoreDamaged, StoreError: no copy was made; the text says why.
    """
    refuse_to_overwrite(target)
    with alone(source):
        check_log(source, disk.vfs)
        with schema.drafted(target) as draft:
            with schema.reading(source, disk.vfs) as connection:
                counts = _copy(connection, draft, disk)
            give_new_name(draft, new_id)
            _verify(draft, counts)
        return copy_of(source, target, counts)


def compact(path: Path, disk: Disk) -> Copy:
    """
    Replace a store by a copy without free pages. After a crash at any moment, either the old or the
    new file is there, complete.

    Raises:
        StoreInUse, StoreDamaged, StoreError: the store is unchanged; the text says why.
    """
    if not path.is_file():
        raise StoreError(f"{path}: there is no store")
    before = path.stat().st_size
    opened = open_store(path, _no_new_store, disk)
    try:
        with errors_in_words(path), schema.drafted(path) as draft:
            counts = _copy_and_close(opened.connection, draft, disk)
            _verify(draft, counts)
            if has_log(path):
                raise StoreError(
                    f"{log_path(path)} still has commits that the copy lacks; the store is"
                    " unchanged"
                )
    finally:
        opened.mark.close()
        opened.lock.release()
    return attrs.evolve(copy_of(path, path, counts), bytes_before=before)


def _copy_and_close(connection: apsw.Connection, draft: Path, disk: Disk) -> Counts:
    """Copy, and close the store, which empties its log."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return _copy(connection, draft, disk)
    finally:
        connection.close()


def refuse_to_overwrite(target: Path) -> None:
    for file in (target, log_path(target), mark_path(target)):
        if file.exists():
            raise StoreError(f"{file}: already there; name another file")


def counts_of(connection: apsw.Connection) -> Counts:
    return Counter(
        {(what, queue, state): n for what, queue, state, n in connection.execute(_COUNTS)}
    )


def _copy(connection: apsw.Connection, draft: Path, disk: Disk) -> Counts:
    pages = connection.pragma("page_count") - connection.pragma("freelist_count")
    needed, free = pages * connection.pragma("page_size"), disk.free_bytes(draft.parent)
    if free < needed:
        raise StoreError(f"{draft.parent}: {needed} bytes needed, {free} are free")
    counts = counts_of(connection)
    connection.execute("VACUUM INTO ?", (str(draft),))
    return counts


def give_new_name(draft: Path, new_id: int) -> None:
    """Make the copy a store of its own, with the tables of this version."""
    connection = apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        teach(connection)
        # A store of an earlier version has no identity, which copies share.
        schema.migrate(connection)
        connection.execute(
            "UPDATE store SET store_id = ?, commits = 0, next_sequence = next_sequence + ?",
            (new_id, schema.EPOCH),
        )
        skip(connection, schema.EPOCH)
        connection.execute(f"{sealing('store')}; {sealing('counter')}")
    finally:
        connection.close()


def _verify(draft: Path, counts: Counts) -> None:
    with schema.reading(draft) as connection:
        if flaws := schema.flaws(connection, "integrity_check(1)"):
            raise StoreDamaged(f"the copy is damaged: {flaws[0]}")
        if (found := counts_of(connection)) != counts:
            raise StoreDamaged(f"the copy is incomplete: it has {found}, the store has {counts}")


def copy_of(source: Path, target: Path, counts: Counts) -> Copy:
    return Copy(
        bytes_before=source.stat().st_size,
        bytes_after=target.stat().st_size,
        messages=sum(count for (what, *_), count in counts.items() if what == "message"),
    )


def _no_new_store() -> int:
    raise StoreError("the store was deleted meanwhile")
