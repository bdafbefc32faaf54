"""
The checksum of a row that is no message: of the store itself, an entity, a rule, a session, an id
that was seen. (Of messages: `rows`.) SQL has it too, as a function of the same name.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import apsw

# Of each table the columns that the checksum of a row is of, in that order: all the others.
_COVERED: Final[Mapping[str, str]] = {
    "store": "store_id, commits, next_sequence, survivors",
    "queue": "id, key, name, kind, properties, created, updated, version",
    "rule": "queue, key, rule, filter_values, action_values",
    "session": "queue, id, first, state, updated",
    "seen": "queue, id, until",
}


def row_checksum(*values: Any) -> int:
    """Of integers, texts, bytes and NULLs, one after the other, each with its type and length."""
    checksum = 0
    for value in values:
        if value is None:
            part = b"-"
        elif isinstance(value, int):
            part = b"#%d;" % value
        elif isinstance(value, str):
            text = value.encode()
            part = b'"%d;%s' % (len(text), text)
        else:
            part = b"=%d;%s" % (len(value), value)
        checksum = zlib.crc32(part, checksum)
    return checksum


def teach(connection: apsw.Connection) -> None:
    """Have SQL on that connection know `row_checksum`."""
    connection.create_scalar_function("row_checksum", row_checksum, deterministic=True)


def fitting(table: str) -> str:
    """The SQL for the checksum that a row of that table should have."""
    return f"row_checksum({_COVERED[table]})"


def sealing(table: str) -> str:
    """The statement that gives each row of that table, as it stands, its checksum."""
    return f"UPDATE {table} SET checksum = {fitting(table)}"


SEALED: Final = tuple(_COVERED)  # the tables whose rows have one
