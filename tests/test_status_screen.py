"""The status on a screen: what matters comes first, nothing twice, and no line is cut."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import attrs
import pytest
from rich.console import Console

from gateway.commands.status_screen import OneScreen, screen
from gateway.domain.errors import Unreachable
from gateway.domain.health.abilities import Abilities, Ability
from gateway.domain.status.process import Status
from gateway.wire.pairgate.advice import problems_of, words_of
from tests.frontends.admin import page_states
from tests.wire.pairgate.status import NOW, OUTAGE, WELL

REMEDY = "check whether the namespace runs, and check its address, DNS and firewalls"


def many() -> Status:
    """64 entities with one reason."""
    return page_states.failed_over(*(f"queue-{number:02}" for number in range(64)))


def shown(status: Status, width: int = 80, height: int = 1000, **terminal: Any) -> list[str]:
    file = StringIO()
    console = Console(file=file, width=width, height=height, **terminal)
    console.print(OneScreen(screen("127.0.0.1:9640", status)))
    return file.getvalue().splitlines()


def in_one_line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    "state",
    [OUTAGE, WELL, many(), *(state() for state in page_states.STATES.values())],
    ids=["outage", "well", "many", *page_states.STATES],
)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_wrap_and_each_problem_is_told_whole_with_its_remedy_once(
    state: Status, width: int
) -> None:
    lines = shown(state, width)
    text = in_one_line(lines)

    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    for each in problems_of(state):
        for words in words_of(each, state.at):
            assert text.count(in_one_line([words.replace("\u200b", "\\u200b")])) == 1


def test_the_verdict_the_backlog_and_its_way_home_come_first_and_the_bill_last() -> None:
    lines = shown(many())

    assert lines[0].endswith(": needs attention")
    assert lines[1].startswith("backlog  11412 messages wait")
    assert lines[2].startswith("way home waiting")
    assert [line for line in lines if line.startswith("bill")] == lines[-2:]


def test_64_entities_with_one_reason_are_one_line() -> None:
    lines = shown(many(), 200)
    [line] = [each for each in lines if "queue-00," in each and "by entity" not in each]

    assert line.startswith("secondary  64 entities (queue-00, queue-01, queue-02 and 61 more) for")
    assert "221280 wait, 221280 diverted, next probe in 0:00:07" in line


def test_a_reason_with_the_name_of_its_entity_is_one_reason() -> None:
    state = many()
    assert state.pair is not None
    entities = [
        attrs.evolve(each, reason=f"{each.entity} is full") for each in state.pair.entities[:64]
    ]
    pair = attrs.evolve(state.pair, entities=tuple(entities))

    text = in_one_line(shown(attrs.evolve(state, pair=pair)))
    assert text.count("is full") == 1
    assert "64 entities (queue-00, queue-01, queue-02 and 61 more)" in text


def test_entities_with_many_reasons_and_those_that_the_status_doesnt_list_are_counted() -> None:
    state = page_states.crowded()
    assert state.pair is not None
    entities = [
        attrs.evolve(each, reason=f"reason {number}")
        for number, each in enumerate(state.pair.entities)
    ]
    lines = shown(attrs.evolve(state, pair=attrs.evolve(state.pair, entities=tuple(entities))))

    assert len([line for line in lines if line.startswith("secondary  tenant-")]) == 10
    assert "           and 9990 more entities" in lines


def test_the_error_of_an_ability_is_told_with_its_age_unless_a_problem_tells_it() -> None:
    failed = Abilities().failed(Ability.MANAGE, Unreachable("no route"), NOW)
    north = attrs.evolve(
        WELL.namespaces[0], abilities=failed.worked(Ability.SEND, NOW).statuses(NOW)
    )

    text = in_one_line(shown(attrs.evolve(WELL, namespaces=(north,))))
    assert f"east, manage 0:00:00 ago: no route; {REMEDY}" in text
    assert in_one_line(shown(many())).count("the connection was refused") == 1


@pytest.mark.parametrize("state", [many, page_states.stalled, page_states.draining])
def test_a_small_screen_shows_the_beginning_and_says_what_is_missing(
    state: Callable[[], Status],
) -> None:
    status = state()
    whole, lines = shown(status), shown(status, height=10)

    assert lines[:9] == whole[:9]
    assert lines[9] == f"... and {len(whole) - 9} more lines: `pairgate status` shows all"


def test_a_program_gets_one_line_for_each_fact() -> None:
    lines = shown(many(), 10_000)

    assert sum(line.startswith("!") for line in lines) == 3
    assert not [line for line in lines[:15] if line.endswith(" ")]


def test_messages_that_may_be_twice_are_told_by_process() -> None:
    well = page_states.healthy()
    assert well.pair is not None
    here, elsewhere, *others = page_states.processes()
    told = (
        attrs.evolve(here, possibly_twice=1),  # older than the count of this process
        attrs.evolve(elsewhere, possibly_twice=4),
        *(attrs.evolve(each, possibly_twice=0) for each in others[:-1]),
        attrs.evolve(others[-1], possibly_twice=None),
    )
    pair = attrs.evolve(well.pair, processes=told, possibly_twice={"producers": 2, "syphon": 1})

    text = in_one_line(shown(attrs.evolve(well, pair=pair), 200))

    unknown = f"{others[-1].name} not told"
    told_as = f"this process 3, serve on gw-2 (process 12) 4, {unknown}"
    assert f"start of each process: {told_as} " in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("serve on gw-1 (process 7)", "gateway"),
        ("syphon on gw-1 (process 7)", "syphon"),
        (None, "gateway"),  # it isn't known: there are no records
    ],
)
def test_the_first_line_says_which_process_tells(name: str | None, kind: str) -> None:
    well = page_states.healthy()
    assert well.pair is not None
    here, *others = page_states.processes()
    told = () if name is None else (attrs.evolve(here, name=name, here=True), *others)

    lines = shown(attrs.evolve(well, pair=attrs.evolve(well.pair, processes=told)), 200)

    assert lines[0].startswith(f"{kind} at ")


def test_processes_that_orders_do_not_reach_are_named_and_doubts_while_one_is_in_force() -> None:
    well, doubt = page_states.healthy(), "the secondary doesn't answer"
    assert well.pair is not None
    missed = ("serve on gw-2 (process 7): why",)
    hint = "serve on gw-2 (process 7): 2 messages wait in its spool"
    pair = attrs.evolve(well.pair, not_reached=missed, reach_unknown=doubt, process_texts=(hint,))
    pinned = attrs.evolve(pair, pins=("* by ann",))
    before, during = (
        in_one_line(shown(attrs.evolve(well, pair=each), 200)) for each in (pair, pinned)
    )

    assert "not reached: serve on gw-2 (process 7): why" in before
    assert hint in before
    assert doubt not in before
    assert f"not known which other processes follow them: {doubt}" in during
