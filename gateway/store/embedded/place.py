"""Checks whether a store can keep its promises on the file system where it is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.store.embedded.files import Disk, StoreError, StoreLock

# File systems where another machine decides about locks and syncs: SQLite advises against them.
_REMOTE: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "fuse.glusterfs",
        "fuse.sshfs",
    }
)
_DOUBTFUL: Final = {
    "tmpfs": "in memory: it ends with the machine",
    "ramfs": "in memory: it ends with the machine",
    "overlay": "in a container's own layer: it ends with the container; mount a volume",
    "9p": "shared by a host, whose syncs may promise less than a disk's",
    "virtiofs": "shared by a host, whose syncs may promise less than a disk's",
}
_FASTEST_DISK: Final = 20e-6  # seconds per sync; in memory a sync takes 1 µs


def doubts(path: Path, lock: StoreLock, disk: Disk) -> Iterator[str]:
    """
    Yield the doubts about the folder and the file system of a locked store.

    Raises:
        StoreError: the store is on a network file system.
    """
    kind = disk.file_system(path.parent)
    if kind in _REMOTE:
        raise StoreError(
            f"{path}: on a network file system ({kind}) neither locks nor syncs are reliable;"
            " put the store on a disk of this machine"
        )
    found = path.parent.stat()
    if found.st_mode & stat.S_IWOTH:
        yield (
            f"{path.parent}: every user of this machine can change this folder (mode"
            f" {stat.S_IMODE(found.st_mode):04o}), and with it the store; run chmod o-w on it"
        )
    elif found.st_uid not in {0, os.geteuid()}:
        yield f"{path.parent} belongs to another user ({found.st_uid}), who can change the store"
    if kind in _DOUBTFUL:
        yield f"{path} is on {kind}, {_DOUBTFUL[kind]}"
    elif (seconds := disk.sync_seconds(lock.file)) < _FASTEST_DISK:
        yield (
            f"{path}: a sync takes {seconds * 1e6:.0f} µs, which no disk can do:"
            " a power cut may lose acknowledged messages"
        )
