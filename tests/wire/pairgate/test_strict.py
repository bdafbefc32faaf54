"""Orders are read as they are meant: no value of another type is converted."""

import json

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import Action
from gateway.domain.operators.process import ProcessAction
from gateway.wire.pairgate import control, drill, probe, purge, redrive


@pytest.mark.parametrize(
    "body",
    [
        {"selection": "all", "executes": True},
        {"selection": [], "executes": True},
        {"selection": {}, "executes": 1},
        {"selection": {}, "spool": "no"},
        {"selection": {}, "rate": "5"},
        {"selection": {}, "most": 5.5},
        {"selection": {"entities": "orders"}},
        {"selection": {"entities": [1]}},
        {"selection": {"after": "2026-11-25T00:00:00"}},
        {"selection": {"after": 5}},
        {"selection": {}, "unknown": 1},
        [],
        "all",
    ],
)
def test_a_value_that_is_no_order_redrives_nothing(body: object) -> None:
    with pytest.raises(InvalidRequest):
        redrive.parse_order(json.dumps(body).encode())


def test_other_orders_are_as_strict() -> None:
    wrong = json.dumps({"reason": {}}).encode()
    for read in (
        lambda: control.parse_order(Action.PAUSE, wrong),
        lambda: control.parse_process_order(ProcessAction.RELOAD, wrong),
        lambda: control.parse_process_order(ProcessAction.DRAIN, b'{"wait": 1}'),
        lambda: drill.parse_order(b'{"seconds": "5"}'),
        lambda: purge.parse_order(b'{"queue": "a", "dead_letters": 1}'),
    ):
        with pytest.raises(InvalidRequest):
            read()


@pytest.mark.parametrize("value", ['{"reason": "a", "reason": "b"}', '{"rate": 1e999}', "[" * 9999])
def test_json_that_parsers_could_read_differently_is_no_order(value: str) -> None:
    body = value.encode()
    for read in (
        lambda: control.parse_order(Action.PAUSE, body),
        lambda: control.parse_process_order(ProcessAction.RELOAD, body),
        lambda: drill.parse_order(body),
        lambda: probe.parse_order(body),
        lambda: purge.parse_order(body),
        lambda: redrive.parse_order(body),
    ):
        with pytest.raises(InvalidRequest, match=r"given twice|out of range|nested|recursion"):
            read()


def test_an_order_is_read_as_it_was_written() -> None:
    order = redrive.parse_order(
        b'{"selection": {"reasons": ["a"], "after": "2026-11-25T00:00:00+00:00"}, "rate": 5}'
    )

    assert order.selection.reasons == ("a",)
    assert order.rate == 5
    assert redrive.parse_order(redrive.build_order(order)) == order
