"""
zstd for whole bodies, never decompressed to more than the stated size. Large bodies are processed
in a thread.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio
import zstandard

from gateway.domain.errors import MessageError, Unavailable, starting_thread

T = TypeVar("T")
LEVEL: Final = 3  # zstd's default: slower levels save a few percent
MAX_WINDOW: Final = 128 * 1024 * 1024  # bytes; zstd at level 19 needs less
# bytes: about a millisecond of work, less than handing it to a thread takes
INLINE: Final = 256 * 1024


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


def decompressed(data: bytes, size: int) -> bytes:
    """
    Decompress to exactly `size` bytes; never more, whatever the data claims.

    Raises:
        MessageError: the data isn't compressed, is truncated, or has another size.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        with decompressor.stream_reader(data) as reader:
            found = reader.read(size + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise MessageError(f"the body can't be decompressed: {error}") from error
    if len(found) != size:
        more = "more than " if len(found) > size else ""
        raise MessageError(f"{size} bytes expected, found {more}{min(len(found), size)}")
    return found


async def in_thread(size: int, work: Callable[[], T]) -> T:
    """
    Call `work` at once if it processes few bytes; else in a thread, for which a cancellation waits.

    Raises:
        Unavailable: no thread can be started.
    """
    if size <= INLINE:
        return work()
    try:
        with starting_thread():
            return await trio.to_thread.run_sync(work)
    except OSError as error:
        raise Unavailable(f"a body can't be compressed or read: {error.strerror}") from error
