"""
A disk that remembers every write, and shows what a crash at any moment may leave of it.

Of unsynced writes a power cut keeps any part: whole writes, sectors of a write, later ones without
earlier ones. Names are kept from the first sync of a new file on, as SQLite syncs the folder then;
a deleted file may be back until the next time that happens.
"""

import enum
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

_SECTOR: Final = 512  # bytes that a disk writes as a whole


@attrs.frozen
class Created:
    file: str


@attrs.frozen
class Written:
    file: str
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, rng: random.Random) -> "list[Written]":
        """Return the write with only some of its sectors."""
        first = self.offset - self.offset % _SECTOR
        end = self.offset + len(self.data)
        kept: list[Written] = []
        for sector in range(first, end, _SECTOR):
            if rng.random() < 0.5:
                begin = max(sector, self.offset) - self.offset
                data = self.data[begin : sector + _SECTOR - self.offset]
                kept.append(Written(self.file, self.offset + begin, data))
        return kept


@attrs.frozen
class Truncated:
    file: str
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]


@attrs.frozen
class Synced:
    file: str


@attrs.frozen
class Deleted:
    file: str
    durable: bool


Change = Created | Written | Truncated | Synced | Deleted
Image = Mapping[str, bytes]  # of a folder: names of files, and their content


def read_image(folder: Path, names: Iterable[str]) -> Image:
    """Return the contents of those files that exist."""
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def write_image(folder: Path, image: Image, names: Iterable[str]) -> None:
    """Write exactly these files into a folder; remove files of `names` that aren't in the image."""
    for name in names:
        if name not in image:
            (folder / name).unlink(missing_ok=True)
    for name, content in image.items():
        # In place: a file system may sync a file that was emptied first.
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(file, content, 0)
        os.ftruncate(file, len(content))
        os.close(file)


class Ailment(enum.Enum):
    """The kinds of calls to a disk that may fail."""

    WRITE = "a write (EIO)"  # half of it is done
    SYNC = "a sync (EIO)"  # nobody knows what of it is done
    FULL = "a write (ENOSPC)"  # half of it is done

    @property
    def error(self) -> type[apsw.Error]:
        return apsw.FullError if self is Ailment.FULL else apsw.IOError


