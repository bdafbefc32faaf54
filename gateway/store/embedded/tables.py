"""The tables of a store, and their migrations from earlier versions."""

from collections.abc import Mapping
from typing import Final

from gateway.store.embedded.checksums import SEALED, fitting, sealing

VERSION: Final = 7  # raised by one with each entry of `MIGRATIONS`

# A message that is hidden has a stamp (see `Row`), and is due at an own date of the store; one that
# is scheduled, at a date of the wall clock.
HIDDEN: Final = "due IS NOT NULL AND original >= sequence"
SCHEDULED: Final = "due IS NOT NULL AND (original IS NULL OR original < sequence)"
_DUE: Final = f"""
CREATE INDEX message_due ON message (queue, due) WHERE {SCHEDULED};
CREATE INDEX message_hidden ON message (queue, due) WHERE {HIDDEN};
"""

# `store_id` differs in each copy, because a log belongs to one file; `identity` is the same in all
# copies, because they are one namespace. If `survivors` is null, the store is open or wasn't closed
# in order. `clock` is a `ClockNote`. A queue without a key is deleted, and its messages are deleted
# in the background. The delivery count of a message is in a narrow table of its own: to change a
# number in the message's row, SQLite would write the whole body again. `quarantine` and `damaged`
# are for an operator: messages that were set aside, and what a salvage found of other rows, as SQL
# literals.
#
# A message has a `sequence` in the whole store and the `number` in its queue or sub-queue that
# clients see. In a row of version 5 or earlier that is its sequence, and `number` is null. A row of
# `counter` has the next number of a queue and of its sub-queues. A row of `drawn` has those that
# one commit has changed, as JSON: arrays of the values of `counter`. The highest ones are valid.
_SINCE_1: Final = f"""
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store_id INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    survivors INTEGER,
    checksum INTEGER NOT NULL DEFAULT 0,
    identity INTEGER NOT NULL DEFAULT 0,
    clock BLOB NOT NULL DEFAULT x''
) STRICT;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    name TEXT NOT NULL,
    properties TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL DEFAULT 'queue',
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE message (
    sequence INTEGER PRIMARY KEY,
    number INTEGER,
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    enqueued INTEGER NOT NULL,
    due INTEGER,
    expires INTEGER,
    original INTEGER,
    size INTEGER NOT NULL,
    reason TEXT,
    description TEXT,
    session TEXT,
    source TEXT,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
) STRICT;
CREATE INDEX message_order ON message (queue, state, sequence, size);
{_DUE}
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

_SINCE_2: Final = """
CREATE INDEX message_session ON message (queue, session, sequence)
    WHERE state = 0 AND session IS NOT NULL;
CREATE TABLE session (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    first INTEGER,
    updated INTEGER NOT NULL,
    state BLOB,
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_order ON session (queue, first) WHERE first IS NOT NULL;
CREATE INDEX session_name ON session (queue, id) WHERE first IS NOT NULL;
CREATE INDEX session_update ON session (queue, updated) WHERE state IS NOT NULL;
CREATE TABLE seen (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX seen_end ON seen (queue, until);
CREATE TABLE rule (
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    rule TEXT NOT NULL,
    filter_values BLOB NOT NULL,
    action_values BLOB NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
"""

_SINCE_3: Final = """
CREATE TABLE damaged (
    id INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT;
"""

_NEW_IN_6: Final = """
CREATE INDEX message_number ON message (queue, state, coalesce(number, sequence));
CREATE TABLE counter (
    queue INTEGER PRIMARY KEY,
    active INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    transfer INTEGER NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
"""

_NEW_IN_7: Final = """
CREATE TABLE drawn (
    id INTEGER PRIMARY KEY,
    counters TEXT NOT NULL,
    checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
"""

TABLES: Final = _SINCE_1 + _SINCE_2 + _SINCE_3 + _NEW_IN_6 + _NEW_IN_7
_SEAL: Final = ";\n".join(map(sealing, SEALED))

# A counter that is lost begins with a number that nothing in the store ever had.
COUNT_ANEW: Final = f"""
INSERT INTO counter (queue, active, dead, transfer)
    SELECT queue.id, next_sequence, next_sequence, next_sequence FROM queue, store;
{sealing("counter")};
"""

_SINCE_6: Final = f"""
ALTER TABLE message ADD COLUMN number INTEGER;
{_NEW_IN_6}
{COUNT_ANEW}
{_NEW_IN_7}
"""

_SINCE_5: Final = f"""
ALTER TABLE store ADD COLUMN clock BLOB NOT NULL DEFAULT x'';
DROP INDEX message_due;
{_DUE}
{_SINCE_6}
"""

_SINCE_4: Final = f"""
ALTER TABLE store ADD COLUMN identity INTEGER NOT NULL DEFAULT 0;
UPDATE store SET identity = store_id;
{_SINCE_5}
"""

# From each earlier version to this one.
MIGRATIONS: Final[Mapping[int, str]] = {
    1: f"""
ALTER TABLE queue ADD COLUMN updated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN kind TEXT NOT NULL DEFAULT 'queue';
UPDATE queue SET updated = created;
ALTER TABLE message ADD COLUMN session TEXT;
ALTER TABLE message ADD COLUMN source TEXT;
ALTER TABLE store ADD COLUMN survivors INTEGER;
ALTER TABLE store ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
{_SINCE_2}
{_SINCE_3}
{_SINCE_4}
{_SEAL};
""",
    2: f"""
ALTER TABLE store ADD COLUMN survivors INTEGER;
ALTER TABLE store ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE seen ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rule ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
{_SINCE_3}
{_SINCE_4}
{_SEAL};
""",
    # A wrong checksum stays wrong.
    3: f"""
{_SINCE_4}
UPDATE store SET checksum = {fitting("store")}
    WHERE checksum = row_checksum(store_id, commits, next_sequence, survivors);
""",
    4: f"""
{_SINCE_5}
UPDATE store SET checksum = {fitting("store")}
    WHERE checksum = row_checksum(store_id, commits, next_sequence, survivors, identity);
""",
    5: _SINCE_6,
    6: _NEW_IN_7,
}
