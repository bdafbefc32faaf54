"""Bodies that arrive in parts."""

from typing import Final

SMALL: Final = 4096  # bytes: a hundred times what a part takes beside its own bytes


def add_part(parts: list[bytes], data: bytes) -> None:
    """
    Append the next part of a body; to the last part, as long as both together are small.

    A peer may send a body byte by byte. Each part takes some 40 bytes more than its own, so that
    kept as they come, the parts would take many times the memory that limits of bytes allow.
    """
    if parts and len(parts[-1]) + len(data) <= SMALL:
        parts[-1] += data
    else:
        parts.append(data)
