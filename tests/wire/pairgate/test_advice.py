"""The status names the problems that an operator should solve."""

import re
from datetime import timedelta

import attrs
import pytest

from gateway.domain.billing import UsageReport
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.errors import BrokerError, NotAuthorized, Unavailable, Unreachable
from gateway.domain.health.abilities import Abilities, Ability
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.problems import Problem
from gateway.domain.status.pair import (
    BusyEntity,
    Cause,
    PairStatus,
    SpoolStatus,
    TroubledEntity,
    Waiting,
)
from gateway.domain.status.process import Alarm, NamespaceStatus, Status
from gateway.wire.pairgate.advice import alarm_problems, line_of, problems_of, words_of
from tests.wire.pairgate.advice import ALIVE, NOW, pair, seen


def problems(pair: PairStatus | None = None, *alarms: Alarm) -> tuple[str, ...]:
    """Each without its advice, which is there."""
    status = Status(at=NOW, started=NOW, namespaces=(), pair=pair, alarms=alarms)
    found = [words_of(each, NOW) for each in problems_of(status)]
    assert all(remedy for _, remedy in found)
    return tuple(text for text, _ in found)


def problems_of_pair(pair: PairStatus) -> tuple[Problem, ...]:
    return problems_of(Status(at=NOW, started=NOW, namespaces=(), pair=pair))


def namespace(**known: BrokerError | None) -> NamespaceStatus:
    """Each ability that is named has failed so, or worked."""
    found = Abilities()
    for name, error in known.items():
        ability = Ability(name)
        found = found.worked(ability, NOW) if error is None else found.failed(ability, error, NOW)
    usage = UsageReport(operations={}, sent=0, received=0, idle_operations=0, idle_seconds=0.0)
    return NamespaceStatus(
        name="west", kind="memory", role="secondary", usage=usage, abilities=found.statuses(NOW)
    )


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"send": None, "receive": None}, []),
        ({"manage": NotAuthorized("401")}, []),
        (
            {"send": Unavailable("503")},
            ["namespace west has accepted no messages for 0:01:00: 503"],
        ),
        ({"receive": Unavailable("503")}, ["namespace west has delivered no messages for 0:01:00"]),
        (
            {"send": Unreachable("refused"), "receive": Unreachable("refused")},
            ["namespace west hasn't been reached for 0:01:00: refused; check whether"],
        ),
    ],
)
def test_a_failure_of_a_namespace_is_a_problem_with_its_remedy_but_for_management(
    known: dict[str, BrokerError | None], told: list[str]
) -> None:
    status = Status(at=NOW + timedelta(minutes=1), started=NOW, namespaces=(namespace(**known),))
    found = [line_of(each, status.at) for each in problems_of(status)]

    assert len(found) == len(told)
    assert all(text.startswith(begin) for text, begin in zip(found, told, strict=True))


def test_a_process_without_a_pair_has_no_problem() -> None:
    assert problems() == ()


def test_entities_that_arent_on_their_primary_are_problems_a_suspect_as_well() -> None:
    assert problems(pair(suspect=4, secondary=3, half_open=2, pinned=1)) == (
        "entities that are suspect: 4",
        "entities that are secondary: 3",
        "entities that are half-open: 2",
        "entities that are pinned: 1",
    )


def test_an_entity_that_the_primary_answers_is_no_problem_any_more() -> None:
    some = attrs.evolve(pair(suspect=1, half_open=3), answering={"half-open": 2})
    all_of_them = attrs.evolve(pair(half_open=2), answering={"half-open": 2})

    assert problems(some) == ("entities that are suspect: 1", "entities that are half-open: 1")
    assert problems(all_of_them) == ()


def test_pinned_entities_are_told_once_by_their_order_where_it_is_known() -> None:
    pinned = attrs.evolve(pair(pinned=1), pins=("orders, by ann since 12:00: migration",))

    assert problems(pinned) == ("pinned to the backlog: orders, by ann since 12:00: migration",)


def test_where_all_entities_are_on_their_primary_there_is_no_problem() -> None:
    assert problems(pair(suspect=0, secondary=0, half_open=0, pinned=0)) == ()


