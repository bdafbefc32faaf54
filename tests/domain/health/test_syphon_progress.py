"""The progress of the backlog: when it will be empty, or why it doesn't move."""

from datetime import timedelta
from typing import Any

import attrs
import pytest

from gateway.domain.health.syphon_progress import Movement, SyphonProgress, progress_of
from gateway.domain.status.pair import BacklogStatus, PairStatus, SyphonStatus
from tests.wire.pairgate.advice import ALIVE, NOW, seen

PAUSED = attrs.evolve(ALIVE, paused=True)


def pair(*, states: dict[str, int] | None = None, **fields: Any) -> PairStatus:
    of_backlog = ("consumers", "last_decrease", "syphons")
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
    )


def told(**fields: Any) -> SyphonProgress:
    return progress_of(pair(**fields), NOW)


def test_a_backlog_that_moves_is_empty_when_its_rate_has_moved_the_rest() -> None:
    assert told(rate=2.0, pending=10) == SyphonProgress(state=Movement.MOVING, seconds_left=5.0)
    assert told(rate=2.0, pending=None).seconds_left is None


@pytest.mark.parametrize(
    ("fields", "state", "why"),
    [
        ({"pending": 0}, Movement.EMPTY, ""),
        ({"pauses": ("* by night",)}, Movement.PAUSED, "* by night"),
        ({"running": False, "consumers": True}, Movement.ELSEWHERE, "another process receives"),
        ({"running": False, "last_decrease": NOW}, Movement.ELSEWHERE, "has fallen"),
        ({"running": False, "syphons": seen(ALIVE)}, Movement.ELSEWHERE, "syphon on gw-1"),
        (
            {"running": False, "syphons": seen(PAUSED)},
            Movement.ABSENT,
            "(process 42), seen 0:00:00",
        ),
        ({"running": False, "syphons": seen()}, Movement.ABSENT, "no syphon has been seen since"),
        (
            {"running": False, "last_decrease": NOW - timedelta(seconds=61)},
            Movement.ABSENT,
            "no syphon runs",
        ),
        ({"running": False, "pending": None}, Movement.UNKNOWN, "doesn't report its depth"),
        ({"states": {"secondary": 2, "suspect": 1}}, Movement.WAITING, "3 of its entities"),
        ({"last_error": "orders: full"}, Movement.WAITING, "orders: full"),
        ({"stalled": True, "last_error": "orders: full"}, Movement.STALLED, "orders: full"),
        ({"stalled": True}, Movement.STALLED, "no reason is known"),
        ({"states": {"pinned": 1}}, Movement.WAITING, "an operator pinned"),
        ({"pending": None}, Movement.UNKNOWN, "doesn't report its depth"),
        ({}, Movement.WAITING, "no message has moved"),
    ],
)
def test_a_backlog_that_does_not_move_has_a_reason(
    fields: dict[str, Any], state: Movement, why: str
) -> None:
    found = told(**fields)

    assert found.state is state
    assert why in found.why
    assert found.seconds_left is None
