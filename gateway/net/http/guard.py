"""
Checks on the raw bytes of a request, for cases that h11 accepts and a gateway must not.

h11 0.16 accepts Content-Length beside Transfer-Encoding, bare LF, folded lines, targets of any form
and unbounded chunk extensions. Requests can be smuggled if two parsers disagree on where a request
ends, so an ambiguous request is refused here, and its connection closed.
"""

import enum
import re
from typing import Protocol

import attrs

MAX_HEAD = 16 * 1024
MAX_FIELDS = 100
MAX_CHUNK_EXTENSION = 256
MAX_TRAILERS = 4 * 1024
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])")
# Without a user, which would be a second way to name the host (RFC 9110, 4.2.4).
ABSOLUTE = re.compile(rb"https?://([^/?#@]+)([/?].*)?", re.IGNORECASE)
_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LOOSE_CONTROL = re.compile(rb"\0|(?<!\r)\n|\r(?!\n|\Z)")
# A segment of one or two dots, in any encoding of the dots and the surrounding slashes.
_DOT_SEGMENT = re.compile(
    rb"(?:/|\\|%2f|%5c)(?:\.|%2e){1,2}(?=/|\\|%2f|%5c|\Z)",
    re.IGNORECASE,
)
_DECIDING_FIELD = re.compile(
    rb"\r\n(host|content-length|transfer-encoding|content-encoding|expect):"
    rb"([^\r]*)",
    re.IGNORECASE,
)
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]{0,%d})?" % MAX_CHUNK_EXTENSION)
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
_MAX_LINE = 512  # for a chunk's size with its extension, and for a trailer


class RequestRefused(Exception):
    """The request is answered with this status and text, and its connection ends."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_unfinished_head(buffer: bytearray, new_from: int, max_head: int = MAX_HEAD) -> None:
    """
    Refuse early a head that can't become valid; bytes before `new_from` were checked before.

    Without this, a request with bare LF, or of another protocol, would wait for its deadline.
    """
    _check_size(buffer, max_head)
    if _LOOSE_CONTROL.search(buffer, max(new_from - 1, 0)):
        raise RequestRefused(400, "Lines end with CRLF; a CR, LF or NUL stands alone.")
    line_end = buffer.find(b"\r\n", max(new_from - 1, 0))
    if line_end >= 0 and buffer.find(b"\r\n", 0, line_end + 1) < 0:  # the first line's end
        _check_request_line(bytes(buffer[:line_end]))


def check_head(head: bytes, max_body: int, max_head: int = MAX_HEAD) -> "Framing":
    """
    Check a complete head, including its blank line. Return how its body is delimited.

    Raises:
        RequestRefused: 400; or 413, 414, 415, 417, 431, 501 if more specific.
    """
    _check_size(head, max_head)
    line_ends = head.count(b"\r\n")
    if head.count(b"\n") != line_ends or head.count(b"\r") != line_ends or b"\0" in head:
        raise RequestRefused(400, "Lines end with CRLF; a CR, LF or NUL stands alone.")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise RequestRefused(400, "A header field is folded over several lines.")
    if line_ends > MAX_FIELDS + 2:
        raise RequestRefused(431, f"The request has more than {MAX_FIELDS} header fields.")
    version = _check_request_line(head[: head.index(b"\r\n")])
    return _framing(_deciding_fields(head), version, max_body)


def check_fields(head: bytes) -> None:
    """
    Refuse control characters in a head that `heads` doesn't parse, because h11 accepts them.

    Raises:
        RequestRefused: 400.
    """
    if _CONTROL.search(head):
        raise RequestRefused(400, "A header field has a control character.")


def _check_size(head: bytes | bytearray, max_head: int) -> None:
    if len(head) <= max_head:
        return
    if head.find(b"\r\n", 0, max_head) < 0:
        raise RequestRefused(414, "The request's target is too long.")
    raise RequestRefused(431, f"The request's head is above {max_head} bytes.")


def _check_request_line(line: bytes) -> bytes:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise RequestRefused(400, "The request line is malformed.")
    method, target, version = match.groups()
    if method not in METHODS:
        if method.upper() in METHODS:
            raise RequestRefused(400, "Methods are written in capitals.")
        raise RequestRefused(501, "The method is not known.")
    is_place = target.startswith(b"/") or ABSOLUTE.fullmatch(target)
    if not is_place and (method, target) != (b"OPTIONS", b"*"):
        raise RequestRefused(400, "The request target is neither a path nor a URL.")
    if _DOT_SEGMENT.search(target.partition(b"?")[0]):
        raise RequestRefused(400, "The path has a dot segment.")
    return version


def _deciding_fields(head: bytes) -> dict[bytes, bytes]:
    """The fields that decide on framing, each at most once."""
    fields: dict[bytes, bytes] = {}
    for match in _DECIDING_FIELD.finditer(head):
        name = match[1].lower()
        if name in fields:
            raise RequestRefused(400, f"The field {name.decode()} is given twice.")
        fields[name] = match[2].strip(b" \t").lower()
    return fields


def _framing(fields: dict[bytes, bytes], version: bytes, max_body: int) -> "Framing":
    if version == b"1" and b"host" not in fields:
        raise RequestRefused(400, "The Host field is missing.")
    if fields.get(b"expect", b"100-continue") != b"100-continue":
        raise RequestRefused(417, "The only expectation that can be met is 100-continue.")
    if fields.get(b"content-encoding", b"identity") not in (b"identity", b""):
        raise RequestRefused(415, "Compressed bodies are not taken.")
    coding = fields.get(b"transfer-encoding")
    length = fields.get(b"content-length")
    if coding is not None:
        if length is not None or version == b"0":
            raise RequestRefused(400, "Transfer-Encoding beside Content-Length, or in HTTP/1.0.")
        if coding != b"chunked":
            raise RequestRefused(400, "The only transfer coding is chunked.")
        return ChunkedFraming(max_body)
    return LengthFraming(_parse_length(length, max_body))


def _parse_length(length: bytes | None, max_body: int) -> int:
    if length is None:
        return 0
    if not length.isdigit():
        raise RequestRefused(400, "Content-Length is not a number.")
    # The length is checked first: int() of a thousand digits takes time, and above 4300 raises.
    if not _CONTENT_LENGTH.fullmatch(length) or int(length) > max_body:
        raise RequestRefused(413, f"The request's body is above {max_body} bytes.")
    return int(length)


class Framing(Protocol):
    """Finds the end of one request's body."""

    @property
    def complete(self) -> bool:
        """True if all bytes of the body were taken."""

    def consume(self, buffer: bytearray) -> bytes:
        """
        Cut the bytes of the body, still encoded, off the front of `buffer`.

        Raises:
            RequestRefused: 400 or 413.
        """


