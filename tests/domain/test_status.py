"""What somebody should look at."""

from datetime import UTC, datetime

import pytest

from gateway.domain.status import Alarm, BacklogStatus, PairStatus, Status, SyphonStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pair(usable: int = 9, **standings: int) -> PairStatus:
    return PairStatus(
        label="east",
        standings={name.replace("_", "-"): count for name, count in standings.items()},
        entities=(),
        backlog=BacklogStatus(wanted=10, usable=usable, pending=5, oldest_age=1.5, as_of=NOW),
        syphon=SyphonStatus(running=True, moved=0, rate=0.0, last_moved=None, held=0, parked=0),
        sends=(),
        inflight=0,
        max_inflight=100,
        paused=0,
        pauses=0,
    )


def problems(pair: PairStatus | None = None, *alarms: Alarm) -> tuple[str, ...]:
    return Status(at=NOW, started=NOW, namespaces=(), pair=pair, alarms=alarms).problems


def test_a_process_without_a_pair_has_no_problem() -> None:
    assert problems() == ()


def test_entities_that_wait_for_their_primary_are_problems_and_a_first_failure_is_none() -> None:
    assert problems(pair(suspect=4, secondary=3, half_open=2, pinned=1)) == (
        "entities that are secondary: 3",
        "entities that are half-open: 2",
        "entities that are pinned: 1",
    )


def test_where_all_entities_are_on_their_primary_there_is_no_problem() -> None:
    assert problems(pair(suspect=0, secondary=0, half_open=0, pinned=0)) == ()


@pytest.mark.parametrize(("usable", "told"), [(0, ("no backlog queue can be used",)), (1, ())])
def test_one_backlog_queue_is_enough(usable: int, told: tuple[str, ...]) -> None:
    assert problems(pair(usable)) == told


def test_an_alarm_is_a_problem_whatever_else_there_is() -> None:
    alarm = Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5")

    assert problems(None, alarm) == ("syphon_stalled: pending 5",)
    assert problems(pair(secondary=1), alarm) == (
        "entities that are secondary: 1",
        "syphon_stalled: pending 5",
    )
