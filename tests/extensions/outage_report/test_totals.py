"""The totals of an outage are those of all processes of the pair, as far as they are known."""

from datetime import UTC, datetime, timedelta

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


def test_where_no_records_are_read_the_figures_are_those_of_this_process() -> None:
    found = with_others(OUTAGE, {}, {}, "no right to receive")

    assert attrs.evolve(found, left_out=()) == OUTAGE
    assert found.left_out == ("all other processes: no right to receive",)


@pytest.mark.parametrize("part", ["alive", "stale", "ended"])
def test_processes_that_are_gone_have_counted_too_and_this_one_is_no_other(part: str) -> None:
    records = PairRecords(**{part: (gateway(1, 0), record("own"))})

    assert list(by_process(records, "own")) == ["g"]
