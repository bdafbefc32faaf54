"""A store of an earlier version is opened, and keeps what it holds."""

import zlib
from pathlib import Path

from gateway.brokers.embedded import schema
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from gateway.wire.amqp.message import encode_message
from tests.brokers.embedded.stores import ORDERS, embedded, opened, stored_ids

# As version 1 made them.
TABLES_1 = """
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    name TEXT NOT NULL,
    properties TEXT NOT NULL,
    created INTEGER NOT NULL
) STRICT;
CREATE TABLE message (
    sequence INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    enqueued INTEGER NOT NULL,
    due INTEGER,
    expires INTEGER,
    original INTEGER,
    size INTEGER NOT NULL,
    reason TEXT,
    description TEXT,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
) STRICT;
CREATE INDEX message_order ON message (queue, state, sequence, size);
CREATE INDEX message_due ON message (queue, due) WHERE due IS NOT NULL;
CREATE INDEX message_expiry ON message (queue, expires) WHERE state = 0 AND expires IS NOT NULL;
CREATE TABLE delivered (
    sequence INTEGER PRIMARY KEY,
    times INTEGER NOT NULL
) STRICT;
CREATE TABLE quarantine (
    sequence INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
) STRICT;
"""


def make_store_1(path: Path) -> None:
    with opened(path) as connection:
        connection.execute("PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = 1; BEGIN; {TABLES_1}")
        connection.execute("INSERT INTO store VALUES (1, 7, 0, 4)")
        connection.execute(
            "INSERT INTO queue VALUES (1, 'orders', 'Orders', ?, 1000)",
            ('{"max_delivery_count": 7, "lock_duration": 30000000}',),
        )
        for number in (1, 2, 3):
            content = encode_message(Message(message_id=str(number)))
            state = 2 if number == 3 else 0
            reason = "bad" if number == 3 else None
            connection.execute(
                "INSERT INTO message VALUES (?, 1, ?, 1, NULL, NULL, NULL, ?, ?, ?, ?, ?)",
                (number, state, len(content), reason, reason, zlib.crc32(content, 1), content),
            )
        connection.execute("INSERT INTO delivered VALUES (2, 5); COMMIT")


def columns(path: Path) -> dict[str, set[str]]:
    with opened(path) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [name for (name,) in tables if not name.startswith("sqlite_")]
        return {
            name: {
                f"{column} {kind} {required}"
                for _, column, kind, required, *_ in connection.execute(
                    f"PRAGMA table_info({name})"
                )
            }
            for name in names
        }


def indexes(path: Path) -> set[str]:
    with opened(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")
        return {name for (name,) in found}


async def test_a_store_of_version_1_keeps_its_messages(tmp_path):
    make_store_1(tmp_path / "a.db")
    async with embedded(tmp_path) as broker:
        info = await broker.inspect(ORDERS)
        found = await stored_ids(broker)
        [dead] = await broker.peek(ORDERS.dead_letter)
        async with broker.open_receiver(ORDERS) as receiver:
            taken = await receiver.receive(2)
            await receiver.settle(taken[0], Complete())
        await broker.send(ORDERS, [Message(message_id="new", session_id="s")])
    async with embedded(tmp_path) as broker:
        left = await stored_ids(broker)

    assert found == ["1", "2"]
    assert [delivery.delivery_count for delivery in taken] == [1, 6]
    assert dead.message.properties["DeadLetterReason"] == "bad"
    assert (info.properties.max_delivery_count, info.version) == (7, 0)
    assert info.updated == info.created
    assert left == ["2", "new"]


async def test_a_migrated_store_is_as_a_new_one(tmp_path):
    make_store_1(tmp_path / "a.db")
    schema.create(tmp_path / "new.db", 7)
    async with embedded(tmp_path) as broker:
        await broker.send(EntityPath("other"), [Message()])

    assert columns(tmp_path / "a.db") == columns(tmp_path / "new.db")
    assert indexes(tmp_path / "a.db") == indexes(tmp_path / "new.db")


def test_a_migration_that_was_cut_short_begins_again(tmp_path):
    make_store_1(tmp_path / "a.db")
    with opened(tmp_path / "a.db") as connection:
        connection.execute("BEGIN")
        connection.execute(schema.MIGRATIONS[1])
        connection.execute("ROLLBACK")
    connection = schema.connect(tmp_path / "a.db")
    version = connection.pragma("user_version")
    connection.close()

    assert version == schema.VERSION
