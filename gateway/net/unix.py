"""
Unix sockets to listen on: their files, whose permissions are the access control, and the users
whose processes connect. A socket's path may be of any length: the kernel's own limit is 107 bytes.
"""

import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import attrs

PREFIX: Final = "unix:"
MODE: Final = 0o600  # of a socket for which no other mode is chosen: only its owner connects
# Two seconds in all: another process holds the lock only while it binds.
LOCK_ATTEMPTS: Final = 100
LOCK_PAUSE: Final = 0.02  # seconds
LONGEST: Final = 107  # bytes of a path: the kernel's 108 have a NUL at the end
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def path_of(address: str) -> Path | None:
    """The path of `unix:PATH`; None for any other address."""
    return Path(address.removeprefix(PREFIX)) if address.startswith(PREFIX) else None


def why_no_path(path: Path) -> str | None:
    """The reason why no socket can have that path; None: it can."""
    size = len(os.fsencode(path))
    if size > LONGEST:
        return f"{path} has {size} bytes, and the path of a Unix socket at most {LONGEST}"
    return "a path expected after 'unix:'" if path == Path() else None


class HasOptions(Protocol):
    """A socket of Python's, or of Trio's."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


@attrs.frozen(kw_only=True)
class SocketFile:
    """The file of a bound socket."""

    path: Path
    _device: int
    _inode: int

    def remove(self) -> None:
        """Remove the file, unless another process has bound the path meanwhile."""
        with suppress(OSError):
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == (self._device, self._inode):
                self.path.unlink()


def file_of(path: Path) -> SocketFile:
    """
    The file of a socket that is bound at that path.

    Raises:
        OSError: the file doesn't exist.
    """
    found = path.stat()
    return SocketFile(path=path, device=found.st_dev, inode=found.st_ino)


def bind(path: Path, mode: int, backlog: int) -> tuple[socket.socket, SocketFile]:
    """
    Listen on a new socket with that file mode, which is never wider, not even for a moment. A file
    that a dead process has left is replaced. A missing folder is created.

    Raises:
        OSError: a process listens there (EADDRINUSE), the file is no socket, or the file can't be
            made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # If two processes start at once, neither must mistake the other's new file for that of a
        # dead process.
        _lock(folder)
        _remove_dead(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(bound.fileno(), mode)  # the file gets this, less the umask
            bound.bind(str(path))
            path.chmod(mode)
            bound.listen(backlog)
            file = file_of(path)
        except BaseException:
            bound.close()
            raise
    finally:
        os.close(folder)
    return bound, file


def _lock(folder: int) -> None:
    """Lock the file; every user who may read it can lock it, so the wait for others has a limit."""
    for _ in range(LOCK_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE)
    raise OSError(errno.EBUSY, "another process keeps its folder locked")


def _remove_dead(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket")
    if is_answered(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def is_answered(path: Path) -> bool:
    """True if a process listens on the socket with that path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
        knocking.setblocking(False)
        try:
            knocking.connect(str(path))
        except BlockingIOError:  # the listener's queue is full
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def client_of(connection: HasOptions) -> tuple[int, int]:
    """The process and the user that connected over a Unix socket, as the kernel knows them."""
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return process, user


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """
    Another path to that file, short while the context lasts if its last part is.

    Raises:
        OSError: its folder can't be opened.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
