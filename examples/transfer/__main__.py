"""python -m examples.transfer FOLDER submit COUNT | work [--crash-before STEP] | show"""

import argparse
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath
from gateway.listening import Item, Json, QueueListener, Submitter
from gateway.listening.intents import steps, update
from gateway.listening.stores.folder import FolderValues
from gateway.listening.stores.sqlite import SqliteValues
from gateway.listening.stores.values import Store, Values
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions

INTENTS: Final = EntityPath("transfers")
CENTS: Final = 5  # of each transfer
OPENING: Final = 1000  # cents on the first account


@attrs.frozen
class Transfer:
    id: str
    cents: int


@attrs.frozen
class Account:
    cents: int
    seen: tuple[str, ...] = ()  # ids of transfers

    def after(self, transfer: Transfer, cents: int) -> "Account":
        """The account with the transfer; the same one if it has seen the transfer."""
        if transfer.id in self.seen:
            return self
        return Account(self.cents + cents, (*self.seen, transfer.id))


@attrs.define(eq=False)
class Worker:
    first: Values[Account]
    second: Values[Account]
    crash_before: int | None

    async def take(self, intent: Item[Transfer]) -> None:
        self._crash(0)
        transfer = intent.value
        await update(self.first, "ann", lambda account: account.after(transfer, -transfer.cents))

    async def give(self, intent: Item[Transfer]) -> None:
        self._crash(1)
        transfer = intent.value
        await update(self.second, "bob", lambda account: account.after(transfer, transfer.cents))

    async def end(self, _intent: Item[Transfer]) -> None:
        await trio.lowlevel.checkpoint()
        self._crash(2)

    def _crash(self, step: int) -> None:
        if step == self.crash_before:
            os.kill(os.getpid(), signal.SIGKILL)


@asynccontextmanager
async def accounts(folder: Path) -> AsyncIterator[tuple[Values[Account], Values[Account]]]:
    """Ann's accounts in the first store, Bob's in the second."""
    async with SqliteValues(folder / "first.db") as sqlite:
        first: Store = sqlite
        second: Store = FolderValues(folder / "second")
        yield Values(first, Account, Account(OPENING)), Values(second, Account, Account(0))


async def submit(folder: Path, count: int) -> None:
    runtime = Runtime()
    async with queue(folder, runtime) as broker:
        transfers = Submitter(
            broker=broker, queue=INTENTS, format=Json(Transfer), new_id=runtime.new_id
        )
        for _ in range(count):
            await transfers.submit(Transfer(id=runtime.new_id(), cents=CENTS))


async def work(folder: Path, crash_before: int | None) -> None:
    runtime = Runtime()
    async with accounts(folder) as (first, second), queue(folder, runtime) as broker:
        worker = Worker(first, second, crash_before)
        listener = QueueListener(
            broker=broker,
            queues=INTENTS.name,
            format=Json(Transfer),
            handle=steps(worker.take, worker.give, worker.end),
            clock=runtime.now,
            rng=runtime.rng("listener"),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run)
            while (await broker.inspect(INTENTS)).active:  # noqa: ASYNC110 no event reports it
                await trio.sleep(0.05)
            await listener.drain()


async def show(folder: Path) -> None:
    async with accounts(folder) as (first, second):
        ann, bob = (await first.read("ann"))[0], (await second.read("bob"))[0]
        print(f"ann has {ann.cents} after {len(ann.seen)} transfers")
        print(f"bob has {bob.cents} after {len(bob.seen)} transfers")


def queue(folder: Path, runtime: Runtime) -> EmbeddedBroker:
    folder.mkdir(parents=True, exist_ok=True)
    options = EmbeddedOptions(create_missing=True)
    return EmbeddedBroker(folder / "queue.db", runtime.now, runtime.rng("store"), options)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.transfer", description=__doc__)
    parser.add_argument("folder", type=Path)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("submit")
    command.add_argument("count", type=int)
    command.set_defaults(run=lambda given: partial(submit, given.folder, given.count))
    command = commands.add_parser("work")
    command.add_argument("--crash-before", type=int, choices=range(3))
    command.set_defaults(run=lambda given: partial(work, given.folder, given.crash_before))
    command = commands.add_parser("show")
    command.set_defaults(run=lambda given: partial(show, given.folder))
    given = parser.parse_args()
    trio.run(given.run(given))


if __name__ == "__main__":
    main()