def test_an_entity_that_is_busy_for_too_long_is_named() -> None:
    busy = BusyEntity(entity="orders", seconds=90.0, reason="throttled", text="slow down")
    found = problems(attrs.evolve(pair(), busy=(busy, attrs.evolve(busy, seconds=70.0))))

    assert found == (
        "busy for longer than their failover interval: 2 entities, orders for 0:01:30 (slow down)",
    )


def test_an_entity_that_the_primary_has_lost_is_named() -> None:
    lost = TroubledEntity(
        entity="orders", state="suspect", since=NOW, reason="refused", pinned=False, missing=True
    )
    found = problems(attrs.evolve(pair(), entities=(lost, attrs.evolve(lost, missing=False))))

    assert found == ("missing or disabled on the primary: orders",)


@pytest.mark.parametrize(
    ("usable", "told"), [(0, ("no backlog queue can be used",)), (1, ()), (None, ())]
)
def test_one_backlog_queue_is_enough(usable: int | None, told: tuple[str, ...]) -> None:
    assert problems(pair(usable)) == told


def test_an_alarm_is_a_problem_whatever_else_there_is() -> None:
    alarm = Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5")

    assert problems(None, alarm) == ("syphon_stalled, 0:00:00 ago: pending 5",)
    assert problems(pair(secondary=1), alarm) == (
        "entities that are secondary: 1",
        "syphon_stalled, 0:00:00 ago: pending 5",
    )


def test_an_alarm_that_is_over_is_no_problem() -> None:
    alarm = Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5", over=True)

    assert problems(None, alarm) == ()


def test_an_alarm_says_how_long_ago_it_was() -> None:
    alarm = Alarm(
        event="syphon_stalled", times=2, last=NOW - timedelta(seconds=165), text="pending 5"
    )

    assert problems(None, alarm) == ("syphon_stalled, 0:02:45 ago: pending 5",)


def dead(letters: DeadLetters, dead_lettered: int = 0) -> PairStatus:
    well = pair()
    return attrs.evolve(
        well,
        backlog=attrs.evolve(well.backlog, dead_letters=letters),
        syphon=attrs.evolve(well.syphon, dead_lettered=dead_lettered),
    )


@pytest.mark.parametrize(("free", "count"), [(0, 1), (1, 0), (None, 0)])
def test_a_spool_without_room_is_a_problem(free: int | None, count: int) -> None:
    spool = SpoolStatus(pending=None, oldest_age=None, rate_in=0.0, rate_out=0.0, free_bytes=free)

    assert (
        len([each for each in problems(attrs.evolve(pair(), spool=spool)) if "room" in each])
        == count
    )


def test_dead_letters_of_the_backlog_are_a_problem_with_reasons_age_and_remedy() -> None:
    letters = DeadLetters(
        messages=21, oldest_age=90.4, reasons={"EntityNotFound": 1, "EnvelopeMalformed": 20}
    )

    assert problems(dead(letters)) == (
        "dead letters of the backlog: 20 EnvelopeMalformed, 1 EntityNotFound, the oldest is"
        " 0:01:30 old",
    )


def test_messages_that_merely_expired_are_no_problem() -> None:
    letters = DeadLetters(messages=21, reasons={"TTLExpiredException": 21}, expired=21)

    assert problems(dead(letters)) == ()
    assert len(problems(dead(attrs.evolve(letters, messages=22)))) == 1


def test_where_the_secondary_doesnt_tell_what_this_process_dead_lettered_is_a_problem() -> None:
    (told,) = problems(dead(DeadLetters(), dead_lettered=3))

    assert "3 backlog messages were dead-lettered" in told
    assert "doesn't report" in told


@pytest.mark.parametrize(
    ("messages", "dead_lettered"), [(None, 0), (0, 0), (0, 7)], ids=["unknown", "none", "redriven"]
)
def test_without_dead_letters_there_is_no_problem(messages: int | None, dead_lettered: int) -> None:
    assert problems(dead(DeadLetters(messages=messages), dead_lettered)) == ()