class _RecordedFile(apsw.VFSFile):
    def __init__(self, disk: "CrashDisk", name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._name = full_name(name).name

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        ailment = self._disk.strikes(Ailment.WRITE, Ailment.FULL)
        written = data if ailment is None else data[: len(data) // 2]
        super().xWrite(written, offset)
        self._disk.note(Written(self._name, offset, bytes(written)))
        if ailment is not None:
            raise ailment.error(ailment.value)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._disk.note(Truncated(self._name, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        if (ailment := self._disk.strikes(Ailment.SYNC)) is not None:
            raise ailment.error(ailment.value)
        # The real disk needs no sync: this process lives on.
        if not self._disk.lies:
            self._disk.note(Synced(self._name))


class CrashDisk(apsw.VFS):
    """
    A VFS that passes everything on, and logs it.

    `watched` is a file that is written without SQLite: its present content was written before the
    next entry of the log. With `lies` a sync is no sync. While `ailment` is set, all calls that it
    names fail.
    """

    def __init__(self, name: str, watched: Path, *, lies: bool = False) -> None:
        super().__init__(name, "")
        self.name = name
        self.lies = lies
        self.ailment: Ailment | None = None
        self.strokes = 0  # calls that have failed
        self.log: list[Change] = []
        self._watched = watched
        self._seen = b""

    def look(self) -> int:
        """Log the writes without SQLite; return the present length of the log."""
        content = self._watched.read_bytes() if self._watched.exists() else b""
        if content != self._seen:
            self._seen = content
            self.log.append(Written(self._watched.name, 0, content))
        return len(self.log)

    def strikes(self, *ailments: Ailment) -> Ailment | None:
        """The ailment that a call has met, among those that concern it."""
        if self.ailment not in ailments:
            return None
        self.strokes += 1
        return self.ailment

    def note(self, change: Change) -> None:
        self.look()
        self.log.append(change)

    def restart(self) -> Sequence[Change]:
        """Begin a new log; return the old one."""
        self.look()
        log, self.log = self.log, []
        self._seen = self._watched.read_bytes() if self._watched.exists() else b""
        return log

    def xOpen(self, name: Any, flags: list[int]) -> _RecordedFile:  # noqa: N802
        path = full_name(name)
        new = not path.exists()
        file = _RecordedFile(self, name, flags)
        if new:
            self.note(Created(path.name))
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.note(Deleted(Path(filename).name, bool(syncdir)))


@attrs.define(eq=False)
class Replay:
    """Replays a log, from the durable state at its beginning."""

    _durable: dict[str, bytes]
    _pending: dict[str, list[Written | Truncated]] = attrs.field(factory=dict)
    _nameless: set[str] = attrs.field(factory=set)  # new, and the folder wasn't synced since
    _ghosts: dict[str, bytes] = attrs.field(factory=dict)  # deleted, and it wasn't synced since

    @classmethod
    def of(cls, image: Image) -> "Replay":
        return cls(dict(image))

    @property
    def certain(self) -> bool:
        """True if a crash can leave only one image, apart from files that are never synced."""
        return not self._ghosts and not any(
            changes for file, changes in self._pending.items() if not file.endswith(".hwm")
        )

    def copy(self) -> "Replay":
        pending = {file: list(changes) for file, changes in self._pending.items()}
        return Replay(dict(self._durable), pending, set(self._nameless), dict(self._ghosts))

    def go_on(self, change: Change) -> None:
        match change:
            case Created(file):
                self._nameless.add(file)
                self._durable[file] = b""
                self._pending[file] = []
            case Written(file) | Truncated(file):
                self._pending.setdefault(file, []).append(change)
            case Synced(file):
                self._durable[file] = _applied(
                    self._durable.get(file, b""), self._pending.pop(file, ())
                )
                if file in self._nameless:
                    self._sync_folder()
            case Deleted(file, durable):
                self._ghosts[file] = self._durable.pop(file, b"")
                self._pending.pop(file, None)
                self._nameless.discard(file)
                if durable:
                    self._sync_folder()

    def after_kill(self) -> Image:
        """
        Return the files as the end of the process leaves them: with everything that was written.
        """
        return self._build(self._pending)

    def after_power_cut(self, rng: random.Random) -> Image:
        """Return the files as a power cut may leave them, chosen by `rng`."""
        keep = rng.choice((_none, _some, _some, _some, _most, _beginning))
        kept = {file: keep(changes, rng) for file, changes in self._pending.items()}
        image = dict(self._build(kept))
        for file in self._nameless:
            if rng.random() < 0.3:
                image.pop(file, None)
        for file, content in self._ghosts.items():
            if file not in image and rng.random() < 0.5:
                image[file] = content
        return image

    def _build(self, kept: Mapping[str, Sequence[Written | Truncated]]) -> Image:
        """
        A file without changes is the same object in each image, so that comparing images is cheap.
        """
        image = dict(self._durable)
        for file, changes in kept.items():
            image[file] = _applied(image.get(file, b""), changes)
        return image

    def _sync_folder(self) -> None:
        self._nameless.clear()
        self._ghosts.clear()


def _applied(content: bytes, changes: Sequence[Written | Truncated]) -> bytes:
    if not changes:
        return content
    changed = bytearray(content)
    for change in changes:
        change.apply(changed)
    return bytes(changed)


def _none(_: Sequence[Written | Truncated], __: random.Random) -> list[Written | Truncated]:
    return []


def _some(
    changes: Sequence[Written | Truncated], rng: random.Random, keep: float = 0.45
) -> list[Written | Truncated]:
    kept: list[Written | Truncated] = []
    for change in changes:
        chance = rng.random()
        if chance < keep:
            kept.append(change)
        elif chance < keep + 0.2 and isinstance(change, Written):
            kept += change.torn(rng)
    return kept


def _most(changes: Sequence[Written | Truncated], rng: random.Random) -> list[Written | Truncated]:
    return _some(changes, rng, 0.8)


def _beginning(
    changes: Sequence[Written | Truncated], rng: random.Random
) -> list[Written | Truncated]:
    """Return the first changes, of which the last may be torn."""
    end = rng.randrange(len(changes) + 1)
    kept = list(changes[:end])
    if kept and isinstance(kept[-1], Written):
        kept[-1:] = kept[-1].torn(rng)
    return kept


def full_name(name: apsw.URIFilename | str) -> Path:
    """Return the path that SQLite asks a VFS to open; no store of ours has files without a name."""
    return Path(name if isinstance(name, str) else name.filename())
