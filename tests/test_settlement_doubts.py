"""A delivery whose settlement had no answer isn't said to be lost until a settlement succeeds."""

import pytest
import trio

from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.errors import (
    BrokerError,
    Busy,
    LockLost,
    NotSupported,
    OutcomeUnknown,
    SessionLockLost,
    Unavailable,
)

TOKEN = "A1"


def settle(doubts: SettlementDoubts, error: BrokerError | None = None, token: str = TOKEN) -> None:
    with doubts.settling(token):
        if error is not None:
            raise error


def test_without_doubt_every_error_is_told_as_it_is() -> None:
    doubts = SettlementDoubts()

    for error in (LockLost("too late"), Busy(), Unavailable("down"), NotSupported("defer")):
        with pytest.raises(type(error)):
            settle(doubts, error)
        assert not doubts.about(TOKEN)
    settle(doubts)


@pytest.mark.parametrize("error", [LockLost("too late"), SessionLockLost("too late")])
def test_after_no_answer_a_lost_lock_is_an_unknown_outcome(error: BrokerError) -> None:
    doubts = SettlementDoubts()
    with pytest.raises(OutcomeUnknown, match="no answer"):
        settle(doubts, OutcomeUnknown("no answer"))

    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="had no answer: it may be done"):
            settle(doubts, error)
    with pytest.raises(OutcomeUnknown), doubts.using(TOKEN.lower()):
        raise error
    with pytest.raises(LockLost):
        settle(doubts, error, token="another")


def test_a_success_ends_the_doubt() -> None:
    doubts = SettlementDoubts()
    with pytest.raises(OutcomeUnknown):
        settle(doubts, OutcomeUnknown("no answer"))
    settle(doubts)

    with pytest.raises(LockLost):
        settle(doubts, LockLost("settled before"))


def test_a_definite_failure_after_no_answer_leaves_the_doubt() -> None:
    doubts = SettlementDoubts()
    for error in (OutcomeUnknown("no answer"), Unavailable("down")):
        with pytest.raises(type(error)):
            settle(doubts, error)

    with pytest.raises(OutcomeUnknown):
        settle(doubts, LockLost("too late"))


def test_of_two_at_once_neither_is_lost_while_the_other_is_under_way() -> None:
    doubts = SettlementDoubts()
    doubts.begin(TOKEN)
    doubts.begin(TOKEN)

    assert isinstance(doubts.resolve(TOKEN, LockLost("the other has it")), OutcomeUnknown)
    assert isinstance(doubts.resolve(TOKEN, LockLost("too late")), LockLost)
    assert not doubts.about(TOKEN)


def test_beside_one_that_succeeds_none_is_told_that_nothing_was_done() -> None:
    doubts = SettlementDoubts()

    def settle_twice() -> None:
        with doubts.settling(TOKEN):
            settle(doubts)  # the one that was begun later, whose answer comes first
            raise LockLost("settled before")

    with pytest.raises(OutcomeUnknown):
        settle_twice()


async def test_a_cancelled_settlement_is_in_doubt() -> None:
    doubts = SettlementDoubts()
    with trio.CancelScope() as scope, doubts.settling(TOKEN):
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with pytest.raises(OutcomeUnknown):
        settle(doubts, LockLost("too late"))


def test_the_oldest_doubt_is_forgotten() -> None:
    doubts = SettlementDoubts(most=2)
    for number in range(3):
        doubts.begin(str(number))

    assert [doubts.about(str(number)) for number in range(3)] == [False, True, True]


def test_a_settlement_is_in_doubt_as_long_as_another_one_is_under_way() -> None:
    doubts = SettlementDoubts()
    with doubts.settling(TOKEN):
        assert doubts.about(TOKEN)
        with pytest.raises(OutcomeUnknown):
            settle(doubts, LockLost("the other has it"))

    assert not doubts.about(TOKEN)
