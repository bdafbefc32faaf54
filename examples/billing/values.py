"""
The messages of the example: batches of transactions, and the questions and answers about them.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from gateway.domain.entity import EntityPath

BATCHES: Final = EntityPath("batches")
REPORTS: Final = EntityPath("reports")
REPLIES: Final = EntityPath("report-replies")

_MOST_CENTS: Final = 100_000


@attrs.frozen
class Transaction:
    """A debit of an account; `cents` below 0: a credit."""

    number: int
    account: int
    cents: int


@attrs.frozen
class Batch:
    """Many transactions in one message: a put, a get and a delete for all of them."""

    id: str
    transactions: tuple[Transaction, ...]


@attrs.frozen
class Slice:
    """The accounts of which a report is wanted: from `first` to before `end`."""

    first: int
    end: int


@attrs.frozen
class Total:
    """All that was counted of one account."""

    account: int
    cents: int
    transactions: int


@attrs.frozen
class Report:
    """The totals of a slice, and the worker that added them up."""

    worker: int
    totals: tuple[Total, ...]


def transactions(count: int, accounts: int, rng: random.Random) -> Iterator[Transaction]:
    """Yield `count` random transactions of `accounts` accounts."""
    for number in range(count):
        cents = rng.randint(-_MOST_CENTS, _MOST_CENTS)
        yield Transaction(number, rng.randrange(accounts), cents)


def batches(each: Iterable[Transaction], size: int) -> Iterator[Batch]:
    """
    Batches of transactions in their order, of `size` each; the last batch may be smaller.

    The id of a batch is always that of the same transactions: so that a repeated batch is
    recognized.
    """
    gathered: list[Transaction] = []
    for transaction in each:
        gathered.append(transaction)
        if len(gathered) == size:
            yield _batch(gathered)
            gathered = []
    if gathered:
        yield _batch(gathered)


def add_up(each: Iterable[Transaction]) -> dict[int, Total]:
    """The totals by account."""
    totals: dict[int, Total] = {}
    for one in each:
        before = totals.get(one.account, Total(one.account, 0, 0))
        totals[one.account] = Total(one.account, before.cents + one.cents, before.transactions + 1)
    return totals


def slices(accounts: int, count: int) -> list[Slice]:
    """All accounts in at most `count` slices, none of them empty."""
    size = -(-accounts // count)  # rounded up
    return [Slice(first, min(first + size, accounts)) for first in range(0, accounts, size)]


def _batch(gathered: list[Transaction]) -> Batch:
    return Batch(f"batch-{gathered[0].number}", tuple(gathered))
