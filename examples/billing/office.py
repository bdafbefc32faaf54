"""The office: submits the batches, asks for the reports, and looks whether all is right."""

from datetime import timedelta
from pathlib import Path
from typing import Final

import attrs
import trio
from attrs import validators

from examples.billing.ledger import Ledger
from examples.billing.namespace import open_namespace
from examples.billing.processes import ProcessPool, open_gateway
from examples.billing.values import (
    BATCHES,
    REPLIES,
    REPORTS,
    Batch,
    Report,
    Slice,
    Total,
    add_up,
    batches,
    slices,
    transactions,
)
from examples.billing.verdict import Findings
from gateway.app.runtime import Runtime
from gateway.domain.entity import QueueProperties
from gateway.listening import Json, Submitter
from gateway.listening.errors import SubmitError
from gateway.listening.exchange import Requester
from gateway.ports import Broker

# The lock duration: for so long no other worker gets the messages of a dead worker.
LOCK: Final = timedelta(seconds=5)
LIMIT: Final = 600.0  # seconds for all of it
SLICES: Final = 12  # of the report
_ATTEMPTS: Final = 5
_PAUSE: Final = 1.0
_LOOK: Final = 0.1

positive = validators.ge(1)


@attrs.frozen(kw_only=True)
class Order:
    """The size of the example: transactions, batches, accounts and workers."""

    transactions: int = attrs.field(default=100_000, validator=positive)
    batch: int = attrs.field(default=1000, validator=positive)
    accounts: int = attrs.field(default=1000, validator=positive)
    workers: int = attrs.field(default=3, validator=positive)
    kill: bool = True

    @property
    def batches(self) -> int:
        return -(-self.transactions // self.batch)  # rounded up


@attrs.define(eq=False, kw_only=True)
class Office:
    """A run of the example, in an empty folder."""

    order: Order
    folder: Path
    runtime: Runtime
    _totals: dict[int, Total] = attrs.field(factory=dict, init=False)
    _sends: int = attrs.field(default=0, init=False)

    async def run(self) -> Findings:
        """Return when all is counted and every process has ended."""
        ledger = Ledger(self.folder / "ledger.db")
        ledger.prepare()
        (self.folder / "receipts").mkdir()
        with trio.fail_after(LIMIT):
            async with open_gateway(self.folder) as address, open_namespace(address) as broker:
                for queue in (BATCHES, REPORTS, REPLIES):
                    await broker.create_queue(queue, QueueProperties(lock_duration=LOCK))
                pool = self._make_pool(address)
                async with trio.open_nursery() as nursery:
                    for number in range(self.order.workers):
                        nursery.start_soon(pool.employ, number)
                    await self._submit_all(broker)
                    await pool.wait()
                    left = await self._until_settled(broker)
                    reports = await self._ask_for_reports(broker)
                    pool.dismiss()
        return Findings(
            submitted=self._totals,
            reported={total.account: total for report in reports for total in report.totals},
            batches=self.order.batches,
            times=ledger.times(),
            receipts=len(list((self.folder / "receipts").glob("*.json"))),
            left=left,
            killed=pool.killed,
            reporters=len({report.worker for report in reports}),
            requests=self._sends + sum(pool.requests.values()),
            bodies=tuple(file.stat().st_size for file in self._bodies()),
        )

    def _make_pool(self, address: str) -> ProcessPool:
        half = self.order.batches // 2 if self.order.kill and self.order.workers > 1 else None
        return ProcessPool(
            folder=self.folder, address=address, batches=self.order.batches, victim_at=half
        )

    async def _submit_all(self, broker: Broker) -> None:
        """A body above the limit of the claim check goes to the store, and the rest is as ever."""
        submitter = Submitter(
            broker=broker, queue=BATCHES, format=Json(Batch), new_id=self.runtime.new_id
        )
        order = self.order
        each = transactions(order.transactions, order.accounts, self.runtime.rng("transactions"))
        for batch in batches(each, order.batch):
            self._note(batch)
            await self._submit(submitter, batch)

    async def _submit(self, submitter: Submitter[Batch], batch: Batch) -> None:
        """
        Send the batch; again, with the same id, if it may not have arrived: the ledger sorts that
        out.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            self._sends += 1
            try:
                await submitter.submit(batch, message_id=batch.id)
            except SubmitError:
                if attempt == _ATTEMPTS:
                    raise
                await trio.sleep(_PAUSE)
            else:
                return

    def _note(self, batch: Batch) -> None:
        for account, total in add_up(batch.transactions).items():
            known = self._totals.get(account, Total(account, 0, 0))
            self._totals[account] = Total(
                account, known.cents + total.cents, known.transactions + total.transactions
            )

    async def _until_settled(self, broker: Broker) -> int:
        """
        Wait until the queue is empty, or ten locks are over; return the number of messages left.

        The batches that a dead worker had locked come again, and are found in the ledger.
        """
        latest = trio.current_time() + 10 * LOCK.total_seconds()
        while True:  # polled, since other processes change the state
            left = (await broker.inspect(BATCHES)).active or 0
            if left == 0 or trio.current_time() > latest:
                return left
            await trio.sleep(_LOOK)

    async def _ask_for_reports(self, broker: Broker) -> list[Report]:
        """
        Send one request in slices, for any worker; return the replies in the order of the slices.
        """
        requester = Requester(
            requests=Submitter(
                broker=broker, queue=REPORTS, format=Json(Slice), new_id=self.runtime.new_id
            ),
            replies=REPLIES,
            broker=broker,
            format=Json(Report),
            clock=self.runtime.now,
            rng=self.runtime.rng("reports"),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(requester.run)
            reports = await requester.scatter(slices(self.order.accounts, SLICES))
            nursery.cancel_scope.cancel()
        return list(reports)

    def _bodies(self) -> list[Path]:
        """Return the bodies that the claim check has stored; the notes of completions are empty."""
        return [file for file in (self.folder / "claims").glob("??/*") if file.stat().st_size]
