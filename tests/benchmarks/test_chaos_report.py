"""The page and the exit code show the results of the runs."""

import re

import attrs
import pytest

from benchmarks.chaos import checker
from benchmarks.chaos.figures import Recovery, Service
from benchmarks.chaos.report import HEAD, markdown, write_page
from benchmarks.chaos.results import Move, Result, Shade, Target, Timeline, load, save
from benchmarks.chaos.run import BROKEN, MET, MISSED, exit_code

SERVED = Service(
    sent=1000,
    acknowledged=999,
    windows=1.0,
    stall=0.25,
    p50=0.005,
    p99=0.05,
    p999=float("nan"),
    worst=0.3,
)
RESULT = Result(
    name="primary-killed-embedded-0s",
    scenario="primary-killed",
    title="The primary <is killed>",
    topology="embedded",
    interval="0s",
    rate=40.0,
    seed=1,
    proxied=False,
    exit=checker.PASSED,
    undecided=(),
    problems=(),
    messages={"lost": 0, "acked": 999, "duplicated": 3, "amplification": 0.5},
    gateway=SERVED,
    baseline=attrs.evolve(SERVED, acknowledged=500),
    healthy=attrs.evolve(SERVED, p50=0.0031),
    baseline_healthy=attrs.evolve(SERVED, p50=0.0012),
    baseline_lost=0,
    recovery=Recovery(
        failover=0.1,
        good_again=0.0,
        failback=1.5,
        drain=None,
        drain_rate=None,
        diverted=400,
        detour_p50=None,
        detour_p99=None,
        detour_worst=None,
    ),
    baseline_recovery=Recovery(
        failover=None,
        good_again=None,
        failback=2.5,
        drain=None,
        drain_rate=None,
        diverted=0,
        detour_p50=None,
        detour_p99=None,
        detour_worst=None,
    ),
    memory=2**26,
    files=50,
    deepest=321,
    targets=(Target(name="lost", wanted="0", found="0", met=True),),
    timeline=Timeline(
        primary=((0, 80), (1, 0), (2, 80)),
        backlog=((0, 0), (1, 80)),
        baseline=((0, 20), (1, 0), (2, 20)),
        depth=((0.0, 0), (1.5, 80), (2.5, 0)),
        moves=(
            Move(at=1.0, process="gateway", entity="orders", state="secondary"),
            Move(at=2.0, process="gateway", entity="orders", state="primary"),
        ),
        faults=(Shade(kind="killed", target="primary", begin=1.0, end=2.0),),
        healed=2.0,
    ),
    histories=("nemesis.jsonl", "baseline/producer and auditor.jsonl"),
    facts={"processor": "2 x <fast>"},
)
MISSING = (Target(name="longest stall", wanted="at most 4 s", found="9.00 s", met=False),)


def page_of(folder, *results):
    return write_page(results, folder).read_text()


def test_a_saved_run_is_read_as_it_was(tmp_path):
    folder = tmp_path / RESULT.name
    folder.mkdir()

    save(RESULT, folder)

    [read] = load(tmp_path)
    assert markdown([read]) == markdown([RESULT])
    assert page_of(tmp_path, read) == page_of(tmp_path, RESULT)


def test_a_run_of_another_version_is_left_out(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text('{"name": "old"}')

    assert load(tmp_path) == []


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    page = page_of(tmp_path, RESULT)

    assert not re.search(r'(src|href)="(?!#|[a-z0-9-]+/[a-z ./]+")|@import|url\(', page)


def test_the_page_shades_faults_and_shows_entity_states_and_who_accepted(tmp_path):
    page = page_of(tmp_path, RESULT)

    assert "<title>primary killed: 1.0 s to 2.0 s</title>" in page
    assert "<title>orders secondary since 1.00 s</title>" in page
    assert page.count("<polyline") == 4


def test_the_page_says_what_the_gateway_costs_while_all_is_well(tmp_path):
    page = page_of(tmp_path, RESULT)

    assert "<td>p50 before the fault, ms</td><td>3.10</td><td>1.20</td>" in page


def test_what_others_wrote_is_no_markup(tmp_path):
    page = page_of(tmp_path, RESULT)

    assert "The primary &lt;is killed&gt;" in page
    assert "<fast>" not in page


def test_a_number_that_is_not_there_is_left_empty(tmp_path):
    assert "nan" not in page_of(tmp_path, RESULT)
    assert "None" not in markdown([RESULT])


def test_a_missed_target_and_a_problem_are_shown(tmp_path):
    broken = attrs.evolve(
        RESULT, exit=checker.VIOLATED, problems=("S1: m-1 is lost",), targets=MISSING
    )

    page = page_of(tmp_path, broken)

    assert "0 of 1 runs hold" in page
    assert "longest stall 9.00 s, wanted: at most 4 s" in page
    assert "S1: m-1 is lost" in page


def test_the_table_has_a_row_for_each_run():
    lines = markdown([RESULT, RESULT]).splitlines()

    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {len(HEAD) + 1}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, MET),
        ({"targets": MISSING}, MISSED),
        ({"exit": checker.VIOLATED}, BROKEN),
        ({"exit": checker.UNDECIDED, "targets": MISSING}, BROKEN),
    ],
)
def test_the_exit_code_tells_the_worst(changes, code):
    assert exit_code([RESULT, attrs.evolve(RESULT, **changes)]) == code
