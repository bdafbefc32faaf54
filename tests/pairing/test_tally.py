"""What is counted of the sends."""

from gateway.domain.errors import Outcome
from gateway.domain.message import Leg
from gateway.domain.status import SendCount
from gateway.pairing.tally import SendTally


def test_messages_are_counted_by_the_leg_that_took_them() -> None:
    tally = SendTally()
    for leg, messages in [(Leg.PRIMARY, 2), (Leg.BACKLOG, 5), (Leg.PRIMARY, 1)]:
        tally.accepted(leg, messages)

    assert tally.all() == [
        SendCount(leg="primary", outcome="accepted", messages=3),
        SendCount(leg="backlog", outcome="accepted", messages=5),
    ]


def test_messages_that_no_leg_took_are_counted_by_their_outcome() -> None:
    tally = SendTally()
    for outcome, messages in [(Outcome.UNKNOWN, 2), (Outcome.NOT_SENT, 5), (Outcome.UNKNOWN, 1)]:
        tally.failed(outcome, messages)

    assert tally.all() == [
        SendCount(leg="", outcome="unknown", messages=3),
        SendCount(leg="", outcome="not-sent", messages=5),
    ]
