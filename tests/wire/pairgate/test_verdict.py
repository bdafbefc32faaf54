"""The verdict of a pair has each problem of its processes once."""

from datetime import UTC, datetime, timedelta

import attrs

from gateway.domain.health.process_records import ProcessRecord, RecordedProblem
from gateway.domain.status.pair import ProcessProblem
from gateway.wire.pairgate.advice import problems_of
from gateway.wire.pairgate.verdict import all_problems, of_others, recorded
from tests.wire.pairgate.advice import pair
from tests.wire.pairgate.status import WELL

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LOST = "namespace east hasn't been reached for 0:01:00: refused; check whether the namespace runs"
GONE = "messages have waited for 0:02:00 for payments, which is missing or disabled on the primary"


def record(process: str, *problems: str) -> ProcessRecord:
    return ProcessRecord(
        process=process,
        host=f"host-{process}",
        kind="syphon",
        pid=7,
        started=NOW,
        at=NOW,
        interval=30.0,
        problems=recorded(problems, NOW),
    )


def test_a_record_has_problems_without_durations_so_that_it_changes_with_them_alone() -> None:
    [lost] = recorded([LOST], NOW)
    later = LOST.replace("0:01:00", "0:01:09")

    assert lost == RecordedProblem(
        text="namespace east hasn't been reached: refused",
        since=NOW - MINUTE,
        remedy="check whether the namespace runs",
    )
    assert recorded([later], NOW)[0].text == lost.text


def test_a_problem_of_two_processes_is_told_once_and_names_the_other() -> None:
    others = of_others([record("a", LOST), record("b", LOST), record("own", LOST)], "own")

    assert all_problems([LOST], others, NOW) == (
        "namespace east hasn't been reached for 0:01:00: refused (at syphon on host-a (process 7),"
        " syphon on host-b (process 7) too); check whether the namespace runs",
    )


def test_a_problem_of_another_process_makes_the_pair_red_with_its_place_age_and_remedy() -> None:
    healthy = attrs.evolve(WELL, at=NOW, pair=pair())
    others = of_others([record("a", LOST, GONE)], "own")
    red = attrs.evolve(healthy, pair=attrs.evolve(pair(), process_problems=others))

    assert problems_of(healthy) == ()
    assert problems_of(attrs.evolve(red, at=NOW + MINUTE)) == (
        "at syphon on host-a (process 7), for 0:02:00: namespace east hasn't been reached:"
        " refused; check whether the namespace runs",
        "at syphon on host-a (process 7), for 0:03:00: messages have waited for payments, which"
        " is missing or disabled on the primary",
    )


def test_a_process_with_many_problems_leaves_the_verdict_readable() -> None:
    many = record("a", *(f"problem {number}" for number in range(100)))

    assert len(of_others([many], "own")) == 20


def test_without_other_processes_a_verdict_is_that_of_the_process() -> None:
    assert all_problems([LOST, GONE], (), NOW) == (LOST, GONE)
    assert all_problems([], [ProcessProblem(process="x", text="y")], NOW) == ("at x: y",)
