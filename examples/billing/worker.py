"""
A worker: counts batches, and adds up reports. FOLDER ADDRESS NUMBER

    batch ─▶ count it in the ledger ─▶ write its receipt ─▶ the message is completed

A worker that is killed between any two of these steps leaves the message to others, which begin
with the first step: the ledger knows the batch then, and the receipt is written once more.

The worker reports its work on its standard output, one line of JSON for each batch.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from examples.billing.ledger import Ledger
from examples.billing.namespace import open_namespace
from examples.billing.values import BATCHES, REPORTS, Batch, Report, Slice
from gateway.app.runtime import Runtime
from gateway.listening import Item, Json, ListenerOptions, QueueListener
from gateway.listening.exchange import replying
from gateway.listening.intents import steps
from gateway.listening.job import Handler
from gateway.ports import Broker

T = TypeVar("T")

# Few at once, so that there is work for all workers. A dead worker is no fault of its messages.
OPTIONS: Final = ListenerOptions(
    batch=4, parallel=4, max_locked=8, max_tasks=2, poison_threshold=None
)


@attrs.define(eq=False, kw_only=True)
class Worker:
    """The part of the work that one process does."""

    folder: Path
    number: int
    broker: Broker
    runtime: Runtime = attrs.field(factory=Runtime)
    _ledger: Ledger = attrs.field(init=False)
    _batches: QueueListener[Batch] = attrs.field(init=False)
    _reports: QueueListener[Slice] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ledger = Ledger(self.folder / "ledger.db")
        self._batches = self._listener(
            BATCHES.name, Json(Batch), steps(self._count, self._write_receipt)
        )
        report = replying(
            self._report, broker=self.broker, format=Json(Report), new_id=self.runtime.new_id
        )
        self._reports = self._listener(REPORTS.name, Json(Slice), report)

    async def run(self) -> None:
        """
        Work until SIGTERM; then finish the work that has begun, and report the number of requests.
        """
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._batches.run)
                await nursery.start(self._reports.run)
                await anext(aiter(signals))
                self._batches.start_drain()
                self._reports.start_drain()
        self._say(ended=True)

    async def _count(self, item: Item[Batch]) -> None:
        times = await trio.to_thread.run_sync(self._ledger.count, item.value)
        self._say(batch=item.value.id, times=times)

    async def _write_receipt(self, item: Item[Batch]) -> None:
        batch = item.value
        cents = sum(each.cents for each in batch.transactions)
        text = json.dumps({"transactions": len(batch.transactions), "cents": cents})
        await trio.to_thread.run_sync(self._replace, f"{batch.id}.json", text)

    def _replace(self, name: str, text: str) -> None:
        """Write the receipt whole or not at all; to write it again changes nothing."""
        receipts = self.folder / "receipts"
        new = receipts / f".{name}.{self.number}"
        new.write_text(text)
        os.replace(new, receipts / name)

    async def _report(self, request: Item[Slice]) -> Report:
        totals = await trio.to_thread.run_sync(self._ledger.totals, request.value)
        return Report(self.number, totals)

    def _listener(self, queue: str, form: Json[T], handle: Handler[T]) -> QueueListener[T]:
        return QueueListener(
            broker=self.broker,
            queues=queue,
            format=form,
            handle=handle,
            clock=self.runtime.now,
            rng=self.runtime.rng(queue),
            options=OPTIONS,
        )

    def _say(self, **what: object) -> None:
        requests = sum(state.billed for state in self._batches.states().values())
        print(json.dumps({**what, "requests": requests}), flush=True)


async def main(folder: Path, address: str, number: int) -> None:
    async with open_namespace(address) as broker:
        await Worker(folder=folder, number=number, broker=broker).run()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
