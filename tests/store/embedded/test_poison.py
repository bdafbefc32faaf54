"""A message that takes the gateway down whenever it's delivered doesn't come for ever."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from gateway.store.embedded.counters import DeliveryCounts
from tests.store.embedded.poisoned import LIMIT

ROOT = Path(__file__).parents[3]
ENOUGH = 4 * LIMIT  # lives
DEAD_LETTERED = "dead MaxDeliveryCountExceeded"


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.store.embedded.poisoned"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def last_words(nursery: subprocess.Popen[str], what: str, folder: Path) -> Sequence[str]:
    print(what, folder, file=nursery.stdin, flush=True)
    words: list[str] = []
    for line in nursery.stdout:
        words.append(line.strip())
        if words[-1] in {"died", "ended"}:
            return words
    raise RuntimeError("the nursery has died")


@pytest.mark.parametrize(
    "lives",
    [
        ["consume"],  # dies of it whenever it's delivered
        ["consume", "idle"],  # and is restarted tidily between any two deaths
        ["idle", "consume", "consume"],  # or before
        ["abandon"],  # and once it's given back before
    ],
    ids=" ".join,
)
def test_poison_is_a_dead_letter_after_one_attempt_more_than_allowed(tmp_path, nursery, lives):
    words: list[str] = []
    for what, _ in zip(cycle(lives), range(ENOUGH), strict=False):
        words += last_words(nursery, what, tmp_path)
        if DEAD_LETTERED in words:
            break
    served = [word for word in words if word.startswith("took")]

    assert words[-2:] == [DEAD_LETTERED, "ended"]
    assert LIMIT <= len(served) <= LIMIT + 1
    assert served[-1] == f"took {LIMIT}"


@pytest.mark.parametrize(
    ("counted", "urgent"),
    [
        ([(10, 1), (11, 1)], False),  # new messages
        ([(10, 1), (10, 0), (10, 1)], False),  # given back unseen
        ([(10, 1), (10, 2)], True),  # the first attempt isn't written, and here is another
        ([(9, 1)], True),
        ([(10, 1), (9, 1), (11, 1)], True),
    ],
)
def test_only_what_could_be_lost_twice_asks_for_a_commit(counted, urgent):
    counts = DeliveryCounts(survivors=10)
    for sequence, times in counted:
        counts.set(sequence, times)

    assert counts.urgent is urgent
