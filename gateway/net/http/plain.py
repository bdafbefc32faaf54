"""
Parses the heads of requests as nearly all clients write them, without h11.

h11 takes a sixth of the time of a send over HTTP. It does little for such a request:
`gateway.net.http.guard` has found its end, and there is no coding, expectation or version to
handle.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

# Fields that change whether the connection continues, or how the body is encoded.
_TO_HEED: Final = re.compile(
    rb"\r\n(?:expect|transfer-encoding|upgrade|connection:(?![ \t]*keep-alive[ \t]*\r\n))",
    re.IGNORECASE,
)
# RFC 9110, 5.1 and 5.5; the guard has checked that each LF comes after a CR. Lines with other bytes
# are left to h11. Spaces around the value are stripped afterwards, since a pattern would scan them
# repeatedly.
_FIELD: Final = re.compile(
    rb"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\0-\x08\n-\x1f\x7f]*)\r\n", re.MULTILINE
)


class Head(NamedTuple):
    """The head of a request: the bytes as received, values without surrounding spaces."""

    method: bytes
    target: bytes
    fields: Sequence[tuple[bytes, bytes]]


def read_plain_head(head: bytes) -> Head | None:
    """
    Parse a head that `check_head` has accepted and that ends with its blank line.

    Returns None if it needs more than this: another version than HTTP/1.1, a chunked body, an
    expectation, a connection to be closed, or a field in an unusual form.
    """
    line, _, lines = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    if version != b"HTTP/1.1" or _TO_HEED.search(head):
        return None
    fields = _FIELD.findall(lines)
    if len(fields) != lines.count(b"\n") - 1:  # the last line is the blank one
        return None
    return Head(method, target, [(name, value.strip(b" \t")) for name, value in fields])
