"""An outage, seen by an observer that doesn't know which attempts counted."""

from math import inf

import pytest

from gateway.checker.outages import Outage

SILENCE = 10.0


def outage(*attempts):
    """
    An outage with these failures: when each began, when it ended, and whether it surely counts.
    """
    one = Outage(SILENCE)
    for began, at, counts in attempts:
        one.record_failure(began, at, counts=counts)
    return one


@pytest.mark.parametrize(
    ("attempts", "since"),
    [
        ([], inf),
        ([(0, 1, True)], 1),
        ([(0, 1, False)], 1),
        ([(0, 1, True), (11, 12, True)], 1),
        ([(0, 1, True), (11.1, 12, True)], 12),
        ([(0, 1, True), (5, 6, False), (15, 16, True)], 1),
        ([(0, 1, True), (12, 13, False)], 1),  # perhaps it says nothing
        ([(0, 1, True), (12, 13, False), (13, 14, True)], 13),
        ([(0, 1, True), (12, 13, False), (9, 14, True)], 1),
        ([(0, 1, True), (12, 13, False), (9, 14, True), (23, 24, True)], 1),
        ([(0, 1, True), (12, 13, False), (9, 14, True), (25, 26, True)], 26),
        ([(0, 1, False), (9, 10, False), (15, 16, False), (26, 27, True)], 1),
        ([(0, 1, False), (9, 10, False), (15, 16, False), (27, 28, True)], 28),
    ],
)
def test_an_outage_begins_with_the_first_failure_that_no_silence_surely_follows(attempts, since):
    assert outage(*attempts).since == since


def test_a_success_ends_an_outage():
    one = outage((0, 1, True), (2, 3, False))
    one.forget()
    assert one.since == inf

    one.record_failure(4, 5, counts=True)
    assert one.since == 5
