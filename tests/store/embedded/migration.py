"""Parts of the tests of migration that other tests need, too."""

import zlib
from pathlib import Path

from gateway.domain.message import Message
from gateway.domain.topics.filters import Rule, SqlFilter
from gateway.store.embedded import schema, tables
from gateway.store.embedded.checksums import teach
from gateway.store.embedded.entities import write_rule
from gateway.wire.amqp.message import encode_message
from tests.store.embedded.stores import opened

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


# The statements that made version 2 of version 1.
ADDED_IN_2 = """
ALTER TABLE queue ADD COLUMN updated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN kind TEXT NOT NULL DEFAULT 'queue';
UPDATE queue SET updated = created;
ALTER TABLE message ADD COLUMN session TEXT;
ALTER TABLE message ADD COLUMN source TEXT;
CREATE INDEX message_session ON message (queue, session, sequence)
    WHERE state = 0 AND session IS NOT NULL;
CREATE TABLE session (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    first INTEGER,
    updated INTEGER NOT NULL,
    state BLOB,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_order ON session (queue, first) WHERE first IS NOT NULL;
CREATE INDEX session_name ON session (queue, id) WHERE first IS NOT NULL;
CREATE INDEX session_update ON session (queue, updated) WHERE state IS NOT NULL;
CREATE TABLE seen (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX seen_end ON seen (queue, until);
CREATE TABLE rule (
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    rule TEXT NOT NULL,
    filter_values BLOB NOT NULL,
    action_values BLOB NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
"""


def make_store_2(path: Path) -> None:
    """
    Make a store of version 2: the messages of version 1, sessions, known ids, and a subscription.
    """
    make_store_1(path)
    rule = Rule(name="Some", filter=SqlFilter(expression="a = 1"))
    with opened(path) as connection:
        connection.execute(f"PRAGMA user_version = 2; BEGIN; {ADDED_IN_2}")
        entities = [
            ("news", "topic", "{}"),
            ("news/subscriptions/reader", "subscription", "{}"),
            ("waiting", "queue", '{"requires_session": true}'),
            ("unique", "queue", '{"requires_duplicate_detection": true}'),
        ]
        for number, (name, kind, properties) in enumerate(entities, 2):
            values = (number, name, name, properties, 1, 1, 0, kind)
            connection.execute("INSERT INTO queue VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute("INSERT INTO rule VALUES (3, 'some', ?, ?, ?)", write_rule(rule))
        connection.execute("INSERT INTO session VALUES (4, 's', NULL, 5, x'0102')")
        connection.execute("INSERT INTO seen VALUES (5, 'a', ?)", (4 * 10**15,))
        connection.execute("COMMIT")


# The statements that make version 6 of version 7, version 5 of both, and version 4 of all three.
WITHOUT_7 = "DROP TABLE drawn;"
WITHOUT_6 = f"""
{WITHOUT_7}
DROP TABLE counter;
DROP INDEX message_number;
ALTER TABLE message DROP COLUMN number;
"""
WITHOUT_5 = f"""
{WITHOUT_6}
ALTER TABLE store DROP COLUMN clock;
DROP INDEX message_hidden;
DROP INDEX message_due;
CREATE INDEX message_due ON message (queue, due) WHERE due IS NOT NULL;
"""


def make_store_3(path: Path) -> None:
    """Make a store of version 3 with all that version 2 had."""
    make_store_2(path)
    with opened(path) as connection:
        teach(connection)
        connection.execute(f"BEGIN; {tables.MIGRATIONS[2]}")
        connection.execute(WITHOUT_5)
        connection.execute("ALTER TABLE store DROP COLUMN identity")
        connection.execute(
            "UPDATE store SET checksum ="
            " row_checksum(store_id, commits, next_sequence, survivors);"
            " PRAGMA user_version = 3; COMMIT"
        )


def make_store_4(path: Path) -> None:
    """Make a store of version 4 with all that version 3 had."""
    make_store_3(path)
    with opened(path) as connection:
        teach(connection)
        connection.execute(f"BEGIN; {tables.MIGRATIONS[3]}")
        connection.execute(WITHOUT_5)
        connection.execute(
            "UPDATE store SET checksum ="
            " row_checksum(store_id, commits, next_sequence, survivors, identity);"
            " PRAGMA user_version = 4; COMMIT"
        )


def make_store_5(path: Path) -> None:
    """Make a store of version 5 with all that version 4 had."""
    make_store_4(path)
    with opened(path) as connection:
        teach(connection)
        connection.execute(f"BEGIN; {tables.MIGRATIONS[4]}")
        connection.execute(f"{WITHOUT_6} PRAGMA user_version = 5; COMMIT")


def make_store_6(path: Path) -> None:
    """Make a store of version 6 with all that version 5 had."""
    make_store_5(path)
    with opened(path) as connection:
        teach(connection)
        connection.execute(f"BEGIN; {tables.MIGRATIONS[5]}")
        connection.execute(f"{WITHOUT_7} PRAGMA user_version = 6; COMMIT")


MAKERS = {
    1: make_store_1,
    2: make_store_2,
    3: make_store_3,
    4: make_store_4,
    5: make_store_5,
    6: make_store_6,
}
