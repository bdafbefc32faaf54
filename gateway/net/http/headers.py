"""Converts header fields between text and bytes, in the same way for clients and servers."""

from collections.abc import Iterable

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
