"""
Files that survive a crash: each is the old one or the new one, whole. And their folders, to which
no other user of the machine leads.
"""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # the disk, or the user's share of it

_MOST_LINKS: Final = 40  # on the way to a folder; Linux follows no more


def make_private_folder(path: Path) -> None:
    """
    Create the folder, accessible for this user only; an existing one is left as it is.

    Raises:
        OSError: as `refuse_foreign_link`, or the folder can't be created.
    """
    refuse_foreign_link(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def refuse_foreign_link(path: Path) -> None:
    """
    Return if only symbolic links of this user and of root are on the way to `path`, as those of
    systemd and of operators who put a folder on another disk.

    Raises:
        OSError: another user's link is on the way, or links form a circle.
    """
    link = foreign_link(path, frozenset({0, os.geteuid()}))
    if link is not None:
        owner = link.lstat().st_uid
        text = f"this symbolic link belongs to another user ({owner}), who may change it"
        raise OSError(errno.EPERM, text, str(link))


def foreign_link(path: Path, trusted: frozenset[int]) -> Path | None:
    """
    The first symbolic link on the way to `path` whose owner isn't among the `trusted` ones; None:
    there is none. Raises OSError for a circle of links.
    """
    path = path.absolute()
    for _ in range(_MOST_LINKS):
        places = [*reversed(path.parents), path]
        link = next((each for each in places if each.is_symlink()), None)
        if link is None:
            return None
        if link.lstat().st_uid not in trusted:
            return link
        path = link.parent / link.readlink() / path.relative_to(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


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
