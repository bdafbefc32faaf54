"""Checks a store that no gateway has open: its integrity, and its contents."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import cattrs

from gateway.domain.errors import MessageError
from gateway.store.embedded import schema
from gateway.store.embedded.changes import StoreChanges
from gateway.store.embedded.checksums import fitting, sealing
from gateway.store.embedded.counters import LOST, LOST_DRAWS, TWICE, DeliveryCounts, skip
from gateway.store.embedded.entities import read_properties, read_rule
from gateway.store.embedded.files import (
    Disk,
    HighWaterMark,
    StoreError,
    StoreLock,
    has_log,
    log_path,
    lost,
    mark_path,
    read_ahead,
    read_mark,
)
from gateway.store.embedded.opening import check_log, errors_in_words, store_row
from gateway.store.embedded.rows import SqliteRows
from gateway.store.embedded.tables import VERSION
from gateway.store.engine.records import State

_NONSENSE: Final = (LookupError, TypeError, ValueError, MessageError, cattrs.BaseValidationError)
_MOST_FOUND: Final = 10  # lines of each kind
_STATES: Final = {state.value: state.name.lower() for state in State}
_CONTENTS: Final = """
SELECT message.queue, name, key IS NULL, state, count(*), sum(size)
FROM message LEFT JOIN queue ON queue.id = message.queue
GROUP BY message.queue, state ORDER BY name, message.queue, state
"""
_ENTITIES: Final = "SELECT name, kind, properties FROM queue WHERE key IS NOT NULL"
_RULES: Final = (
    "SELECT name, rule, filter_values, action_values FROM rule JOIN queue ON queue.id = rule.queue"
)
_DAMAGED: Final = {  # names of rows
    "entity": f"SELECT name FROM queue WHERE checksum <> {fitting('queue')}",
    "counter": LOST,
    "drawn": LOST_DRAWS,
    "rule": f"SELECT key FROM rule WHERE checksum <> {fitting('rule')}",
    "session": (
        f"SELECT id FROM session WHERE checksum <> {fitting('session')}"
        f" AND checksum <> ~{fitting('session')}"
    ),
}
_ODD: Final = {
    "sessions have an unreadable state: a request for it fails": (
        f"SELECT count(*) FROM session WHERE checksum = ~{fitting('session')}"
    ),
    "ids are damaged: a duplicate may not be found": (
        f"SELECT count(*) FROM seen WHERE checksum <> {fitting('seen')}"
    ),
}
_QUEUES: Final = "SELECT DISTINCT queue FROM message"
_NUMBERS: Final = "SELECT sequence FROM message WHERE queue = ? AND state = ?"
_HIGHEST: Final = (
    "SELECT max(coalesce((SELECT max(sequence) FROM message), 0),"
    " coalesce((SELECT max(sequence) FROM quarantine), 0))"
)


@attrs.frozen(kw_only=True)
class EntityContent:
    """
    The messages of one entity in one state. `queue` is None if the entity is deleted or missing.
    """

    queue: str | None
    state: str
    messages: int
    bytes: int


@attrs.frozen(kw_only=True)
class Inspection:
    """
    The findings. `loss` says how far the store is behind its high-water mark: an operator may
    accept a loss, but none of the `problems`.
    """

    bytes: int
    log_bytes: int
    version: int = 0
    commits: int = 0
    marked: int | None = None  # commits, according to the high-water mark
    contents: tuple[EntityContent, ...] = ()
    quarantined: int = 0
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    loss: str = ""
    accepted: bool = False

    @property
    def good(self) -> bool:
        return not self.problems and (not self.loss or self.accepted)


def inspect(path: Path, disk: Disk, *, accept_loss: bool = False) -> Inspection:
    """
    Check everything. The store isn't changed: the log that a crash has left is read, and stays.
    With `accept_loss`, and if there are no problems, the store can be opened again afterwards.

    Raises:
        StoreInUse, StoreDamaged, StoreError: the store can't be read; the text says why.
    """
    with alone(path):
        check_log(path, disk.vfs)
        with schema.reading(path, disk.vfs) as connection:
            found = _Look(path, connection).everything()
        if accept_loss and found.loss and not found.problems:
            _accept(path, disk)
            return attrs.evolve(found, accepted=True)
        return found


@contextmanager
def alone(path: Path) -> Iterator[StoreLock]:
    """
    Lock an existing store for this process; errors of the disk become `StoreError`.

    Raises:
        StoreInUse, StoreError: another process has it open, it doesn't exist, or it can't be read.
    """
    with errors_in_words(path):
        if not path.is_file():
            raise StoreError(f"{path}: there is no store")
        lock = StoreLock.acquire(path)
        try:
            read_ahead(path)
            yield lock
        finally:
            lock.release()


def _accept(path: Path, disk: Disk) -> None:
    connection = schema.connect(path, disk.vfs)
    try:
        with connection:
            connection.execute(
                "UPDATE store SET commits = commits + 1, next_sequence = next_sequence + ?",
                (schema.EPOCH,),
            )
            skip(connection, schema.EPOCH)
            connection.execute(f"{sealing('store')}; {sealing('counter')}")
        mark, _ = store_row(connection)
    except BaseException:
        schema.forsake(connection)
        raise
    connection.close()
    HighWaterMark.begin(mark_path(path), mark).close()


@attrs.define(eq=False)
class _Look:
    _path: Path
    _connection: apsw.Connection
    _problems: list[str] = attrs.field(factory=list)
    _doubts: list[str] = attrs.field(factory=list)

    def everything(self) -> Inspection:
        log = log_path(self._path)
        found = Inspection(
            bytes=self._path.stat().st_size,
            log_bytes=log.stat().st_size if has_log(self._path) else 0,
            version=self._connection.pragma("user_version"),
        )
        self._check_database()
        with self._recording_problems("number of commits"):
            found = self._compare(found)
        with self._recording_problems("queues"):
            found = self._count(found)
        with self._recording_problems("entities"):
            self._check_entities(found.version)
        with self._recording_problems("checksums"):
            self._check_checksums(found.version)
        with self._recording_problems("numbers of messages"):
            self._check_numbers(found.version)
        with self._recording_problems("messages"):
            self._check_messages(found.version)
        with self._recording_problems("rows of queues"):
            self._find_orphans()
        return attrs.evolve(found, problems=tuple(self._problems), doubts=tuple(self._doubts))

    @contextmanager
    def _recording_problems(self, name: str) -> Iterator[None]:
        """Turn an unreadable part into a problem, so that the other parts are still checked."""
        try:
            yield
        except (apsw.Error, *_NONSENSE) as error:
            self._problems.append(f"{name}: {error}")

    def _check_database(self) -> None:
        with self._recording_problems("database"):
            self._problems += schema.flaws(self._connection, f"integrity_check({_MOST_FOUND})")

    def _compare(self, found: Inspection) -> Inspection:
        marks = mark_path(self._path)
        store, sequence = store_row(self._connection)
        mark = read_mark(marks)
        if mark is None and store.commits > 0:
            self._doubts.append(f"{marks} is missing: nobody knows whether commits are missing")
        with self._recording_problems("sequence numbers"):
            highest: Any = self._connection.execute(_HIGHEST).get
            if highest >= sequence:
                text = f"there is a message {highest}, and {sequence} is next: numbers come twice"
                self._problems.append(text)
        return attrs.evolve(
            found,
            commits=store.commits,
            marked=None if mark is None else mark.commits,
            loss=lost(marks, mark, store),
        )

    def _count(self, found: Inspection) -> Inspection:
        contents, missing = [], 0
        for _, name, deleted, state, messages, size in self._connection.execute(_CONTENTS):
            if name is None:
                missing += messages
            if state not in _STATES:
                self._problems.append(f"queue {name}: {messages} messages in a state {state}")
            contents.append(
                EntityContent(
                    queue=None if deleted else name,
                    state=_STATES.get(state, str(state)),
                    messages=messages,
                    bytes=size,
                )
            )
        if missing:
            self._problems.append(f"{missing} messages of queues that aren't there")
        aside: int = self._connection.execute("SELECT count(*) FROM quarantine").get
        if aside:
            self._doubts.append(f"{aside} damaged messages were put aside (table quarantine)")
        return attrs.evolve(found, contents=tuple(contents), quarantined=aside)

    def _check_entities(self, version: int) -> None:
        """The stored properties of each entity and each rule must be readable."""
        if version != VERSION:
            return
        for name, kind, text in self._connection.execute(_ENTITIES):
            with self._recording_problems(f"properties of {name}"):
                read_properties(kind, text)
        for name, *rule in self._connection.execute(_RULES):
            with self._recording_problems(f"a rule of {name}"):
                read_rule(*rule)

    def _check_checksums(self, version: int) -> None:
        if version != VERSION:
            return
        if not self._connection.execute(f"SELECT checksum = {fitting('store')} FROM store").get:
            self._problems.append("the row of the table `store` is damaged")
        for kind, statement in _DAMAGED.items():
            names = [name for (name,) in self._connection.execute(statement)]
            if names:
                rows = "row is" if len(names) == 1 else "rows are"
                self._problems.append(f"{len(names)} {kind} {rows} damaged: {_shown(names)}")
        for text, statement in _ODD.items():
            count = self._connection.execute(statement).get
            if count:
                self._doubts.append(f"{count} {text}")

    def _check_numbers(self, version: int) -> None:
        if version != VERSION:
            return
        for name, highest, number in self._connection.execute(TWICE):
            self._problems.append(
                f"{name}: there is a message {highest}, and {number} is next: numbers come twice"
            )

    def _check_messages(self, version: int) -> None:
        if version != VERSION:
            self._doubts.append(
                "the store is of an earlier version: its messages are checked once it was opened"
            )
            return
        bad: list[int] = []
        queues: list[Any] = self._connection.execute(_QUEUES).fetchall()
        for (queue,) in queues:
            rows = rows_of(self._connection, queue)
            for state in State:
                numbers = self._connection.execute(_NUMBERS, (queue, state.value))
                bad += [number for (number,) in numbers if not readable(rows, number)]
        if bad:
            self._problems.append(f"{len(bad)} messages are damaged: {_shown(bad)}")

    def _find_orphans(self) -> None:
        """
        Count the rows whose queue or message is missing. Each table with a column `queue` has rows
        of queues; a deleted queue still has its own row.
        """
        for table in _tables_of_queues(self._connection):
            if table != "message":
                self._count_orphans(table, "queue NOT IN (SELECT id FROM queue)")
        self._count_orphans("delivered", "sequence NOT IN (SELECT sequence FROM message)")

    def _count_orphans(self, table: str, orphaned: str) -> None:
        count = self._connection.execute(f"SELECT count(*) FROM {table} WHERE {orphaned}").get
        if count:
            self._doubts.append(f"{count} rows of the table {table} belong to nothing")


def rows_of(connection: apsw.Connection, queue: int) -> SqliteRows:
    """For reading only: changes aren't written."""
    return SqliteRows(connection, queue, StoreChanges(connection), DeliveryCounts())


def readable(rows: SqliteRows, number: int) -> bool:
    """True if the stored message is undamaged."""
    try:
        row = rows.get(number)
    except (apsw.Error, ValueError):
        return False
    return row is not None and not row.damaged


def _shown(names: Sequence[object]) -> str:
    more = ", ..." if len(names) > _MOST_FOUND else ""
    return ", ".join(map(str, names[:_MOST_FOUND])) + more


def _tables_of_queues(connection: apsw.Connection) -> list[str]:
    found: Any = connection.execute(
        "SELECT tables.name FROM sqlite_schema AS tables"
        " JOIN pragma_table_info(tables.name) AS columns"
        " WHERE tables.type = 'table' AND columns.name = 'queue'"
    )
    return [name for (name,) in found]
