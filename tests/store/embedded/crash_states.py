"""Compares a store after a crash with the contents that it may have."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import attrs

from gateway.store.embedded.files import StoreDamaged, StoreError
from gateway.store.embedded.store import Store
from tests.harness.crash_disk import (
    Change,
    CrashDisk,
    Image,
    Replay,
    Synced,
    read_image,
    write_image,
)
from tests.harness.store_work import Work, World, connection_of, open_committer, read_world, roomy

STORE = "a.db"
FILES = ("a.db", "a.db-wal", "a.db.hwm", "a.db.new", "a.db.new-journal")


_LIVE = "SELECT id FROM queue WHERE key IS NOT NULL"
_DUMP = (
    "SELECT * FROM queue WHERE key IS NOT NULL",
    f"SELECT * FROM message WHERE queue IN ({_LIVE})",
    f"SELECT * FROM session WHERE queue IN ({_LIVE})",
    f"SELECT * FROM seen WHERE queue IN ({_LIVE})",
)


@attrs.frozen
class Content:
    """The content of a store: the world that was worked out by hand, and every row."""

    world: World
    rows: Sequence[Any]

    @classmethod
    def of(cls, store: Store, world: World) -> "Content":
        """The content of a store that holds `world`."""
        assert read_world(store) == world
        return cls(world, dump(store))


def dump(store: Store) -> Sequence[Any]:
    return [connection_of(store).execute(statement).fetchall() for statement in _DUMP]


@attrs.frozen
class Moment:
    """The contents that the store may have from that entry of a log on."""

    position: int
    allowed: Sequence[Content]


@attrs.frozen
class Recording:
    begin: Replay
    log: Sequence[Change]
    moments: Sequence[Moment]

    def allowed(self, position: int) -> Sequence[Content]:
        """Return the contents that the store may have after `position` entries of the log."""
        return [each for each in self.moments if each.position <= position][-1].allowed


@attrs.frozen
class Crash:
    """
    The state that a crash leaves. After the end of a process a power cut may still take unsynced
    writes: until the store is opened again, it may hold any content of `allowed`.
    """

    disk: Replay
    image: Image
    allowed: Sequence[Content] = ()

    @classmethod
    def synced(cls, image: Image) -> "Crash":
        return cls(Replay.of(image), image)


@contextmanager
def crash_disk(name: str, folder: Path, *, lies: bool = False) -> Iterator[CrashDisk]:
    disk = CrashDisk(name, folder / f"{STORE}.hwm", lies=lies)
    try:
        yield disk
    finally:
        disk.unregister()


@attrs.define(eq=False, kw_only=True)
class Life:
    """Runs one store after the other, from its opening to its crash."""

    folder: Path
    disk: CrashDisk
    work: Work
    rng: random.Random
    synchronous: str = "FULL"
    _store: Store = attrs.field(init=False)
    _moments: list[Moment] = attrs.field(factory=list)

    def record(self, batches: int, crash: Crash | None = None) -> Recording:
        crash = crash or Crash.synced(read_image(self.folder, FILES))
        self.disk.restart()
        self._open()
        content = Content.of(self._store, self.work.worlds[-1])
        self._moments = [Moment(0, [*crash.allowed, content]), Moment(self.disk.look(), [content])]
        for _ in range(batches):
            before, position = content, self.disk.look()
            assert self.work.run_batch() == "done"
            content = Content.of(self._store, self.work.worlds[-1])
            self._moments.append(Moment(position, [before, content]))
            self._moments.append(Moment(self.disk.look(), [content]))
            self._between_batches()
        log = self.disk.restart()
        self._store.forsake()
        return Recording(crash.disk, log, self._moments)

    def _between_batches(self) -> None:
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.work.committer.tidy()
            case 3:
                self._store.checkpoint()
            case 4:
                self._store.close()
                self._open()
            case 5:
                self._store.forsake()
                self._open()
        assert not self.work.committer.failed

    def _open(self) -> None:
        committer, self._store = open_committer(self.folder / STORE, roomy(self.disk.name))
        connection_of(self._store).execute(f"PRAGMA synchronous = {self.synchronous}")
        self.work.go_on_with(committer, self.work.worlds[-1])


def crash_states(
    recording: Recording, rng: random.Random, samples: int
) -> Iterator[tuple[Image, Sequence[Content]]]:
    """
    Yield the files that the end of the process, or a power cut, may leave at every moment.

    Each comes with the contents that the store may have then. `samples`: power cuts at each moment.
    """
    replay = recording.begin.copy()
    for position in range(len(recording.log) + 1):
        allowed = recording.allowed(position)
        yield replay.after_kill(), allowed
        for _ in range(1 if replay.certain else samples):
            yield replay.after_power_cut(rng), allowed
        if position < len(recording.log):
            replay.go_on(recording.log[position])


def one_crash(recording: Recording, rng: random.Random) -> Crash:
    """A power cut at any moment, or the end of the process where the most isn't synced."""
    log, replay, killed = recording.log, recording.begin.copy(), rng.random() < 0.5
    syncs = [position for position, change in enumerate(log) if isinstance(change, Synced)]
    position = rng.choice(syncs) if killed else rng.randrange(len(log) + 1)
    for change in log[:position]:
        replay.go_on(change)
    if killed:
        return Crash(replay, replay.after_kill(), recording.allowed(position))
    return Crash.synced(replay.after_power_cut(rng))


def judge(folder: Path, image: Image, allowed: Sequence[Content], *, closely: bool) -> str:
    """
    The verdict on one crash state: "kept", or the fault. The opening checks the whole database: an
    unsound one is refused there.
    """
    write_image(folder, image, FILES)
    try:
        store = Store.open(folder / STORE, lambda: 7, roomy())
    except StoreDamaged as error:
        return "behind" if "acknowledged" in str(error) else "damaged"
    except StoreError:
        return "unreadable"
    try:
        rows = dump(store)
        found = [content for content in allowed if content.rows == rows]
        if closely and found:
            assert read_world(store) == found[0].world
    except apsw.Error:
        return "unreadable"
    else:
        return "kept" if found else "lost"
    finally:
        store.forsake()


def examine(
    folder: Path, recording: Recording, rng: random.Random, samples: int, most: int | None = None
) -> Counter[str]:
    """Judge crash states of a recording, each once, and no more than `most`."""
    verdicts: Counter[str] = Counter()
    seen: set[int] = set()
    for image, allowed in crash_states(recording, rng, samples):
        key = hash((id(allowed), *sorted(image.items())))
        if len(seen) == most:
            break
        if key not in seen:
            closely = len(seen) % 25 == 0
            seen.add(key)
            verdicts[judge(folder, image, allowed, closely=closely)] += 1
    return verdicts