@attrs.define
class LengthFraming:
    """A body of a known number of bytes."""

    remaining: int

    @property
    def complete(self) -> bool:
        return self.remaining == 0

    def consume(self, buffer: bytearray) -> bytes:
        taken = bytes(buffer[: self.remaining])
        del buffer[: len(taken)]
        self.remaining -= len(taken)
        return taken


class ChunkPart(enum.Enum):
    """The next part of a chunked body (RFC 9112, 7.1)."""

    SIZE = "size"  # 1F;extension CRLF
    DATA = "data"  # that many bytes, and CRLF
    TRAILER = "trailer"  # fields, each with CRLF
    END = "end"  # after the blank line


@attrs.define
class ChunkedFraming:
    """
    A chunked body. h11 decodes it; this class finds its end, and limits the parts that h11 skips.
    """

    max_body: int
    body_size: int = 0
    _part: ChunkPart = ChunkPart.SIZE
    _data_left: int = 0
    _skipped: int = 0  # sizes, extensions and line ends
    _trailer_size: int = 0

    @property
    def complete(self) -> bool:
        return self._part is ChunkPart.END

    def consume(self, buffer: bytearray) -> bytes:
        position = 0
        while self._part is not ChunkPart.END:
            step = self._data_step if self._part is ChunkPart.DATA else self._line_step
            after = step(buffer, position)
            if after == position:
                break
            position = after
        taken = bytes(buffer[:position])
        del buffer[:position]
        return taken

    def _data_step(self, buffer: bytearray, start: int) -> int:
        end = min(start + self._data_left, len(buffer))
        self._data_left -= end - start
        if self._data_left == 0:
            self._part = ChunkPart.SIZE
        return end

    def _line_step(self, buffer: bytearray, start: int) -> int:
        end = buffer.find(b"\r\n", start)
        if (len(buffer) if end < 0 else end) - start > _MAX_LINE:
            raise RequestRefused(400, "A line between chunks is too long.")
        if end < 0:
            if buffer.find(b"\n", start) >= 0:
                raise RequestRefused(400, "Lines between chunks end with CRLF.")
            return start
        line = bytes(buffer[start:end])
        if self._part is ChunkPart.SIZE:
            self._begin_chunk(line)
        elif line:
            self._count_trailer(line)
        else:
            self._part = ChunkPart.END
        return end + 2

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise RequestRefused(400, "A chunk's size is malformed.")
        size = int(match[1], 16)
        self.body_size += size
        self._skipped += len(line) + 4
        if self.body_size > self.max_body:
            raise RequestRefused(413, f"The request's body is above {self.max_body} bytes.")
        # The smallest honest chunk has one byte of data in six; extensions must not reduce that to
        # one in 270.
        if self._skipped > MAX_HEAD + 8 * self.body_size:
            raise RequestRefused(400, "The chunks are mostly overhead.")
        self._data_left = size + 2
        self._part = ChunkPart.DATA if size else ChunkPart.TRAILER

    def _count_trailer(self, line: bytes) -> None:
        self._trailer_size += len(line)
        if self._trailer_size > MAX_TRAILERS or not _TRAILER_LINE.fullmatch(line):
            raise RequestRefused(400, "The fields after the last chunk are malformed or too long.")
