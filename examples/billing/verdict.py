"""The verdict: the rules that must hold in the end, and the costs."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from examples.billing.values import Total

# Requests for a message: a put, a delete, and its part of a get of 32.
ALONE: Final = 2 + 1 / 32


@attrs.frozen(kw_only=True)
class Findings:
    """The submitted messages, and the results found afterwards."""

    submitted: Mapping[int, Total]  # by account
    reported: Mapping[int, Total]
    batches: int
    times: Mapping[str, int]  # how often each batch came to the ledger
    receipts: int
    left: int  # messages in the queue
    killed: int | None  # the worker
    reporters: int  # workers that answered
    requests: int  # for the batches, as a cloud would bill them
    bodies: Sequence[int]  # in the claim check's store, and how many bytes each has

    @property
    def transactions(self) -> int:
        return sum(total.transactions for total in self.submitted.values())

    @property
    def seen_twice(self) -> int:
        return sum(times > 1 for times in self.times.values())

    @property
    def mistakes(self) -> Sequence[str]:
        """The rules that don't hold."""
        accounts = sorted({*self.submitted, *self.reported})
        return [
            *(
                f"account {account}: {self.submitted.get(account)} was submitted,"
                f" {self.reported.get(account)} was counted"
                for account in accounts
                if self.submitted.get(account) != self.reported.get(account)
            ),
            *_unless(len(self.times) == self.batches, f"{len(self.times)} batches were counted"),
            *_unless(self.receipts == self.batches, f"there are {self.receipts} receipts"),
            *_unless(self.left == 0, f"{self.left} messages are left in the queue"),
        ]

    @property
    def lines(self) -> Sequence[str]:
        """The verdict for people."""
        counted = sum(total.transactions for total in self.reported.values())
        killed = "nobody was killed" if self.killed is None else f"worker {self.killed} was killed"
        each = self.requests / self.transactions
        mistakes = self.mistakes
        return [
            f"submitted    {self.transactions} transactions of {len(self.submitted)} accounts in"
            f" {self.batches} batches",
            f"claim check  {len(self.bodies)} bodies lay in the store,"
            f" {sum(self.bodies) / 1e6:.2f} MB in all",
            f"trouble      {killed}; {self.seen_twice} batches came twice",
            f"counted      {counted} transactions, as {self.reporters} workers report",
            f"billed       {self.requests} requests, {each:.4f} for each transaction"
            f" (alone in its message: {ALONE:.2f})",
            *(f"wrong        {mistake}" for mistake in mistakes[:20]),
            "verdict      each transaction was counted exactly once"
            if not mistakes
            else f"verdict      broken: {len(mistakes)} mistakes",
        ]


def _unless(holds: bool, mistake: str) -> list[str]:
    return [] if holds else [mistake]
