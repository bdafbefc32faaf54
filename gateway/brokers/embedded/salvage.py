"""A new store from what can still be read of a damaged one, which stays as it is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import cattrs

from gateway.brokers.embedded import schema
from gateway.brokers.embedded.checksums import SEALED, fitting, sealing
from gateway.brokers.embedded.copying import refuse_to_overwrite
from gateway.brokers.embedded.entities import read_properties, read_rule
from gateway.brokers.embedded.files import Disk, StoreDamaged
from gateway.brokers.embedded.inspection import alone, readable, rows_of
from gateway.brokers.embedded.opening import check_log
from gateway.brokers.embedded.rows import TEXTS
from gateway.brokers.embedded.tables import VERSION
from gateway.domain.entity import EntityPath
from gateway.domain.errors import MessageError

_MOST_NAMED: Final = 1000

# The index knows of messages whose page is gone, and the table of those that the index misses.
_BY_INDEX: Final = "SELECT sequence FROM message INDEXED BY message_order"
_BY_TABLE: Final = "SELECT sequence FROM message NOT INDEXED"
_ORDERS: Final = (
    f"{_BY_INDEX} ORDER BY queue, state, sequence",
    f"{_BY_INDEX} ORDER BY queue DESC, state DESC, sequence DESC",
    f"{_BY_TABLE} ORDER BY sequence",
    f"{_BY_TABLE} ORDER BY sequence DESC",
)
_OTHER_TABLES: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('store', 'message')"
    " AND name NOT LIKE 'sqlite_%'"
)
_QUEUE_OF: Final = "SELECT queue FROM message WHERE sequence = ?"
_PUT_ASIDE: Final = (
    "INSERT OR IGNORE INTO quarantine SELECT sequence, queue, checksum, content FROM message"
    " WHERE sequence = ?"
)
_COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"
_DEFAULTS: Final = "UPDATE queue SET properties = '{}', kind = 'queue' WHERE id = ?"
_ENTITIES: Final = "SELECT id, name, kind, properties FROM queue"
_RULES: Final = "SELECT queue, key, rule, filter_values, action_values FROM rule"
_LOST_QUEUES: Final = "SELECT DISTINCT queue FROM message WHERE queue NOT IN (SELECT id FROM queue)"
# Numbers and names of rows that are kept as they were found.
_ASIDE: Final = {"queue": "id, name", "rule": "queue, key"}
_REMARKS: Final = {
    "queue": "the row of {name} was damaged: compare its properties (table damaged)",
    "rule": "the rule {name} of the subscription {number} was damaged, and is gone (table damaged)",
}
_RENAME: Final = "UPDATE queue SET key = ?, name = ? WHERE id = ?"
_KEEP: Final = "INSERT INTO damaged (origin, content) VALUES (?, ?)"
_MARK_DAMAGED: Final = (
    f"UPDATE session SET checksum = ~{fitting('session')} WHERE queue = ? AND id = ?"
)
# What follows from the messages is made of them.
_MEND: Final = """
DELETE FROM delivered WHERE sequence NOT IN (SELECT sequence FROM message);
INSERT INTO session (queue, id, first, updated)
    SELECT queue, session, min(sequence), 0 FROM message
    WHERE state = 0 AND session IS NOT NULL GROUP BY queue, session
    ON CONFLICT (queue, id) DO UPDATE SET first = excluded.first;
