"""The progress of the backlog: when it will be empty, or why it doesn't move."""

from datetime import timedelta
from typing import Any

import attrs
import pytest

from gateway.domain.health.way_home import COUNTED, WayHome, WayHomeProgress, progress_of
from gateway.domain.status.pair import BacklogStatus, PairStatus, SyphonStatus
from tests.wire.pairgate.advice import ALIVE, NOW, seen

PAUSED = attrs.evolve(ALIVE, paused=True)


def pair(*, states: dict[str, int] | None = None, **fields: Any) -> PairStatus:
    of_backlog = ("consumers", "last_decrease", "syphons", "counted", "unknown", "decrease_rate")
    of_backlog += ("syphons_rate",)
    of_pair = {
        name: fields.pop(name) for name in ("primary_answers", "answering") if name in fields
    }
    backlog = {name: fields.pop(name) for name in of_backlog if name in fields}
    pending = fields.pop("pending", 5)
    syphon: dict[str, Any] = {
        "running": True,
        "moved": 0,
        "rate": 0.0,
        "last_moved": None,
        "backing_off": 0,
        "dead_lettered": 0,
    }
    return PairStatus(
        label="east",
        states=states or {},
        entities=(),
        backlog=BacklogStatus(
            wanted=1, usable=1, pending=pending, oldest_age=None, as_of=NOW, **backlog
        ),
        syphon=SyphonStatus(**{**syphon, **fields}),
        sends=(),
        inflight=0,
        max_inflight=1,
        paused=0,
        pauses=0,
        **of_pair,
    )


def told(**fields: Any) -> WayHomeProgress:
    return progress_of(pair(**fields), NOW)


MOVED = {"rate": 2.0, "last_moved": NOW}


def test_a_backlog_that_moves_is_empty_when_its_rate_has_moved_the_rest() -> None:
    assert told(**MOVED, pending=10) == WayHomeProgress(
        state=WayHome.MOVING, seconds_left=5.0, rate=2.0
    )
    assert told(**MOVED, pending=None).seconds_left is None
    # The depth itself shows what all syphons move, less what is diverted meanwhile.
    assert told(**MOVED, pending=10, decrease_rate=4.0).seconds_left == 2.5


def test_a_backlog_that_another_process_moves_has_a_rate_and_an_end() -> None:
    found = told(running=False, pending=450, decrease_rate=90.0, syphons=seen(ALIVE))

    assert (found.state, found.rate, found.seconds_left) == (WayHome.MOVING, 90.0, 5.0)
    assert found.why.startswith("syphon on gw-1")


def test_a_backlog_is_empty_only_if_the_secondary_has_said_so() -> None:
    assert told(**MOVED, pending=0).state is WayHome.EMPTY
    assert told(**MOVED, pending=0, counted=True).state is WayHome.MOVING
    assert told(pending=None, primary_answers=False).state is WayHome.WAITING


def test_a_backlog_whose_messages_have_all_moved_does_not_move_while_late_readings_fall() -> None:
    counted = told(pending=0, counted=True, decrease_rate=9.0)

    assert counted == WayHomeProgress(state=WayHome.WAITING, why=COUNTED)


@pytest.mark.parametrize(
    ("fields", "state", "why"),
    [
        ({**MOVED, "primary_answers": False}, WayHome.WAITING, "can't be reached"),
        ({"rate": 2.0, "last_moved": NOW - timedelta(seconds=4)}, WayHome.WAITING, "no message"),
        ({"pending": 0}, WayHome.EMPTY, ""),
        ({"pauses": ("* by night",)}, WayHome.HELD_BACK, "* by night"),
        ({"running": False, "consumers": True}, WayHome.WAITING, "another process receives"),
        ({"running": False, "last_decrease": NOW}, WayHome.WAITING, "fell lately"),
        ({"running": False, "syphons": seen(ALIVE)}, WayHome.WAITING, "syphon on gw-1"),
        (
            {"running": False, "syphons": seen(PAUSED)},
            WayHome.HELD_BACK,
            "(process 42), seen 0:00:00",
        ),
        ({"running": False, "syphons": seen()}, WayHome.ABSENT, "no syphon has been seen since"),
        (
            {"running": False, "last_decrease": NOW - timedelta(seconds=61)},
            WayHome.ABSENT,
            "no syphon runs",
        ),
        (
            {"running": False, "pending": None, "consumers": True, "unknown": "why"},
            WayHome.UNKNOWN,
            "why",
        ),
        ({"states": {"secondary": 2, "suspect": 1}}, WayHome.WAITING, "3 of its entities"),
        (
            {"states": {"half-open": 1}, "answering": {"half-open": 1}, "running": False},
            WayHome.ABSENT,
            "no syphon runs",
        ),
        ({"last_error": "orders: full"}, WayHome.WAITING, "orders: full"),
        ({"stalled": True, "last_error": "orders: full"}, WayHome.STALLED, "orders: full"),
        ({"stalled": True}, WayHome.STALLED, "no reason is known"),
        ({"states": {"pinned": 1}}, WayHome.HELD_BACK, "an operator pinned"),
        ({"pending": None, "unknown": "why"}, WayHome.UNKNOWN, "why"),
        ({}, WayHome.WAITING, "no message has moved"),
    ],
)
def test_a_backlog_that_does_not_move_has_a_reason(
    fields: dict[str, Any], state: WayHome, why: str
) -> None:
    found = told(**fields)

    assert found.state is state
    assert why in found.why
    assert found.seconds_left is None


def test_a_syphon_elsewhere_moves_the_backlog_at_the_rate_that_it_tells() -> None:
    found = told(running=False, pending=10, syphons=seen(ALIVE), syphons_rate=4.0)
    paused = told(running=False, syphons=seen(PAUSED), syphons_rate=4.0)
    unknown = told(running=False, pending=None, syphons=seen(ALIVE), syphons_rate=4.0)

    assert (found.state, found.rate, found.seconds_left) == (WayHome.MOVING, 4.0, 2.5)
    assert paused.state is WayHome.HELD_BACK
    assert (unknown.state, unknown.seconds_left) == (WayHome.MOVING, None)