def test_the_cause_of_a_wait_is_a_problem_with_its_remedy_and_how_long_still() -> None:
    gone = Waiting(cause=Cause.GONE, name="misspelt", seconds=60, left=3540)
    wrong = Waiting(cause=Cause.WRONG_MAC, name="1", seconds=90, left=30)
    well = pair()
    troubled = attrs.evolve(well, syphon=attrs.evolve(well.syphon, waiting=(gone, wrong)))

    assert problems(troubled) == (
        "messages wait for misspelt, which is missing or disabled on the primary for 0:01:00",
        "messages with the key '1' have had a wrong MAC for 0:01:30",
    )
    assert [words_of(each, NOW)[1] for each in problems_of_pair(troubled)] == [
        "create or enable it, or they are dead-lettered in 0:59:00",
        "add their gateway's secret to envelope_keys, or they are dead-lettered in 0:00:30",
    ]


def left(**known: object) -> PairStatus:
    """Five messages wait, the primary is well, and no syphon runs in this process."""
    found = pair()
    syphon = attrs.evolve(found.syphon, running=False)
    return attrs.evolve(found, syphon=syphon, backlog=attrs.evolve(found.backlog, **known))


def test_messages_that_nothing_moves_while_the_primary_is_well_are_a_problem_at_once() -> None:
    (found,) = problems(left())

    assert found.startswith("5 messages wait on the backlog, the primary is healthy, and no")
    assert "`pairgate syphon`" in problems_of_pair(left())[0].remedy


@pytest.mark.parametrize(
    "known",
    [
        {"last_decrease": NOW - timedelta(seconds=20)},  # another process moves them
        {"consumers": True},
        {"syphons": seen(ALIVE)},
        {"syphons": SyphonsSeen(at=NOW, consumers=1, unknown="")},
        {"pending": 0},
        {"pending": None},
    ],
)
def test_messages_that_somebody_moves_are_no_problem(known: dict[str, object]) -> None:
    assert problems(left(**known)) == ()


def test_messages_that_only_dead_or_paused_syphons_could_move_are_a_problem_with_their_story() -> (
    None
):
    (dead,) = problems(left(syphons=attrs.evolve(seen(), last=NOW - timedelta(hours=1))))
    (paused,) = problems(left(syphons=seen(attrs.evolve(ALIVE, paused=True))))

    assert "(no syphon has been seen since 2026-01-01 11:00:00 UTC)" in dead
    assert paused.startswith("5 messages wait on the backlog")
    assert "the syphons are paused" in paused


def test_the_syphons_of_all_processes_include_that_of_this_one() -> None:
    here, elsewhere = pair(), left()

    def alive(found: PairStatus, syphons: SyphonsSeen) -> int | None:
        with_these = attrs.evolve(found.backlog, syphons=syphons)
        return attrs.evolve(found, backlog=with_these).syphons_alive

    assert [alive(here, seen()), alive(here, seen(ALIVE)), alive(here, SyphonsSeen())] == [
        1,
        1,
        None,
    ]
    assert alive(elsewhere, seen()) == 0


def test_a_depth_that_fell_long_ago_shows_no_syphon() -> None:
    assert len(problems(left(last_decrease=NOW - timedelta(seconds=61)))) == 1


def test_in_trouble_the_trouble_is_told_and_not_that_the_backlog_waits() -> None:
    suspect = attrs.evolve(left(), states={"suspect": 1})

    assert problems(suspect) == ("entities that are suspect: 1",)


@pytest.mark.parametrize("state", ["suspect", "secondary", "half-open", "pinned"])
def test_each_problem_has_an_advice(state: str) -> None:
    troubled = attrs.evolve(pair(usable=0), states={state: 1})
    alarm = Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5")
    unknown = Alarm(event="quarantined", times=2, last=NOW, text="messages 5")
    found = problems_of(
        Status(at=NOW, started=NOW, namespaces=(), pair=troubled, alarms=(alarm, unknown))
    )

    assert len(found) == 4
    assert all(len(each.remedy) > 20 for each in found)


def test_an_alarm_is_no_command_so_its_advice_names_the_one_that_has_an_option() -> None:
    events = ["backlog_orphaned", "left_untouched", "primary_replaced", "syphon_stalled"]
    alarms = [Alarm(event=each, times=1, last=NOW, text="") for each in events]
    with_option = [each.remedy for each in alarm_problems(alarms) if "--" in each.remedy]

    assert any("--adopt" in each for each in with_option)
    assert all(re.search(r"`pairgate [a-z]+ [^`]*--", each) for each in with_option)
