"""
Reads and writes the heads of requests and responses as nearly all programs write them, without h11;
and converts fields between text and bytes, in the same way for clients and servers.

h11 takes a third of the time of a send over HTTP. It does little for such a head: its end is known,
and there is no coding, expectation or version to handle. A head that needs more, or that looks
unusual in any way, is left to h11: each function for a head returns None for it.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.wire.http.messages import Headers


def read_fields(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Names keep their case; values are decoded as UTF-8, or else as Latin-1."""
    items = tuple([(name.decode("ascii"), _to_text(value)) for name, value in raw])
    return Headers(items)


def written_fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """
    The reverse of `read_fields`, which reads the result as the same text.

    Raises:
        UnicodeError: a name beyond ASCII, or an unpaired surrogate in a value.
    """
    return [(name.encode("ascii"), _to_bytes(value)) for name, value in headers.items]


def _to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _to_bytes(text: str) -> bytes:
    """
    Latin-1 if it can encode the text and can't be mistaken for UTF-8, otherwise UTF-8.

    Most HTTP libraries send and read field values as Latin-1 (RFC 9110, 5.5), Python's among them,
    so a byte E9 that was received is sent as E9 again. Bytes that were received as UTF-8 are sent
    unchanged only if Latin-1 can't encode the text: both encodings of an "é" were decoded to the
    same text.
    """
    if text.isascii():
        return text.encode("ascii")
    encoded = text.encode("utf-8")
    try:
        narrow = text.encode("latin-1")
    except UnicodeEncodeError:
        return encoded
    return narrow if _to_text(narrow) == text else encoded


# Fields that decide whether the connection continues, or with which protocol.
_TO_HEED: Final = re.compile(
    rb"\r\n(?:expect|upgrade|connection:(?![ \t]*keep-alive[ \t]*\r\n))", re.IGNORECASE
)
_CODED: Final = re.compile(rb"\r\ntransfer-encoding", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*(?=\r\n)", re.IGNORECASE)
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")  # without extensions
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, 5.6.2
# RFC 9110, 5.1 and 5.5, for a text in which a character is a byte. Each LF must come after a CR.
# Spaces around the value are stripped afterwards, since a pattern would scan them repeatedly.
_FIELD: Final = re.compile(rf"^({_TOKEN}):([^\0-\x08\n-\x1f\x7f]*)\r\n", re.MULTILINE)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_NO_CONTENT: Final = b"204"  # such a response has no body, whatever its Content-Length is
_NOT_MODIFIED: Final = b"304"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)", re.IGNORECASE)
_LENGTHS: Final = re.compile(rb"\r\ncontent-length", re.IGNORECASE)
_REQUEST_LINE: Final = re.compile(rf"(?!CONNECT ){_TOKEN} [!-~]+ HTTP/1\.1")
_HOST: Final = re.compile(r"[!-~]+")
_NAME: Final = re.compile(_TOKEN)
# Fields that decide on the connection, on framing, or on the host: left to h11.
_DECIDING: Final = frozenset(
    ("connection", "content-length", "expect", "host", "transfer-encoding", "upgrade")
)
_FEW: Final = 3
# Neither begins nor ends with a space.
_VALUES: Final = re.compile(r"(?:(?:[!-~](?:[\t -~]*[!-~])?)?\r\n)*")


