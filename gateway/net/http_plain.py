"""
The heads of requests as nearly all clients write them, read without h11.

h11 takes a sixth of all that a send over HTTP costs us. What it does for such a request is little:
`gateway.net.http_guard` has found its end, and there is no coding, expectation or version to heed.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

# What changes how a connection goes on, or how a body is to be read.
_TO_HEED: Final = re.compile(
    rb"\r\n(?:expect|transfer-encoding|upgrade|connection:(?![ \t]*keep-alive[ \t]*\r\n))",
    re.IGNORECASE,
)
# RFC 9110, 5.1 and 5.5; the guard has seen that each LF comes after a CR. What has other bytes is
# left to h11. The value's spaces are cut off afterwards: a pattern would look at them repeatedly.
_FIELD: Final = re.compile(
    rb"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\0-\x08\n-\x1f\x7f]*)\r\n", re.MULTILINE
)


class Head(NamedTuple):
    """Of a request: the bytes as they came, values without the spaces around them."""

    method: bytes
    target: bytes
    fields: Sequence[tuple[bytes, bytes]]


def read_plain_head(head: bytes) -> Head | None:
    """
    What a head says that `check_head` has let pass, and that ends with its blank line.

    None where it takes more than this: another version than HTTP/1.1, a body in chunks, an
    expectation, a connection that is to be closed, or a field that isn't written as most are.
    """
    line, _, lines = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    if version != b"HTTP/1.1" or _TO_HEED.search(head):
        return None
    fields = _FIELD.findall(lines)
    if len(fields) != lines.count(b"\n") - 1:  # the last one is the blank line's
        return None
    return Head(method, target, [(name, value.strip(b" \t")) for name, value in fields])
