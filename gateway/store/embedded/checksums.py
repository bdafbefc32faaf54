"""
The checksum of a row that isn't a message: of the store itself, an entity, a rule, a session or a
seen id. (For messages see `rows`.) SQL has it, too, as a function of the same name.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import apsw

# For each table, the columns that the checksum covers, in this order: all columns but the checksum.
_COVERED: Final[Mapping[str, str]] = {
    "store": "store_id, commits, next_sequence, survivors, identity, clock",
    "queue": "id, key, name, kind, properties, created, updated, version",
    "rule": "queue, key, rule, filter_values, action_values",
    "session": "queue, id, first, state, updated",
    "seen": "queue, id, until",
    "counter": "queue, active, dead, transfer",
    "drawn": "id, counters",
}


def row_checksum(*values: Any) -> int:
    """
    The checksum over integers, texts, bytes and NULLs in this order, each with its type and length.
    """
    # Most are integers; one checksum of all parts takes half as long as one after another.
    return zlib.crc32(b"".join([b"#%d;" % v if type(v) is int else _encoded(v) for v in values]))


def _encoded(value: Any) -> bytes:
    if value is None:
        return b"-"
    if isinstance(value, int):
        return b"#%d;" % value
    if isinstance(value, str):
        text = value.encode()
        return b'"%d;%s' % (len(text), text)
    return b"=%d;%s" % (len(value), value)


def teach(connection: apsw.Connection) -> None:
    """Register `row_checksum` as an SQL function on this connection."""
    connection.create_scalar_function("row_checksum", row_checksum, deterministic=True)


def fitting(table: str) -> str:
    """The SQL expression for the correct checksum of a row of that table."""
    return f"row_checksum({_COVERED[table]})"


def sealing(table: str) -> str:
    """The SQL statement that sets the checksum of each row of that table as it is now."""
    return f"UPDATE {table} SET checksum = {fitting(table)}"


SEALED: Final = tuple(_COVERED)  # the tables whose rows have a checksum