UPDATE store SET next_sequence = ? + max(
    next_sequence,
    coalesce((SELECT max(sequence) FROM message), 0),
    coalesce((SELECT max(sequence) FROM quarantine), 0)
)
"""


@attrs.frozen(kw_only=True)
class Salvaged:
    """
    What is in the new store, and what isn't: `lost` names the messages that were there and can't
    be read, up to a thousand; `remarks` say what else is missing, or had to be made up.
    """

    messages: int
    quarantined: int  # can be read, and aren't what was sent
    lost_messages: int
    lost: tuple[int, ...]
    remarks: tuple[str, ...]


def salvage(source: Path, target: Path, new_id: int, disk: Disk) -> Salvaged:
    """
    Make a store of all that can be read. Its messages are delivered again, also those that were
    just about to be settled; it has the name `new_id`, and sequence numbers of its own from now on.

    Raises:
        StoreInUse, StoreDamaged, StoreError: nothing was made; the text says why.
    """
    refuse_to_overwrite(target)
    with alone(source):
        check_log(source, disk.vfs)
        with schema.drafted(target) as draft, schema.reading(source, disk.vfs) as old:
            new = schema.fill(draft, new_id)
            try:
                new.pragma("journal_mode", "memory")
                new.execute("PRAGMA synchronous = OFF; BEGIN")
                salvaged = _Salvage(old, new).everything()
                new.execute("COMMIT")
                if flaws := schema.flaws(new, "integrity_check(1)"):
                    raise StoreDamaged(f"the new store is damaged: {flaws[0]}")
            finally:
                new.close()
        return salvaged


@attrs.define(eq=False)
class _Salvage:
    _old: apsw.Connection
    _new: apsw.Connection
    _remarks: list[str] = attrs.field(factory=list)
    _lost: list[int] = attrs.field(factory=list)
    _lost_messages: int = 0

    def everything(self) -> Salvaged:
        others: list[Any] = self._new.execute(_OTHER_TABLES).fetchall()
        for (table,) in others:
            self._copy_table(table)
        damaged = self._put_rows_aside() if self._has_checksums() else []
        self._drop_what_says_nothing()
        self._copy_messages()
        self._make_up_queues()
        self._free_subscriptions()
        self._copy_number()
        self._new.execute(_MEND, (schema.EPOCH,))
        self._seal(damaged)
        return Salvaged(
            messages=self._count("message"),
            quarantined=self._count("quarantine"),
            lost_messages=self._lost_messages,
            lost=tuple(self._lost),
            remarks=tuple(self._remarks),
        )

    def _count(self, table: str) -> int:
        count: int = self._new.execute(f"SELECT count(*) FROM {table}").get
        return count

    def _copy_table(self, table: str) -> None:
        """From its beginning up to the damage, and from its end back to it."""
        key = _names(self._new, "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", table)
        columns = self._columns(table)
        if not columns and self._old.pragma("user_version") < VERSION:
            return
        ends = True
        for way in (", ".join(key), ", ".join(f"{name} DESC" for name in key)):
            rows = _Scan(self._old, f"SELECT {', '.join(columns)} FROM {table} ORDER BY {way}")
            for row in rows:
                self._insert(table, columns, row)
            ends = ends and rows.ended
        if not ends:
            self._remarks.append(f"rows of the table {table} can't be read")

    def _columns(self, table: str) -> list[str]:
        """Those of the new table that the old one, which may be of an earlier version, has too."""
        known = _names(self._old, _COLUMNS, table)
        return [name for name in _names(self._new, _COLUMNS, table) if name in known]

    def _insert(self, table: str, columns: Sequence[str], row: Sequence[Any]) -> None:
        """Whatever the new table can hold; a value that isn't of its type it can't."""
        places = ", ".join("?" * len(columns))
        statement = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})"
        with suppress(apsw.ConstraintError):
            self._new.execute(statement, tuple(row))

    def _has_checksums(self) -> bool:
        return "checksum" in _names(self._old, _COLUMNS, "queue")

    def _put_rows_aside(self) -> list[Any]:
        """
        Keep each damaged row of an entity or a rule as it was found. Return damaged sessions.

        An entity goes on with what can be read of it; a rule would sort messages in another way.
        """
        for table, columns in _ASIDE.items():
            unfit = f"checksum <> {fitting(table)}"
            rows: list[Any] = self._new.execute(
                f"SELECT {columns}, * FROM {table} WHERE {unfit}"
            ).fetchall()
            for number, name, *row in rows:
                content = ", ".join(map(apsw.format_sql_value, row))
                self._new.execute(_KEEP, (table, content))
                self._remarks.append(_REMARKS[table].format(name=name, number=number))
                if table == "queue":
                    self._revive(number, name)
        self._new.execute(f"DELETE FROM rule WHERE checksum <> {fitting('rule')}")
        self._new.execute(f"DELETE FROM seen WHERE checksum <> {fitting('seen')}")
        sessions: list[Any] = self._new.execute(
            f"SELECT queue, id FROM session WHERE checksum <> {fitting('session')}"
        ).fetchall()
        return sessions

    def _revive(self, number: int, name: str) -> None:
        """A damaged entity is there under its name, or a new one where another has that."""
        for path in (EntityPath(name), EntityPath(f"salvaged-{number}")):
            with suppress(apsw.ConstraintError):
                self._new.execute(_RENAME, (path.key, path.name, number))
                return

    def _seal(self, damaged: Sequence[Any]) -> None:
        for table in SEALED:
            self._new.execute(sealing(table))
        self._new.executemany(_MARK_DAMAGED, damaged)
        if damaged:
            self._remarks.append(f"the states of {len(damaged)} sessions are damaged")

    def _drop_what_says_nothing(self) -> None:
        """Properties that can't be read become the default ones; a rule that can't is gone."""
        entities: list[Any] = self._new.execute(_ENTITIES).fetchall()
        for number, name, *properties in entities:
            if not _says_something(read_properties, *properties):
                self._new.execute(_DEFAULTS, (number,))
                self._remarks.append(f"{name} is a queue with default properties now")
        rules: list[Any] = self._new.execute(_RULES).fetchall()
        for number, key, *rule in rules:
            if not _says_something(read_rule, *rule):
                self._new.execute("DELETE FROM rule WHERE queue = ? AND key = ?", (number, key))
                self._remarks.append(f"the rule {key} of the subscription {number} is gone")

    def _copy_messages(self) -> None:
        columns = self._columns("message")
        # Of one whose texts are none any more the content may be whole.
        without_texts = [name for name in columns if name not in TEXTS.split(", ")]
        self._new.execute("CREATE TEMP TABLE known (sequence INTEGER PRIMARY KEY)")
        scans = [_Scan(self._old, statement) for statement in _ORDERS]
        for scan in scans:
            self._new.executemany("INSERT OR IGNORE INTO known VALUES (?)", scan)
        if not (scans[0].ended or scans[2].ended):
            self._remarks.append("there may have been messages whose numbers nobody knows")
        known: list[Any] = self._new.execute("SELECT sequence FROM known").fetchall()
        for (number,) in known:
            if self._copy_message(number, columns):
                self._judge(number)
            else:
                self._copy_message(number, without_texts)
                self._judge(number, sound=False)

    def _copy_message(self, number: int, columns: Sequence[str]) -> bool:
        select = f"SELECT {', '.join(columns)} FROM message WHERE sequence = ?"
        row = next(iter(_Scan(self._old, select, (number,))), None)
        if row is not None:
            self._insert("message", columns, row)
        return row is not None

    def _judge(self, number: int, *, sound: bool = True) -> None:
        """Count what is lost, and put aside what isn't what was sent."""
        queue: Any = self._new.execute(
            "SELECT queue FROM message WHERE sequence = ?", (number,)
        ).get
        if queue is None:
            self._lost_messages += 1
            if len(self._lost) < _MOST_NAMED:
                self._lost.append(number)
            return
        if not (sound and readable(rows_of(self._new, queue), number)):
            self._new.execute(_PUT_ASIDE, (number,))
            self._new.execute("DELETE FROM message WHERE sequence = ?", (number,))

    def _make_up_queues(self) -> None:
        queues: list[Any] = self._new.execute(_LOST_QUEUES).fetchall()
        for (number,) in queues:
            path = EntityPath(f"salvaged-{number}")
            self._new.execute(
                "INSERT INTO queue (id, key, name, properties, created) VALUES (?, ?, ?, '{}', 0)",
                (number, path.key, path.name),
            )
            self._remarks.append(f"the messages of a lost queue are in {path}")

    def _free_subscriptions(self) -> None:
        """One whose topic is lost becomes a queue of its own: its messages can be had there."""
        entities: list[Any] = self._new.execute(
            "SELECT id, name, kind FROM queue WHERE key IS NOT NULL"
        ).fetchall()
        topics = {EntityPath(name).key for _, name, kind in entities if kind == "topic"}
        for number, name, kind in entities:
            path = EntityPath(name)
            if path.is_subscription and (kind != "subscription" or path.topic.key not in topics):
                new = EntityPath(f"salvaged-{number}")
                self._new.execute("DELETE FROM rule WHERE queue = ?", (number,))
                self._new.execute(
                    "UPDATE queue SET properties = '{}', kind = 'queue', key = ?, name = ?"
                    " WHERE id = ?",
                    (new.key, new.name, number),
                )
                self._remarks.append(f"{name} has lost its topic, and is the queue {new} now")

    def _copy_number(self) -> None:
        sound = f"WHERE checksum = {fitting('store')}" if self._has_checksums() else ""
        for (number,) in _Scan(self._old, f"SELECT next_sequence FROM store {sound}"):
            self._new.execute("UPDATE store SET next_sequence = ?", (number,))


@attrs.define(eq=False)
class _Scan:
    """The rows of a statement up to the first that can't be read."""

    _connection: apsw.Connection
    _statement: str
    _values: tuple[Any, ...] = ()
    ended: bool = False  # there was none

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with suppress(apsw.Error, ValueError):
            yield from self._connection.execute(self._statement, self._values)
            self.ended = True


def _names(connection: apsw.Connection, statement: str, table: str) -> list[str]:
    return [name for (name,) in connection.execute(statement, (table,))]


def _says_something(read: Callable[..., object], *texts: Any) -> bool:
    try:
        read(*texts)
    except (LookupError, TypeError, ValueError, MessageError, cattrs.BaseValidationError):
        return False
    return True
