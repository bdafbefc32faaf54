"""The requests to a gateway's `/redrive`, and its answers."""

from datetime import UTC, datetime

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.redrive import Group, Redriven, Selection, Survey
from gateway.wire.pairgate.redrive import (
    RedriveOrder,
    build_answer,
    build_order,
    parse_order,
    parse_redriven,
    parse_survey,
)

DATE = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDER = RedriveOrder(
    selection=Selection(reasons=("a",), entities=("orders/*", "b"), before=DATE),
    executes=True,
    rate=2.5,
    most=7,
)


def test_an_order_is_read_as_it_was_written() -> None:
    assert parse_order(build_order(ORDER)) == ORDER
    assert parse_order(b'{"selection": {}}') == RedriveOrder(selection=Selection())


def test_answers_are_read_as_they_were_written() -> None:
    group = Group(reason="a", entity=None, messages=2, moves=1, oldest=DATE, problem="no path")
    survey = Survey(groups=(group,), problems=("silent",), is_outage=True)
    redriven = Redriven(moved=1, left=2, problems=("full",), is_outage=True)

    assert parse_survey(build_answer(survey)) == survey
    assert parse_redriven(build_answer(redriven)) == redriven


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"selection": 1}',
        b'{"selection": {"after": "yesterday"}}',
        b'{"selection": {}, "most": 0}',
        b'{"selection": {}, "most": 1001}',
        b'{"selection": {}, "rate": 0}',
        b'{"selection": {}, "rate": "fast"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_order(data)
