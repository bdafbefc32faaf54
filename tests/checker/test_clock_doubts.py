"""The judge bounds the time that a message has lived, where clocks were set meanwhile."""

import pytest

from gateway.checker.clock_doubts import BacklogStay, Span
from gateway.checker.operations import Invoked

SENT = Invoked(at=73.8, message_id="1", entity="orders", fingerprint="f", expires=3673.8)
DATED = Span(73.8, 73.8)


@pytest.mark.parametrize(
    ("now", "lived"),
    [
        (Span(78.0, 79.0), Span(4.2, 5.2)),  # with the time before it came there
        (Span(76.0, 77.25), Span(-1.5, 3.7)),  # its clock was set back: it may say less than none
        (Span(75.0, 76.5), Span(-2.5, -0.5)),
    ],
)
def test_a_stay_that_may_be_less_than_nothing_may_be_told_so(now, lived):
    stay = BacklogStay(enqueued=Span(77.0, 77.5), now=now)

    found = stay.lived(SENT, DATED)

    assert (found.low, found.high) == pytest.approx((lived.low, lived.high))