class RequestHead(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: Headers


class ResponseHead(NamedTuple):
    """The head of a response whose body has `length` bytes; None: the body is chunked."""

    status: int
    headers: Headers
    length: int | None


def read_plain_request(head: bytes) -> RequestHead | None:
    """
    Parse a head that `check_head` has accepted and that ends with its blank line.

    Returns None if it needs more than this: another version than HTTP/1.1, a chunked body, an
    expectation, a connection to be closed, or a field in an unusual form.
    """
    line, _, lines = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    if version != b"HTTP/1.1" or _TO_HEED.search(head) or _CODED.search(head):
        return None
    headers = _read_lines(lines)
    if headers is None:
        return None
    return RequestHead(method.decode("ascii"), target.decode("ascii"), headers)


def read_plain_response(head: bytes) -> ResponseHead | None:
    """
    Parse the head of a final response to a request other than HEAD; it ends with its blank line.

    Returns None if it needs more than this: another version than HTTP/1.1, an interim response, a
    body whose end isn't certain, a connection to be closed, or a line in an unusual form.
    """
    line, _, lines = head.partition(b"\r\n")
    status = _STATUS_LINE.fullmatch(line)
    if status is None or status[1] == _NOT_MODIFIED or _TO_HEED.search(head):
        return None
    lengths, codings = len(_LENGTHS.findall(head)), len(_CODED.findall(head))
    length = None
    if codings:
        is_chunked = codings == 1 and not lengths and _CHUNKED.search(head)
        if not is_chunked or status[1] == _NO_CONTENT:
            return None
    elif lengths or status[1] != _NO_CONTENT:
        found = _LENGTH.search(head)
        if found is None or lengths != 1:
            return None
        length = int(found[1])
    headers = _read_lines(lines)
    if headers is None:
        return None
    return ResponseHead(int(status[1]), headers, 0 if status[1] == _NO_CONTENT else length)


def read_chunks(data: bytes) -> bytes | None:
    """
    Decode a chunked body (RFC 9112, 7.1). Returns None if the data isn't exactly one whole body, or
    if it has extensions or trailers.
    """
    parts: list[bytes] = []
    place = 0
    while (size := _CHUNK_SIZE.match(data, place)) is not None:
        begin, end = size.end(), size.end() + int(size[1], 16)
        if data[end : end + 2] != b"\r\n":
            return None
        if begin == end:
            return b"".join(parts) if end + 2 == len(data) else None
        parts.append(data[begin:end])
        place = end + 2
    return None


def write_plain_request(
    method: str, target: str, host: str, fields: Sequence[tuple[str, str]], length: int | None
) -> bytes | None:
    """
    Build the head of a request, with Host and, if there is a length, Content-Length.

    Returns None if a text isn't plain ASCII, or if a field decides on more than the message.
    """
    line, lines = f"{method} {target} HTTP/1.1", write_plain_fields(fields)
    if lines is None or not _REQUEST_LINE.fullmatch(line) or not _HOST.fullmatch(host):
        return None
    end = "\r\n" if length is None else f"Content-Length: {length}\r\n\r\n"
    return f"{line}\r\nHost: {host}\r\n{lines}{end}".encode("ascii")


def write_plain_fields(fields: Sequence[tuple[str, str]]) -> str | None:
    """
    Build the lines of these fields.

    Returns None if a text isn't plain ASCII, or if a field decides on more than the message.
    """
    if len(fields) <= _FEW:
        return _write_few(tuple(fields))
    return _write_fields(fields)


@functools.lru_cache(maxsize=64)
def _write_few(fields: tuple[tuple[str, str], ...]) -> str | None:
    """Cached, because the answers to all sends have the same few fields."""
    return _write_fields(fields)


def _write_fields(fields: Sequence[tuple[str, str]]) -> str | None:
    values = "".join([f"{value}\r\n" for _, value in fields])
    # A line end in a value would inject a field, and possibly a message.
    if values.count("\n") != len(fields) or not _VALUES.fullmatch(values):
        return None
    if not all(map(_is_plain_name, [name for name, _ in fields])):
        return None
    return "".join([f"{name}: {value}\r\n" for name, value in fields])


@functools.lru_cache(maxsize=1024)
def _is_plain_name(name: str) -> bool:
    """Cached, because nearly all messages have the same names."""
    return _NAME.fullmatch(name) is not None and name.lower() not in _DECIDING


def _read_lines(lines: bytes) -> Headers | None:
    """The fields in the lines after the first one, which end with the blank line."""
    fields = _FIELD.findall(lines.decode("latin-1"))
    # The last line is the blank one.
    if len(fields) != lines.count(b"\n") - 1 or lines.count(b"\r") != lines.count(b"\n"):
        return None
    if not lines.isascii():
        return read_fields(
            (name.encode("ascii"), value.strip(" \t").encode("latin-1")) for name, value in fields
        )
    return Headers(tuple([(name, value.strip(" \t")) for name, value in fields]))
