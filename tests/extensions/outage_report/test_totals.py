"""The totals of an outage are those of all processes of the pair, as far as they are known."""

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.outage import EntityOutage, RecordedOutage
from gateway.extensions.outage_report.totals import by_process, with_others

BEGAN = datetime(2027, 1, 1, 12, tzinfo=UTC)
OUTAGE = RecordedOutage(
    began=BEGAN,
    cause="refused",
    entities=(EntityOutage(entity="orders", began=BEGAN, diverted=5),),
    diverted=5,
    moved=None,
    possibly_twice=1,
    possibly_twice_by_syphon=None,
    dead_lettered={"own": 1},
)


def record(process: str, started: datetime = BEGAN - timedelta(days=1)) -> ProcessRecord:
    return ProcessRecord(
        process=process,
        host="gw-2",
        kind="serve",
        pid=7,
        started=started,
        at=BEGAN,
        interval=600.0,
        version="1",
    )


def gateway(diverted: int, twice: int | None, **options: datetime) -> ProcessRecord:
    count = CountByName(total=diverted, most={"orders": diverted - 1, "bills": 1})
    return attrs.evolve(
        record("g", **options), gateway=GatewayRecord(diverted=count, possibly_twice=twice)
    )


def stalled(process: str, **figures: Any) -> ProcessRecord:
    part = GatewayRecord(twice=0, failed=0, possibly_twice=0, **figures)
    return attrs.evolve(record(process), gateway=part)


def syphon(moved: int, twice: int | None, dead: int) -> ProcessRecord:
    letters = {"TTLExpiredException": dead}
    part = SyphonRecord(moved=CountByName(total=moved), possibly_twice=twice, dead_lettered=letters)
    return attrs.evolve(record("s"), syphon=part)


def test_the_figures_of_others_are_what_they_have_counted_in_the_outage() -> None:
    before = {"g": gateway(100, 2), "s": syphon(900, 0, 3)}
    now = {"g": gateway(140, 3), "s": syphon(943, 4, 5)}

    found = with_others(OUTAGE, before, now)

    assert (found.diverted, found.moved, found.processes, found.left_out) == (45, 43, 3, ())
    assert (found.possibly_twice, found.possibly_twice_by_syphon) == (2, 4)
    assert found.dead_lettered == {"own": 1, "TTLExpiredException": 2}
    assert [each.diverted for each in found.entities] == [45]


def test_an_entity_that_only_others_have_diverted_is_told_without_its_dates() -> None:
    now = {
        each: attrs.evolve(gateway(6, 0, started=BEGAN + timedelta(seconds=1)), process=each)
        for each in ("g", "h")
    }

    found = with_others(OUTAGE, {}, now)

    assert [(each.entity, each.diverted, each.began) for each in found.entities] == [
        ("orders", 15, BEGAN),
        ("bills", 2, None),
    ]
    assert found.troubled == OUTAGE.troubled + 1
    (row,) = [line for line in report_of([found]).splitlines() if line.startswith("| bills")]
    assert row.split(" | ")[1:3] == ["not known", "not known"]


def test_a_process_that_started_in_the_outage_has_counted_all_of_it() -> None:
    now = {"g": gateway(10, 0, started=BEGAN + timedelta(seconds=1))}

    assert with_others(OUTAGE, {}, now).diverted == 15


def test_a_process_whose_earlier_figures_are_unknown_is_left_out_and_named() -> None:
    found = with_others(OUTAGE, {}, {"g": gateway(10, 0)})

    assert (found.diverted, found.processes) == (5, 1)
    assert found.left_out == ("serve on gw-2 (process 7)",)


def test_a_figure_that_a_process_does_not_tell_makes_the_total_unknown() -> None:
    found = with_others(OUTAGE, {"g": gateway(1, None)}, {"g": gateway(2, None)})

    assert (found.diverted, found.possibly_twice) == (6, None)


