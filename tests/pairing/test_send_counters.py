"""What is counted of the sends."""

from gateway.domain.errors import Outcome
from gateway.domain.message import AcceptedBy
from gateway.domain.status import SendCount
from gateway.pairing.send_counters import SendCounters


def test_messages_are_counted_by_who_accepted_them() -> None:
    counters = SendCounters()
    for accepted_by, messages in [
        (AcceptedBy.PRIMARY, 2),
        (AcceptedBy.BACKLOG, 5),
        (AcceptedBy.PRIMARY, 1),
    ]:
        counters.accepted(accepted_by, messages)

    assert counters.all() == [
        SendCount(accepted_by="primary", outcome="accepted", messages=3),
        SendCount(accepted_by="backlog", outcome="accepted", messages=5),
    ]


def test_messages_that_nobody_accepted_are_counted_by_their_outcome() -> None:
    counters = SendCounters()
    for outcome, messages in [(Outcome.UNKNOWN, 2), (Outcome.NOT_SENT, 5), (Outcome.UNKNOWN, 1)]:
        counters.failed(outcome, messages)

    assert counters.all() == [
        SendCount(accepted_by="", outcome="unknown", messages=3),
        SendCount(accepted_by="", outcome="not-sent", messages=5),
    ]
