"""
Fills a disk through a store, until it refuses; empties it; sends again. Prints what happened.

A program, since the disk is one of its own: "tmpfs <folder>" mounts one there, which takes a mount
namespace; "limit <folder>" has the kernel refuse to let any file become longer.
"""

import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, ReceiveMode
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import LOW_WATER
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, State
from gateway.store.local.step import Step
from tests.harness.store_work import open_committer, roomy

CAPACITY: Final = 24 * 2**20  # bytes that a store may take before it refuses
RESERVE: Final = 24 * 2**20  # and what completing takes besides, where files can't grow further
QUEUE: Final = EntityPath("orders")
ACTIVE, LOCK, DONE = State.ACTIVE, ReceiveMode.PEEK_LOCK, Complete()


def on_tmpfs(folder: Path) -> Disk:
    size = LOW_WATER + CAPACITY
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    return attrs.evolve(roomy(), free_bytes=Disk().free_bytes)


def under_limit(folder: Path) -> Disk:
    resource.setrlimit(resource.RLIMIT_FSIZE, (CAPACITY + RESERVE, CAPACITY + RESERVE))

    def free_bytes(_: Path) -> int:
        taken = sum(file.stat().st_size for file in folder.glob("a.db*"))
        return LOW_WATER + CAPACITY - taken

    return attrs.evolve(roomy(), free_bytes=free_bytes)


@attrs.define(eq=False)
class Filler:
    """Sends a batch each second, so that each batch checks the disk."""

    _committer: Committer
    _seconds: float = 0.0

    def run(self, works: Sequence[Callable[[Namespace, Now], Any]]) -> list[Step[Any]]:
        self._seconds += 1.1
        now = Now(10**15, self._seconds)
        steps = [Step(QUEUE, now, work) for work in works]
        self._committer.run(steps)
        if not self._committer.failed:
            self._committer.shorten_log()
        return steps

    def create(self) -> None:
        now = Now(10**15, 0.0)
        self._committer.run(
            [Step(QUEUE, now, lambda space, now: space.create(QUEUE, QueueProperties(), now))]
        )

    def send(self) -> list[str]:
        """Send fifty messages of 16 KiB; return the name of each one's error, or "NoneType"."""

        def work(space: Namespace, now: Now) -> Sequence[int]:
            space.check_room()
            return space.find(QUEUE).send([incoming], now)

        incoming = Incoming(content=random.Random(0).randbytes(16384), size=16384)
        return [type(step.error).__name__ for step in self.run([work] * 50)]

    def complete(self) -> list[str]:
        """
        Receive and complete up to a hundred messages; return the name of each one's error, or
        "NoneType".
        """
        [taken] = self.run([lambda space, now: space.find(QUEUE).receive(ACTIVE, 100, LOCK, now)])
        works = [
            lambda space, now, token=each.token: space.find(QUEUE).settle(token, DONE, now)
            for each in taken.result()
        ]
        return [type(step.error).__name__ for step in self.run(works)] if works else []

    def tidy(self) -> None:
        while self._committer.untidy:
            self._committer.tidy()


def main(kind: str, folder: Path) -> None:
    disk = {"tmpfs": on_tmpfs, "limit": under_limit}[kind](folder)
    committer, _store = open_committer(folder / "a.db", disk)
    filler = Filler(committer)
    filler.create()
    told: dict[str, Any] = {"sent": 0, "completed": 0}
    while (verdicts := set(filler.send())) == {"NoneType"}:
        told["sent"] += 50
    told["refused"] = sorted(verdicts)
    while verdicts := filler.complete():
        if set(verdicts) != {"NoneType"}:
            raise SystemExit(f"completing: {verdicts}: {committer.failed}")
        told["completed"] += len(verdicts)
    filler.tidy()
    told["again"] = sorted(set(filler.send()))
    told["failed"] = committer.failed
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
