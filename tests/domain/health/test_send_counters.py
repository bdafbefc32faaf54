"""The counters of sends."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Busy, MessageTooLarge, NoAnswer, OutcomeUnknown
from gateway.domain.health.distribution import LATENCIES, Distribution
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import SendCount, SendDuration


def durations(*ranges: int, total: float) -> Distribution:
    """A distribution with one value in each of these ranges."""
    counts = tuple(ranges.count(index) for index in range(len(LATENCIES) + 1))
    return Distribution(LATENCIES, counts, total)


def test_messages_are_counted_by_who_accepted_them() -> None:
    counters = SendCounters()
    for accepted_by, messages in [
        (AcceptedBy.PRIMARY, 2),
        (AcceptedBy.BACKLOG, 5),
        (AcceptedBy.PRIMARY, 1),
    ]:
        counters.accepted(accepted_by, messages, 0.5)

    assert counters.all() == [
        SendCount(accepted_by="primary", outcome="accepted", messages=3),
        SendCount(accepted_by="backlog", outcome="accepted", messages=5),
    ]


def test_messages_that_nobody_accepted_are_counted_by_their_outcome_and_error() -> None:
    counters = SendCounters()
    counters.failed(OutcomeUnknown("silence"), 2, 0.5)
    counters.failed(Busy("later", retry_after=1.0), 5, 0.5)
    counters.failed(OutcomeUnknown("silence again"), 1, 0.5)
    counters.failed(None, 4, 0.5)

    assert counters.all() == [
        SendCount(accepted_by="", outcome="unknown", messages=3, error="OutcomeUnknown"),
        SendCount(accepted_by="", outcome="not-sent", messages=5, error="Busy"),
        SendCount(accepted_by="", outcome="unknown", messages=4, error="Cancelled"),
    ]


def test_each_batch_has_a_duration_by_who_accepted_it_or_by_its_error() -> None:
    counters = SendCounters()
    counters.accepted(AcceptedBy.PRIMARY, 10, 2.0)
    counters.accepted(AcceptedBy.PRIMARY, 1, 2.5)
    counters.accepted(AcceptedBy.SPOOL, 1, 0.25)
    counters.failed(NoAnswer("silence"), 1, 20.0)

    assert counters.durations() == [
        SendDuration(accepted_by="primary", error="", seconds=durations(10, 10, total=4.5)),
        SendDuration(accepted_by="spool", error="", seconds=durations(6, total=0.25)),
        SendDuration(accepted_by="", error="NoAnswer", seconds=durations(14, total=20.0)),
    ]


def test_a_refusal_on_arrival_is_counted_by_its_error() -> None:
    counters = SendCounters()
    for messages in (2, 3):
        counters.refused_on_arrival(MessageTooLarge("too large"), messages)

    assert counters.refused() == {"MessageTooLarge": 5}


@given(st.lists(st.floats(0.0, 100.0), max_size=50), st.integers(0, 50))
def test_the_slowest_since_any_moment_is_known_without_a_reset(
    seconds: list[float], before: int
) -> None:
    counters = SendCounters()
    for index, each in enumerate(seconds):
        if index % 2:
            counters.accepted(AcceptedBy.PRIMARY, 1, each)
        else:
            counters.failed(None, 1, each)

    assert counters.batches == len(seconds)
    assert counters.slowest_since(before) == max(seconds[before:], default=0.0)
