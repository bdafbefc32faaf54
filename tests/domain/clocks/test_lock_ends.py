"""The end of a lock, where the clocks of its holder and of its namespace may differ."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from gateway.domain.clocks.lock_ends import OVER, LockEnds

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "earliest", "latest"),
    [
        (60, 160, 160),
        (5, 105, 160),  # a short one, or our clock is a little ahead
        (300, 160, 400),  # a long one, or our clock is behind
        (0.5, 100.5, 160),
        (0, 160, 160),
        (-7140, 160, 160),  # our clock is 2 h ahead
        (7260, 160, 7360),  # it is 2 h behind
    ],
)
def test_a_lock_is_renewed_by_a_usual_ones_end_and_not_lost_before_it(
    seconds: float, earliest: float, latest: float
) -> None:
    until = NOON + timedelta(seconds=seconds)

    assert LockEnds.of(until, NOON, 100.0) == LockEnds(earliest, latest)


def test_a_lock_without_a_date_holds_for_ever() -> None:
    assert LockEnds.of(None, NOON, 100.0) == LockEnds(math.inf, math.inf)


def test_a_lock_that_is_over_was_over_at_any_time() -> None:
    assert max(OVER.earliest, OVER.latest) == -math.inf
