"""The endpoint understands each settlement as its client meant it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import MAX_REASON_LENGTH, Abandon, Complete, DeadLetter, Defer
from gateway.frontends.amqp.disposition_handler import settlement_of
from gateway.wire.amqp.servicebus.links import moment_of, ticks_of
from gateway.wire.amqp.servicebus.settlements import disposition_of, outcome_of, size_of

PROPERTIES = {"a": 1, "b": "two"}
SETTLEMENTS = [
    Complete(),
    Abandon(),
    Abandon(properties=PROPERTIES),
    Defer(properties=PROPERTIES),
    DeadLetter(reason="r", description="d", properties=PROPERTIES),
]


@pytest.mark.parametrize("settlement", [*SETTLEMENTS, Abandon(delivered=False)], ids=repr)
def test_an_outcome_is_read_as_the_settlement_it_was_written_for(settlement):
    assert settlement_of(outcome_of(settlement)) == settlement


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=repr)
def test_a_disposition_is_read_as_the_settlement_it_was_written_for(settlement):
    request = disposition_of(settlement, "token", "session")

    assert request.settlement == settlement
    assert (request.tokens, request.session_id) == (("token",), "session")


@pytest.mark.parametrize("field", ["reason", "description"])
def test_a_reason_above_the_limit_is_not_written(field):
    settlement = DeadLetter(**{"reason": "", field: "x" * (MAX_REASON_LENGTH + 1)})
    for write in (outcome_of, lambda each: disposition_of(each, "token")):
        with pytest.raises(InvalidRequest, match=field):
            write(settlement)


def test_the_size_of_a_settlement_is_that_of_its_properties():
    assert size_of(Complete()) == size_of(Abandon()) == 0
    assert 1000 < size_of(Abandon(properties={"a": "x" * 1000})) < 1100
    with pytest.raises(InvalidRequest, match="properties"):
        size_of(Abandon(properties={"n": 2**70}))


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_date_comes_back_from_its_ticks(moment):
    assert moment_of(ticks_of(moment)) == moment


@pytest.mark.parametrize("ticks", [None, "text", True, 2**63, -1], ids=repr)
def test_invalid_ticks_are_no_date(ticks):
    assert moment_of(ticks) is None


def test_ticks_are_those_of_dotnet():
    assert ticks_of(datetime(1970, 1, 1, tzinfo=UTC)) == 621355968000000000
