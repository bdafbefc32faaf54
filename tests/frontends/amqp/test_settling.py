"""DispositionHandler of receivers and the settlements that they ask for."""

import pytest

from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Settlement,
)
from gateway.frontends.amqp.disposition_handler import confirmation_of, settlement_of
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    DeliveryState,
    Modified,
    OtherState,
    Outcome,
    Rejected,
)

WHY = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}


def rejected(condition: str, **info: object) -> Rejected:
    return Rejected(error=AmqpError(condition=condition, description="text", info=info))


@pytest.mark.parametrize(
    ("state", "settlement"),
    [
        (ACCEPTED, Complete()),
        (RELEASED, Abandon(delivered=False)),
        (None, Abandon(delivered=False)),
        (Modified(delivery_failed=True), Abandon()),
        (Modified(), Abandon()),
        (Modified(delivery_failed=True, undeliverable_here=True), Defer()),
        (Rejected(), DeadLetter(reason="")),
        (
            rejected("com.microsoft:dead-letter", **WHY),
            DeadLetter(reason="r", description="d"),
        ),
        (rejected("my:reason", x=1), DeadLetter(reason="my:reason", description="text")),
    ],
)
def test_an_outcome_asks_for_a_settlement(
    state: DeliveryState | None, settlement: Settlement
) -> None:
    assert settlement_of(state) == settlement


@pytest.mark.parametrize(
    ("state", "settlement"),
    [
        (Modified(delivery_failed=True, annotations={"n": 1}), Abandon(properties={"n": 1})),
        (Modified(undeliverable_here=True, annotations={"n": 1}), Defer(properties={"n": 1})),
        (
            rejected("com.microsoft:dead-letter", **WHY, n=1),
            DeadLetter(reason="r", description="d", properties={"n": 1}),
        ),
    ],
)
def test_an_outcome_carries_new_properties(state: DeliveryState, settlement: Settlement) -> None:
    assert settlement_of(state) == settlement


def test_a_reason_is_cut_off_where_it_is_too_long() -> None:
    settlement = settlement_of(rejected("com.microsoft:dead-letter", DeadLetterReason="x" * 5000))

    assert isinstance(settlement, DeadLetter)
    assert len(settlement.reason) == MAX_REASON_LENGTH


def test_a_state_that_is_no_outcome_settles_nothing() -> None:
    with pytest.raises(NotSupported, match="an outcome expected"):
        settlement_of(OtherState(code=0x99))


@pytest.mark.parametrize(
    ("state", "confirmation"),
    [
        (ACCEPTED, ACCEPTED),
        (RELEASED, RELEASED),
        (
            Modified(delivery_failed=True, annotations={"n": 1}),
            Modified(delivery_failed=True),
        ),
        (rejected("com.microsoft:dead-letter", **WHY), Rejected()),
        (None, None),
    ],
)
def test_a_receiver_is_told_its_own_outcome(
    state: DeliveryState | None, confirmation: Outcome | None
) -> None:
    assert confirmation_of(state) == confirmation
