"""zstd, in whole pieces and never larger than was said. What is large is done in a thread."""

from collections.abc import Callable
from typing import Final, TypeVar

import trio
import zstandard

from gateway.domain.errors import MessageError

T = TypeVar("T")
LEVEL: Final = 3
MAX_WINDOW: Final = 128 * 1024 * 1024  # bytes; what level 19 of zstd asks for is less
INLINE: Final = 256 * 1024  # bytes: a millisecond's work, which takes longer to hand over


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


def decompressed(data: bytes, size: int) -> bytes:
    """
    Exactly `size` bytes; no more than that are ever made, whatever the data claims.

    Raises:
        MessageError: the data isn't compressed, is cut, or has another size.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        with decompressor.stream_reader(data) as reader:
            found = reader.read(size + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise MessageError(f"it can't be decompressed: {error}") from error
    if len(found) != size:
        more = "more than " if len(found) > size else ""
        raise MessageError(f"{size} bytes expected, found {more}{min(len(found), size)}")
    return found


async def in_thread(size: int, work: Callable[[], T]) -> T:
    """Do that at once if it's about few bytes; else in a thread, which a cancellation waits for."""
    if size <= INLINE:
        await trio.lowlevel.checkpoint()
        return work()
    return await trio.to_thread.run_sync(work)
