"""
Versioned values in a folder, a file for each.

    .lock              held while a value is written
    orders%2F17        the value of the key `orders/17`, after a line with its ETag
    .xyz... a value being written; a crash may leave the file, which has no meaning
"""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, unquote

import attrs

from gateway.domain.errors import (
    InvalidRequest,
    PreconditionFailed,
    StorageFull,
    Unavailable,
)
from gateway.durable import FULL, replace_file, sync_folder
from gateway.listening.stores.in_thread import InThread
from gateway.ports import ABSENT, ANY

T = TypeVar("T")

_MOST: Final = 240  # characters of a file's name
_ETAG_BYTES: Final = 16  # random ones: none repeats


@attrs.define(eq=False)
class FolderValues(InThread):
    """
    Implements `Versioned` of `bytes` or None for the processes of one machine. The folder is made
    if it is missing.

    A write is durable when it returns. A cancellation waits for the write under way.

    Raises:
        InvalidRequest: the key is too long for the name of a file.
        Unavailable: the folder can't be read or written.
        StorageFull: the disk is full.
    """

    path: Path

    def _in_words(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            kind = StorageFull if error.errno in FULL else Unavailable
            raise kind(f"{error.filename or self.path}: {error.strerror}") from error

    def _read(self, key: str) -> tuple[bytes | None, str]:
        try:
            etag, _, value = self._place(key).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None, ABSENT
        return value, etag.decode("ascii", errors="replace")

    def _write(self, key: str, value: bytes | None, if_match: str) -> str:
        place = self._place(key)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone():
            etag = self._read(key)[1]
            if if_match not in (ANY, etag):
                raise PreconditionFailed(f"{key}: ETag {if_match!r} expected, it has {etag!r}")
            if value is None:
                place.unlink(missing_ok=True)
                sync_folder(self.path)
                new = ABSENT
            else:
                new = secrets.token_hex(_ETAG_BYTES)
                replace_file(place, b"%b\n%b" % (new.encode(), value))
        return new

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude all other writers, in this process and in others."""
        with (self.path / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _keys(self, prefix: str) -> Sequence[str]:
        if not self.path.exists():
            return []
        names = [name for name in os.listdir(self.path) if not name.startswith(".")]
        return sorted(key for name in names if (key := unquote(name)).startswith(prefix))

    def _place(self, key: str) -> Path:
        name = quote(key, safe="").replace(".", "%2E")
        if not 1 <= len(name) <= _MOST:
            raise InvalidRequest(f"key {key[:60]!r}: 1 to {_MOST} characters expected, once quoted")
        return self.path / name
