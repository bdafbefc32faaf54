"""
A gateway whose consumer takes the process down with it, again and again.

One process has everything imported and forks another for each life. Started as a program: reads
"<what> <folder>" lines, and answers with "took <count>" whenever the poison was handed out, with
"dead <reason>" where it's a dead letter, and with "died" or "ended".

The clock stands still, so that no count of deliveries is ever written for being due, but the first
of a life: as it is in a gateway that is busy, and dies in the tenth of a second after.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Abandon, Complete, ReceiveMode
from gateway.store.embedded.committer import Committer
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming, State
from gateway.store.local.step import Step
from tests.harness.store_work import open_committer, roomy
from tests.store.embedded.crash_states import STORE

LIMIT: Final = 4
NOW: Final = Now(10**15, 1.0)
BUSY, ORDERS = EntityPath("busy"), EntityPath("orders")
POISON: Final = Incoming(content=b"poison", size=6, message_id="poison")


@attrs.define(eq=False)
class Gateway:
    committer: Committer

    def run(self, path: EntityPath, work: Any) -> Any:
        step: Step[Any] = Step(path, NOW, work)
        self.committer.run([step])
        return step.result()

    def take(self, path: EntityPath, state: State = State.ACTIVE) -> TakenRow | None:
        def work(space: Namespace, now: Now) -> list[TakenRow]:
            return space.find(path).receive(state, 1, ReceiveMode.PEEK_LOCK, now)

        return next(iter(self.run(path, work)), None)

    def begin(self) -> None:
        for path in (BUSY, ORDERS):
            self.run(path, partial(_create, path))
        self.run(ORDERS, lambda space, now: space.find(ORDERS).send([POISON], now))

    def work(self) -> None:
        """Another queue is busy: some messages are settled, and one is still with its consumer."""
        for number in range(3):
            other = Incoming(content=b"%d" % number, size=1)
            self.run(BUSY, lambda space, now, other=other: space.find(BUSY).send([other], now))
        for _ in range(2):
            token = self.take(BUSY).token
            self.settle(BUSY, token, Complete())
        self.take(BUSY)

    def settle(self, path: EntityPath, token: str | None, how: Any) -> None:
        self.run(path, lambda space, now: space.find(path).settle(token, how, now))

    def consume(self, abandoned: int = 0) -> None:
        """Take the poison, give it back so often, and die of it; or find it among the dead."""
        while (taken := self.take(ORDERS)) is not None:
            tell(f"took {taken.deliveries}")
            if abandoned == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            abandoned -= 1
            self.settle(ORDERS, taken.token, Abandon())
        dead = self.take(ORDERS, State.DEAD)
        tell("gone" if dead is None else f"dead {dead.row.reason}")


def _create(path: EntityPath, space: Namespace, now: Now) -> None:
    space.create(path, QueueProperties(max_delivery_count=LIMIT), now)


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def live(what: str, folder: Path) -> None:
    new = not (folder / STORE).exists()
    committer, _store = open_committer(folder / STORE, roomy())
    gateway = Gateway(committer)
    if new:
        gateway.begin()
    gateway.work()
    match what:
        case "consume":
            gateway.consume()
        case "abandon":
            gateway.consume(abandoned=1)
    committer.close()


def main() -> None:
    for line in sys.stdin:
        what, folder = line.rstrip().split(" ", 1)
        child = os.fork()
        if child == 0:
            live(what, Path(folder))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status and os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"ended with {status}")
        tell("died" if status else "ended")


if __name__ == "__main__":
    main()
