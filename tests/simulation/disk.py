"""A durable namespace on a simulated disk, in the thread of the simulation."""

import random
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown, StorageFull
from gateway.ports import WallClock
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.embedded.files import mark_path
from gateway.store.local.step import Step
from tests.harness.crash_disk import Ailment, CrashDisk, Replay, read_image, write_image
from tests.harness.store_work import roomy

T = TypeVar("T")

ENDED: Final = "the process was ended"
SYNC: Final = 0.004  # seconds that a commit takes to be on the disk
_ANYWHERE: Final = EntityPath("anywhere")
_NAMES: Final = ("store", "store-wal", "store.hwm")
_numbers: Final = count()  # SQLite knows a VFS by its name, in all of the process


class DiskBroker(EmbeddedBroker):
    """
    The store of `EmbeddedBroker`, with its SQLite, on a `CrashDisk`. No thread: steps run at once,
    are on the disk `SYNC` seconds later, and are answered then, in the order in which they came.

    While `ailment` is set, what it names fails; while `has_room` isn't, the disk is nearly full.
    """

    def __init__(self, folder: Path, clock: WallClock, rng: random.Random) -> None:
        """Opens a store in an empty folder; `close` lets go of it."""
        path = folder / "store"
        self._vfs = CrashDisk(f"sim-{next(_numbers)}", mark_path(path))
        self.has_room = True
        self.refused = 0  # steps, for want of room
        disk = attrs.evolve(roomy(self._vfs.name), free_bytes=lambda _: 2**40 * self.has_room)
        super().__init__(path, clock, rng, disk=disk)
        self._folder = folder
        self._lives = 1
        self._begun, self._broken = trio.Event(), trio.Event()
        self._stopped = False
        self._committer = self._open()
        # A new store gets its name at the end, which is no call of SQLite's: the log begins here.
        self._vfs.restart()
        self._replay = Replay.of(read_image(folder, _NAMES))
        self._synced = 0  # entries of the disk's log whose step was answered

    def close(self) -> None:
        self._timer.close()
        self._stop()
        self._vfs.unregister()

    @property
    def failed(self) -> trio.Event:
        """As of any store: the disk has said no, and only a new process may go on."""
        return self._broken

    @property
    def ailment(self) -> Ailment | None:
        return self._vfs.ailment

    @ailment.setter
    def ailment(self, ailment: Ailment | None) -> None:
        self._vfs.ailment = ailment

    @property
    def strokes(self) -> int:
        """The number of calls that have failed."""
        return self._vfs.strokes

    def start_again(self) -> None:
        """
        The process ends, and another one opens what is there: all that was written.

        Raises:
            StoreError: as `cut_power`.
        """
        now = self._moments.now()
        self._stop()
        for change in self._vfs.restart():
            self._replay.go_on(change)
        self._begin_life(now)

    def cut_power(self) -> int:
        """
        Everything stops, perhaps in the middle of a commit that nobody was told of; what the disk
        has kept is opened again. Return how many writes and syncs it came before.

        Raises:
            StoreError: what was acknowledged isn't there, or the store is damaged.
        """
        now = self._moments.now()
        self._stop()
        log = self._vfs.restart()
        reached = self._rng.randint(min(self._synced, len(log)), len(log))
        for change in log[:reached]:
            self._replay.go_on(change)
        image = self._replay.after_power_cut(self._rng)
        write_image(self._folder, image, _NAMES)
        self._vfs.restart()
        self._replay = Replay.of(image)
        self._begin_life(now)
        return len(log) - reached

    async def next_step(self) -> None:
        """Return when a step has been written, and isn't answered yet."""
        await self._begun.wait()

    def _begin_life(self, now: Now) -> None:
        self._lives += 1
        self._synced = 0
        self._vfs.ailment = None  # a store that isn't opened would never come back
        self._committer = self._open()
        self._stopped = False
        self._broken = trio.Event()
        look_again = Step(_ANYWHERE, now, lambda space, now: space.report_all(now))
        self._committer.run([look_again])
        self._publish(look_again.result())

    def _stop(self) -> None:
        """End the writes, also those that would tidy up."""
        if not self._stopped:
            self._stopped = True
            self._committer.fail((), ENDED)
            self._committer.close()

    async def _run(self, step: Step[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        life = self._lives
        self._post(step)
        log = self._vfs.look()
        self._begun.set()
        self._begun = trio.Event()
        with trio.move_on_after(2 * SYNC, shield=True):
            await trio.sleep(SYNC)
        if life != self._lives:
            raise OutcomeUnknown(ENDED)
        self.refused += isinstance(step.error, StorageFull)
        if step.error is None:
            self._synced = max(self._synced, log)
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        self._publish(self._committer.run([step]))
        self._committer.shorten_log()
        if self._committer.failed:
            self._broken.set()
