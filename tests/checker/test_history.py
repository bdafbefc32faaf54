"""The default bounds of a run agree with the default options."""

import pytest

from gateway.checker.history import Bounds
from gateway.checker.verdict import Rules
from gateway.domain.backlog import QUEUE_PROPERTIES
from gateway.pairing.options import PairOptions, SyphonOptions

OF_THE_PAIR = (
    "failover_interval",
    "send_timeout",
    "attempt_timeout",
    "suspect_wait",
    "ping_interval",
    "successes_to_return",
    "max_inflight",
)


def test_a_run_promises_what_the_usual_options_do() -> None:
    bounds, pair = Bounds(), PairOptions(label="east")

    assert [getattr(bounds, name) for name in OF_THE_PAIR] == [
        getattr(pair, name) for name in OF_THE_PAIR
    ]
    assert bounds.longest_backoff == SyphonOptions().unknown_retry.cap


def test_a_lock_is_that_of_a_backlog_queue() -> None:
    assert Bounds().lock == QUEUE_PROPERTIES.lock_duration.total_seconds()


def test_dates_are_trusted_after_a_step_of_a_clock_as_they_are_in_a_verdict_alone() -> None:
    assert Bounds().clock_grace == Rules().clock_grace


def test_a_syphon_that_moves_nothing_keeps_no_bound() -> None:
    with pytest.raises(ValueError, match="drain_rate"):
        Bounds(drain_rate=0.0)
