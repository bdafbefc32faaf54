"""The audit of what processes say in an outage: its judge, and an outage of seconds."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.fleet import open_fleet
from benchmarks.honesty.judge import (
    GREEN,
    NOTICED,
    Answer,
    Drawn,
    Story,
    TrueCount,
    first_trouble,
    lies_of,
    seconds_of,
)
from benchmarks.honesty.scene import Run, Scene

# Messages wait from 10 to 40; the primary is back at 30.
COUNTS = [TrueCount(at, at + 0.5, 5 * (10 <= at < 40)) for at in range(60)]
STORY = Story(trouble=10.0, repaired=30.0, cured=40.0, counts=COUNTS)
ISO = "1970-01-01T00:00:{:02}+00:00"


def answer(end: int, as_of: int, pending: int | None, **changes: Any) -> Answer:
    """An honest answer but for the changes."""
    backlog = {"pending": pending, "as_of": ISO.format(as_of), "counted": False, "by_entity": None}
    state = changes.pop("state", "empty" if pending == 0 else "moving")
    metrics = {
        "pairgate_backlog_messages": float(pending or 0),
        "pairgate_backlog_time_seconds": float(as_of),
    }
    status = {
        "good": changes.pop("good", end < STORY.trouble + NOTICED or end > STORY.cured),
        "problems": [],
        "progress": {"state": state},
        "namespaces": changes.pop("namespaces", []),
        "pair": {"backlog": {**backlog, **changes.pop("backlog", {})}},
    }
    return Answer(
        process="gateway",
        end=float(end),
        seconds=1.0,
        status=status,
        metrics={} if pending is None else {**metrics, **changes.pop("metrics", {})},
        end_of_metrics=float(end),
        ready=changes.pop("ready", True),
    )


@pytest.mark.parametrize(
    "honest",
    [
        answer(9, 8, 0),
        answer(12, 8, 0),  # true at its date
        answer(12, 8, 3),  # and so is each depth since
        answer(20, 19, 5),
        answer(20, 5, None, state="unknown"),
        answer(48, 38, 5, state="moving"),  # by a reading that was told late
        answer(50, 49, 0),
    ],
)
def test_a_depth_is_judged_by_its_date_and_an_unknown_one_is_no_lie(honest: Answer) -> None:
    assert lies_of(STORY, [honest]) == []


@pytest.mark.parametrize(
    ("lie", "signals"),
    [
        (answer(20, 15, 0), {"depth", "metric", "way home"}),
        (answer(20, 19, 6), {"depth", "metric"}),
        (answer(20, 19, 5, metrics={"pairgate_backlog_messages": 9.0}), {"metric"}),
        (answer(20, 19, 5, backlog={"by_entity": {"orders": 4}}), {"by entity"}),
        (answer(20, 19, 5, state="empty"), {"way home"}),
        (answer(50, 49, 0, state="moving"), {"way home"}),
        (answer(20, 19, 5, ready=False), {"readyz"}),
        (answer(20, 19, 5, good=True), {"verdict"}),
        (answer(50, 49, 0, good=False), {"verdict"}),
        (answer(50, 49, 0, metrics={"pairgate_alarm": 1.0}), {"alarm"}),
        (
            answer(
                50,
                49,
                0,
                namespaces=[{"name": "east", "abilities": {"send": {"state": "no"}}}],
            ),
            {"abilities"},
        ),
    ],
)
def test_each_lie_is_found(lie: Answer, signals: set[str]) -> None:
    found = lies_of(STORY, [lie])

    assert {each.signal for each in found} == signals
    assert seconds_of(found)["gateway", found[0].signal] >= 1.0


def test_a_depth_may_be_too_large_by_the_messages_diverted_since_its_date() -> None:
    """A syphon elsewhere moved as many meanwhile."""
    story = attrs.evolve(STORY, diverted=(20.2, 22.2))
    figures = {"metrics": {"pairgate_backlog_messages": 7.0}}
    counted = answer(25, 19, 7, backlog={"counted": True}, **figures)
    more = answer(25, 19, 8, backlog={"counted": True}, **figures)
    as_read = answer(25, 19, 7, **figures)

    found = [{each.signal for each in lies_of(story, [one])} for one in (counted, more, as_read)]
    assert found == [set(), {"depth"}, {"depth"}]


@pytest.mark.parametrize(
    ("counts", "diverted", "least", "most"),
    [
        ((2, 3), (), 2, 3),
        ((2, 3), (1.5,), 2, 3),  # nothing has left
        ((2, 3), (1.2, 1.4), 1, 4),  # one has left, before the two or after them
        ((9, 2), (), 2, 9),
        ((9, 2), (1.5,), 1, 10),
        ((9, 2), (0.5, 2.5), 2, 9),  # before and after
    ],
)
def test_between_two_counts_messages_may_come_and_leave(
    counts: tuple[int, int], diverted: tuple[float, ...], least: int, most: int
) -> None:
    between = [TrueCount(at, at, messages) for at, messages in zip((1.0, 2.0), counts, strict=True)]
    story = attrs.evolve(STORY, counts=between, diverted=diverted)

    assert story.between(1.0, 2.0) == (least, most)


def test_a_counted_depth_may_lack_the_messages_whose_sends_have_no_answer_yet() -> None:
    often = [TrueCount(tenth / 10, tenth / 10, 5) for tenth in range(600)]
    story = attrs.evolve(STORY, counts=often, diverted=(20.2, 20.4, 21.5))
    figures = {"metrics": {"pairgate_backlog_messages": 3.0}}
    counted = answer(20, 19, 3, backlog={"counted": True}, **figures)
    less = answer(20, 19, 2, backlog={"counted": True}, **figures)
    as_read = answer(20, 19, 3, **figures)

    found = [{each.signal for each in lies_of(story, [one])} for one in (counted, less, as_read)]
    assert found == [set(), {"depth"}, {"depth"}]


@pytest.mark.parametrize(
    ("verdict", "way_home", "waiting", "lies"),
    [
        ("Needs attention: 1", "moving", "5 messages", 0),
        ("All is well", "moving", "5 messages", 1),
        ("Needs attention: 1", "empty", "5 messages", 1),
        ("Needs attention: 1", "moving", "4 messages", 1),
        ("Needs attention: 1", "moving", "about 5 messages", 1),
        ("Needs attention: 1", "moving", "(unknown)", 1),
    ],
)
def test_a_page_shows_one_of_the_statuses_that_it_asked_for(
    verdict: str, way_home: str, waiting: str, lies: int
) -> None:
    told = [{**answer(20, 19, 5).status, "problems": ["x"]}]
    drawn = Drawn(
        process="a", end=20.0, verdict=verdict, way_home=way_home, waiting=waiting, told=told
    )

    assert len(lies_of(STORY, [], [drawn])) == lies


@pytest.mark.parametrize(("diverted", "began"), [((), 30.0), ((3.0,), 30.0), ((3.0, 12.0), 12.0)])
def test_a_trouble_begins_when_the_primary_was_taken_away(
    diverted: tuple[float, ...], began: float
) -> None:
    assert first_trouble(diverted, 10.0, 30.0) == began


def test_a_verdict_has_some_seconds_to_follow() -> None:
    early = answer(int(STORY.trouble + NOTICED), 8, 0, good=True)
    late = answer(int(STORY.cured + GREEN), 44, 0, good=False)

    assert lies_of(STORY, [early, late]) == []


@pytest.mark.slow
async def test_in_an_outage_gateway_and_syphon_say_what_is_true(tmp_path: Path) -> None:
    """The short form of `make honesty`."""
    scene = Scene(
        processes="separate", seconds=6.0, healthy=3.0, after=7.0, pairing='ping_interval = "1s"'
    )
    async with open_fleet(tmp_path) as fleet:
        fleet.start_limit = 60.0  # a busy machine starts slowly
        run = Run(scene, fleet)
        story = await run.perform()
        lies = lies_of(story, run.answers, run.drawn)
        fleet.nursery.cancel_scope.cancel()

    assert {each.process for each in run.answers} == {"gateway", "syphon"}
    assert max(each.messages for each in story.counts) > 0
    assert run.drawn
    assert lies == []
