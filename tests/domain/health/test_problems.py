"""Two processes have the same problem if kind and entity are the same; a verdict has it once."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.domain.health.problems import Problem, each_once
from gateway.domain.health.process_records import MOST_PROBLEMS, PairRecords, ProcessRecord
from gateway.wire.pairgate.advice import line_of, problems_of
from tests.wire.pairgate.advice import pair
from tests.wire.pairgate.status import WELL

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LOST = Problem(
    kind="namespace-reach",
    entity="east",
    text="namespace east hasn't been reached",
    detail="127.0.0.1: refused; twice",
    since=NOW - MINUTE,
    remedy="check whether the namespace runs",
)
GONE = Problem(
    kind="waiting-gone",
    entity="payments",
    text="messages wait for payments, which is missing or disabled on the primary",
    since=NOW - 2 * MINUTE,
    deadline=NOW + 58 * MINUTE,
    remedy="create or enable it",
)


def record(process: str, *problems: Problem) -> ProcessRecord:
    return ProcessRecord(
        process=process,
        host=f"host-{process}",
        kind="syphon",
        pid=7,
        started=NOW,
        at=NOW,
        interval=30.0,
        problems=problems,
    )


def others(*records: ProcessRecord) -> tuple[Problem, ...]:
    return PairRecords(alive=records).problems_but_for("own")


def test_a_problem_of_several_processes_is_told_once_with_all_their_places() -> None:
    elsewhere = attrs.evolve(LOST, detail="no answer", since=NOW - 2 * MINUTE)
    found = others(record("a", elsewhere), record("b", LOST, GONE), record("own", LOST))
    [both, gone] = each_once([LOST], found)

    assert both == attrs.evolve(
        LOST, processes=("syphon on host-a (process 7)", "syphon on host-b (process 7)")
    )
    assert (gone.key, gone.here, gone.processes) == (
        GONE.key,
        False,
        ("syphon on host-b (process 7)",),
    )
    assert each_once([], found)[0].since == elsewhere.since


def test_problems_of_different_entities_are_different_ones() -> None:
    west = attrs.evolve(LOST, entity="west")

    assert len(each_once([LOST, GONE], others(record("a", west)))) == 3


def test_a_problem_of_another_process_makes_the_pair_red_with_its_place_age_and_remedy() -> None:
    healthy = attrs.evolve(WELL, at=NOW, pair=pair())
    found = others(record("a", LOST, GONE))
    red = attrs.evolve(healthy, pair=attrs.evolve(pair(), process_problems=found))

    assert problems_of(healthy) == ()
    assert [line_of(each, NOW + MINUTE) for each in problems_of(red)] == [
        "at syphon on host-a (process 7): namespace east hasn't been reached for 0:02:00:"
        " 127.0.0.1: refused; twice; check whether the namespace runs",
        "at syphon on host-a (process 7): messages wait for payments, which is missing or disabled"
        " on the primary for 0:03:00; create or enable it, or they are dead-lettered in 0:57:00",
    ]


def test_a_problem_here_names_the_others_between_its_words_and_its_remedy() -> None:
    told = attrs.evolve(LOST, processes=("syphon on a",))

    assert line_of(told, NOW) == (
        "namespace east hasn't been reached for 0:01:00: 127.0.0.1: refused; twice (at syphon on a"
        " too); check whether the namespace runs"
    )


@pytest.mark.parametrize(
    ("renews", "named"),
    [
        (120.0, "syphon on host-a (process 7), silent since 12:00:00 UTC"),
        (150.0, "syphon on host-a (process 7)"),
        (None, "syphon on host-a (process 7)"),  # an earlier version
    ],
)
def test_a_process_that_should_have_told_its_problem_again_is_named_with_its_last_word(
    renews: float | None, named: str
) -> None:
    told = attrs.evolve(record("a", LOST), at=NOW, interval=600.0, renews=renews)

    [found] = PairRecords(at=NOW + 3.5 * MINUTE, alive=(told,)).problems_but_for("b")

    assert found.processes == (named,)


def test_an_event_says_how_long_ago_it_was() -> None:
    stalled = Problem(text="syphon_stalled", last=NOW - MINUTE)

    assert line_of(stalled, NOW) == "syphon_stalled, 0:01:00 ago"


def test_a_process_with_many_problems_leaves_the_verdict_readable() -> None:
    many = (Problem(kind="x", entity=str(number), text="x") for number in range(100))

    assert len(others(record("a", *many))) == MOST_PROBLEMS


def test_a_problem_without_a_kind_as_an_earlier_version_tells_it_is_known_by_its_text() -> None:
    early = Problem(text="it fails")

    [one] = each_once([early], others(record("a", early)))

    assert one.processes == ("syphon on host-a (process 7)",)
