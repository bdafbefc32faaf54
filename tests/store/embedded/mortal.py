"""
Real processes that end at the n-th call to the disk, by a signal that can't be handled.

One process has everything imported and forks another for each n, so that a hundred deaths take a
second. Started as a program (`transactions` as an argument: with these
as its work): reads "<n> <folder>" lines, answers each with "acked <m>" for every
batch that was acknowledged, and with "died" or "lived".
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, LockLost
from gateway.domain.message import Complete, ReceiveMode
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, State
from gateway.store.local.step import Step
from tests.harness.store_work import Kept, Work, World, open_committer, roomy
from tests.store.embedded.crash_states import STORE

BATCHES = 3
TRANSACTIONS = 4
CALLS = ("pwrite", "rename", "ftruncate", "unlink", "open", "fsync")


class Countdown:
    """Ends the process instead of the n-th call."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalFile(apsw.VFSFile):
    def __init__(self, countdown: Countdown, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._tick = countdown.tick

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._tick()
        half = len(data) // 2
        super().xWrite(data[:half], offset)
        self._tick()
        super().xWrite(data[half:], offset + half)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._tick()
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._tick()  # what was written outlives the process without it


class MortalDisk(apsw.VFS):
    """The default VFS of this process."""

    def __init__(self, countdown: Countdown) -> None:
        super().__init__("mortal", "unix", makedefault=True)
        self._countdown = countdown

    def xOpen(self, name: Any, flags: list[int]) -> MortalFile:  # noqa: N802
        self._countdown.tick()
        return MortalFile(self._countdown, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._countdown.tick()
        super().xDelete(filename, False)


def mortal_calls(countdown: Countdown) -> None:
    """Count down at the gateway's own calls of `os`, too: for the mark, the lock, a new store."""
    for name in CALLS:
        setattr(os, name, mortal_call(countdown, getattr(os, name)))


def mortal_call(countdown: Countdown, call: Callable[..., Any]) -> Callable[..., Any]:
    def mortal(*arguments: Any, **options: Any) -> Any:
        countdown.tick()
        return call(*arguments, **options)

    return mortal


def live(folder: Path, tell: Callable[[str], None]) -> list[World]:
    """
    Make a store, work, close, open it again; return the content of the store after each batch.
    """
    worlds: list[World] = [{}]
    for life in range(2):
        committer, _store = open_committer(folder / STORE, roomy())
        work = Work(committer, random.Random(life), worlds)
        tell(f"acked {len(worlds) - 1}")
        for number in range(BATCHES):
            if work.run_batch() != "done":
                raise RuntimeError("the disk is healthy")
            tell(f"acked {len(worlds) - 1}")
            if number % 3 == 2:
                committer.tidy()
        committer.close()
    return worlds


def live_transactions(folder: Path, tell: Callable[[str], None]) -> list[World]:
    """
    Move one message after the other from a queue to another one and put a new one behind it, each
    in a transaction, beside others that are undone; return the content of the store after each
    batch.
    """
    source, target, nowhere = map(EntityPath, ("source", "target", "nowhere"))
    committer, _store = open_committer(folder / STORE, roomy())
    clock = Now(monotonic=1.0, wall=10**15)
    worlds: list[World] = [{}]

    def run(*works: Callable[[Namespace], Any]) -> list[Step[Any]]:
        steps = [Step(source, clock, lambda space, _, work=work: work(space)) for work in works]
        committer.run(steps)
        return steps

    def begin(space: Namespace) -> None:
        for path in (source, target):
            space.create(path, QueueProperties(), clock)
        send(space, source, 0)

    def send(space: Namespace, path: EntityPath, number: int) -> None:
        space.find(path).send([Incoming(content=b"%d" % number, size=1)], clock)

    def take(space: Namespace) -> str:
        [taken] = space.find(source).receive(State.ACTIVE, 1, ReceiveMode.PEEK_LOCK, clock)
        return str(taken.token)

    def move(space: Namespace) -> None:
        with space.all_or_nothing():
            space.find(source).settle(token, Complete(), clock)
            send(space, target, number)
            send(space, source, number + 1)

    def fail(space: Namespace) -> None:
        with space.all_or_nothing():
            send(space, target, 1000 + number)
            space.find(source).settle(token, Complete(), clock)
            send(space, nowhere, number)

    tell("acked 0")
    run(begin)
    worlds.append({"source": kept(0), "target": kept()})
    tell("acked 1")
    for number in range(TRANSACTIONS):
        token = run(take)[0].result()
        done = run(fail, move, fail)
        if [type(step.error) for step in done] != [EntityNotFound, type(None), LockLost]:
            raise RuntimeError(f"unexpected: {[step.error for step in done]}")
        worlds.append({"source": kept(number + 1), "target": kept(*range(number + 1))})
        tell(f"acked {len(worlds) - 1}")
    committer.close()
    return worlds


def kept(*numbers: int) -> Kept:
    return Kept({b"%d" % number: (State.ACTIVE, None) for number in numbers})


def main() -> None:
    live_as = live_transactions if "transactions" in sys.argv else live
    for line in sys.stdin:
        calls, folder = line.rstrip().split(" ", 1)
        child = os.fork()
        if child == 0:
            countdown = Countdown(int(calls))
            disk = MortalDisk(countdown)
            mortal_calls(countdown)
            live_as(Path(folder), lambda text: os.write(1, f"{text}\n".encode()) and None)
            disk.unregister()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status and os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"ended with {status}")
        print("died" if status else "lived", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