def test_the_longest_stall_is_that_of_the_slowest_gateway_that_was_in_trouble() -> None:
    before = {
        "g": stalled("g", troubles=3, stalls=(9.0,)),
        "h": stalled("h", troubles=1, stalls=(8.0,)),
    }
    now = {
        "g": stalled("g", troubles=5, stalls=(9.0, 3.5, 1.0)),  # its entities left twice
        "h": stalled("h", troubles=1, stalls=(8.0,)),  # before this outage
    }

    found = with_others(attrs.evolve(OUTAGE, longest_stall=2.0), before, now)

    assert (found.longest_stall, found.processes) == (3.5, 3)
    assert [each.longest_stall for each in found.shares] == [2.0, 3.5]


def test_a_stall_before_the_first_record_that_was_read_is_of_this_outage_while_it_lasts() -> None:
    before = {"g": stalled("g", troubles=1, troubled=2, stalls=(4.0,))}
    now = {"g": stalled("g", troubles=1, troubled=0, stalls=(6.0,))}

    assert with_others(OUTAGE, before, now).longest_stall == 6.0


@pytest.mark.parametrize(
    "now",
    [
        {"troubles": None},  # an earlier version
        {"troubles": 9, "stalls": (1.0,) * 5},  # more than are told
        {"troubles": 1, "stalls": (1.0,), "diverted": CountByName(total=1)},  # without a trouble
    ],
)
def test_a_stall_that_a_gateway_cannot_tell_makes_the_longest_one_unknown(
    now: dict[str, Any],
) -> None:
    before = {"g": stalled("g", troubles=1, stalls=(1.0,))}

    found = with_others(OUTAGE, before, {"g": stalled("g", **now)})

    assert (found.longest_stall, found.processes) == (None, 2)
    assert "| slowest send | not known |" in report_of([found])


def test_a_process_that_saw_no_return_knows_it_from_the_last_one_that_did() -> None:
    first, last = (BEGAN + timedelta(seconds=each) for each in (20, 30))
    before = {
        "s": attrs.evolve(record("s"), primary_back=None),
        "t": attrs.evolve(record("t"), primary_back=first),
        "u": attrs.evolve(record("u"), primary_back=last + timedelta(seconds=1)),
    }
    now = {
        "s": attrs.evolve(record("s"), primary_back=first),
        "t": attrs.evolve(record("t"), primary_back=last),
        "u": before["u"],  # of another outage
    }

    assert with_others(OUTAGE, before, now).namespace_back == last
    assert with_others(OUTAGE, before, before).namespace_back is None


def test_each_process_with_something_to_tell_has_a_row() -> None:
    before = {"g": gateway(1, 0), "s": syphon(0, 0, 0), "t": attrs.evolve(syphon(0, 0, 0))}
    now = {"g": gateway(4, 1), "s": syphon(8, 2, 0), "t": syphon(0, 0, 0)}

    found = with_others(OUTAGE, before, now)

    assert [(each.diverted, each.moved, each.possibly_twice) for each in found.shares] == [
        (5, None, 1),
        (3, None, 1),
        (None, 8, 2),
    ]
    rows = [line for line in report_of([found]).splitlines() if "(process 7)" in line]
    assert rows[0].startswith("| serve on gw-2 (process 7) | 3 | not known | 1 |")


def test_where_no_records_are_read_the_figures_are_those_of_this_process() -> None:
    found = with_others(OUTAGE, {}, {}, "no right to receive")

    assert attrs.evolve(found, left_out=()) == OUTAGE
    assert found.left_out == ("all other processes: no right to receive",)


@pytest.mark.parametrize("part", ["alive", "stale", "ended"])
def test_processes_that_are_gone_have_counted_too_and_this_one_is_no_other(part: str) -> None:
    records = PairRecords(**{part: (gateway(1, 0), record("own"))})

    assert list(by_process(records, "own")) == ["g"]
