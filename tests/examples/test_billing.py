"""The billing example: its promise holds, and it would notice a breach."""

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from examples.billing.ledger import Ledger
from examples.billing.values import Slice, Total, add_up, batches, slices, transactions
from examples.billing.verdict import Findings
from tests.harness.patience import PATIENCE
from tests.pages import blocks

ROOT = Path(__file__).parents[2]

DAY = tuple(transactions(250, 10, random.Random(1)))
BATCHES = tuple(batches(DAY, 100))
RIGHT = Findings(
    submitted=add_up(DAY),
    reported=add_up(DAY),
    batches=3,
    times={"batch-0": 1, "batch-100": 2, "batch-200": 1},
    receipts=3,
    left=0,
    killed=1,
    reporters=2,
    requests=10,
    bodies=(1000, 1000, 1000),
)


@pytest.mark.slow
def test_each_transaction_is_counted_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    numbers = {"--transactions": 5000, "--batch": 250, "--accounts": 100}
    options = [str(each) for option in numbers.items() for each in option]
    [typed] = blocks("examples/billing/README.md", "sh")
    done = subprocess.run(
        [sys.executable, *typed.split()[1:], *options, "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        counted = database.execute("SELECT sum(transactions) FROM totals").fetchone()
        noted = database.execute("SELECT count(*) FROM batches").fetchone()

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("each transaction was counted exactly once\n")
    assert "was killed" in done.stdout
    assert (counted, noted) == ((5000,), (20,))


def test_a_batch_that_comes_twice_is_counted_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.prepare()
    times = [ledger.count(batch) for batch in (*BATCHES, *BATCHES[:2])]
    found = {total.account: total for total in ledger.totals(Slice(0, 10))}

    assert times == [1, 1, 1, 2, 2]
    assert found == add_up(DAY)
    assert ledger.times() == {"batch-0": 2, "batch-100": 2, "batch-200": 1}


def test_a_batch_has_the_id_of_its_transactions() -> None:
    again = batches(transactions(250, 10, random.Random(1)), 100)

    assert tuple(again) == BATCHES
    assert [len(batch.transactions) for batch in BATCHES] == [100, 100, 50]


@pytest.mark.parametrize("accounts", [1, 5, 12, 13, 1000])
def test_slices_have_each_account_once(accounts: int) -> None:
    parts = slices(accounts, 12)

    assert len(parts) <= 12
    assert [n for part in parts for n in range(part.first, part.end)] == list(range(accounts))


def test_a_message_that_came_twice_and_was_counted_once_is_right() -> None:
    assert RIGHT.mistakes == []
    assert "1 batches came twice" in "\n".join(RIGHT.lines)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reported": {**RIGHT.reported, 3: Total(3, 0, 1)}},
        {"reported": {k: total for k, total in RIGHT.reported.items() if k}},
        {"times": {"batch-0": 1}},
        {"receipts": 2},
        {"left": 1},
    ],
)
def test_a_missing_or_superfluous_count_breaks_the_verdict(wrong: dict[str, object]) -> None:
    found = attrs.evolve(RIGHT, **wrong)

    assert len(found.mistakes) == 1
    assert found.lines[-1].endswith("broken: 1 mistakes")


def test_a_number_that_is_too_small_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.billing", "--workers", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.returncode == 2
    assert "'workers' must be >= 1: 0" in done.stderr
