"""Files that survive a crash: each is the old one or the new one, whole."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # the disk, or the user's share of it


def replace_file(place: Path, data: bytes) -> None:
    """
    Return when the file holds `data` durably, readable by its user alone. A crash before that
    leaves the old file, or none.

    Raises:
        OSError: it can't be written; the old file is as it was.
    """
    descriptor, beside = tempfile.mkstemp(prefix=".", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(place)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    sync_folder(place.parent)


def sync_folder(path: Path) -> None:
    """Return when the names of the folder's files are durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
