"""Header fields between text and bytes, the same for both sides of a connection."""

from collections.abc import Iterable

from gateway.wire.http import Headers


def read_fields(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Names keep their case; values are UTF-8, or Latin-1 where they can't be that."""
    items = tuple([(name.decode("ascii"), _to_text(value)) for name, value in raw])
    return Headers(items)


def written_fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """
    The other way: whatever this returns, `read_fields` reads as the same text.

    Raises:
        UnicodeError: a name beyond ASCII, or half of a surrogate pair in a value.
    """
    return [(name.encode("ascii"), _to_bytes(value)) for name, value in headers.items]


def _to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _to_bytes(text: str) -> bytes:
    """
    Latin-1 if it holds the text and can't be taken for UTF-8, otherwise UTF-8.

    Most HTTP libraries send and read field values as Latin-1 (RFC 9110, 5.5), Python's among
    them, so what came as the byte E9 goes out as E9. Bytes that came as UTF-8 go out unchanged
    only if Latin-1 can't hold the text: both forms of an "é" are the same text by then.
    """
    if text.isascii():
        return text.encode("ascii")
    encoded = text.encode("utf-8")
    try:
        narrow = text.encode("latin-1")
    except UnicodeEncodeError:
        return encoded
    return narrow if _to_text(narrow) == text else encoded
