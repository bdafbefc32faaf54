"""Makes a new store from the readable parts of a damaged one, which stays unchanged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import cattrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import MessageError
from gateway.store.embedded import schema
from gateway.store.embedded.checksums import SEALED, fitting, sealing
from gateway.store.embedded.copying import refuse_to_overwrite
from gateway.store.embedded.entities import read_properties, read_rule
from gateway.store.embedded.files import Disk, StoreDamaged
from gateway.store.embedded.inspection import alone, readable, rows_of
from gateway.store.embedded.opening import check_log
from gateway.store.embedded.rows import TEXTS
from gateway.store.embedded.tables import COUNT_ANEW, VERSION

_MOST_NAMED: Final = 1000  # of the lost rows; a report of more helps nobody

# The index has messages whose page is lost, and the table has messages that the index misses.
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
_PUT_ASIDE: Final = (
    "INSERT OR IGNORE INTO quarantine SELECT sequence, queue, checksum, content FROM message"
    " WHERE sequence = ?"
)
_COLUMNS: Final = "SELECT name FROM pragma_table_info(?)"
_DEFAULTS: Final = "UPDATE queue SET properties = '{}', kind = 'queue' WHERE id = ?"
_ENTITIES: Final = "SELECT id, name, kind, properties FROM queue"
_RULES: Final = "SELECT queue, key, rule, filter_values, action_values FROM rule"
_LOST_QUEUES: Final = "SELECT DISTINCT queue FROM message WHERE queue NOT IN (SELECT id FROM queue)"
# Columns that identify the rows of which a copy is kept.
_ASIDE: Final = {"queue": "id, name", "rule": "queue, key"}
_REMARKS: Final = {
    "queue": "the row of {name} was damaged: compare its properties (table damaged)",
    "rule": "the rule {name} of the subscription {number} was damaged, and is gone (table damaged)",
}
_RENAME: Final = "UPDATE queue SET key = ?, name = ? WHERE id = ?"
# The versions since which the row of the store has these columns.
_WITH_IDENTITY: Final = 4
_WITH_CLOCK: Final = 5
_KEEP: Final = "INSERT INTO damaged (origin, content) VALUES (?, ?)"
_MARK_DAMAGED: Final = (
    f"UPDATE session SET checksum = ~{fitting('session')} WHERE queue = ? AND id = ?"
)
# Rows that depend on messages are derived from the messages.
_MEND: Final = f"""
DELETE FROM delivered WHERE sequence NOT IN (SELECT sequence FROM message);
INSERT INTO session (queue, id, first, updated)
    SELECT queue, session, min(sequence), 0 FROM message
    WHERE state = 0 AND session IS NOT NULL GROUP BY queue, session
    ON CONFLICT (queue, id) DO UPDATE SET first = excluded.first;
UPDATE store SET next_sequence = ? + max(
    next_sequence,
    coalesce((SELECT max(sequence) FROM message), 0),
    coalesce((SELECT max(sequence) FROM quarantine), 0)
);
DELETE FROM counter;
DELETE FROM drawn;
{COUNT_ANEW}
"""


@attrs.frozen(kw_only=True)
class Salvaged:
    """
    The contents of the new store, and the losses: `lost` names unreadable messages, up to a
    thousand; `remarks` say what else is missing or was replaced.
    """

    messages: int
    quarantined: int  # readable, but not as they were sent
    lost_messages: int
    lost: tuple[int, ...]
    remarks: tuple[str, ...]


def salvage(source: Path, target: Path, new_id: int, disk: Disk) -> Salvaged:
    """
    Make a store of all readable parts. Its messages are delivered again, including those that were
    about to be settled. The new store has the id `new_id` and uses new sequence numbers from now
    on.

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
        """Copy the table from its beginning up to the damage, and from its end back to it."""
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
        """
        The columns of the new table that the old one, possibly of an earlier version, has, too.
        """
        known = _names(self._old, _COLUMNS, table)
        return [name for name in _names(self._new, _COLUMNS, table) if name in known]

    def _insert(self, table: str, columns: Sequence[str], row: Sequence[Any]) -> None:
        """Insert the row if the new table can hold it: a value of a wrong type is refused."""
        places = ", ".join("?" * len(columns))
        statement = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})"
        with suppress(apsw.ConstraintError):
            self._new.execute(statement, tuple(row))

    def _has_checksums(self) -> bool:
        return "checksum" in _names(self._old, _COLUMNS, "queue")

    def _put_rows_aside(self) -> list[Any]:
        """
        Keep a copy of each damaged row of an entity or rule. Return the damaged sessions.

        An entity is kept with its readable parts. A rule is dropped, because it would route
        messages differently.
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
        """Give a damaged entity its name back, or a new name if another entity has it."""
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
        """Give unreadable entities default properties, and drop unreadable rules."""
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
        # The content of a message with unreadable texts may be intact.
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
        """Count the message if it is lost; quarantine it if it is damaged."""
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
        """
        Turn a subscription whose topic is lost into a queue, from which its messages can be
        received.
        """
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
        version = self._old.pragma("user_version")
        columns = "store_id, commits, next_sequence, survivors"
        columns += ", identity" if version >= _WITH_IDENTITY else ""
        columns += ", clock" if version >= _WITH_CLOCK else ""
        sound = f"WHERE checksum = row_checksum({columns})" if self._has_checksums() else ""
        # As in the migration.
        identity = "identity" if version >= _WITH_IDENTITY else "store_id"
        clock = "clock" if version >= _WITH_CLOCK else "x''"
        found = _Scan(self._old, f"SELECT next_sequence, {identity}, {clock} FROM store {sound}")
        for values in found:
            self._new.execute("UPDATE store SET next_sequence = ?, identity = ?, clock = ?", values)


@attrs.define(eq=False)
class _Scan:
    """The rows of a statement up to the first unreadable one."""

    _connection: apsw.Connection
    _statement: str
    _values: tuple[Any, ...] = ()
    ended: bool = False  # all rows were readable

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
