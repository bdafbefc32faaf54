"""The page and the exit code show the results of the runs."""

import re

import attrs
import pytest

from benchmarks.chaos import checker
from benchmarks.chaos.report import HEAD, markdown, write_page
from benchmarks.chaos.results import exit_of, load, save
from benchmarks.chaos.run import BROKEN, MET, MISSED, exit_code
from gateway.checker.invariants import judge_run
from tests.benchmarks.chaos_results import MISSING, RESULT


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


def test_text_of_others_is_no_markup(tmp_path):
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


def test_a_target_that_a_late_harness_missed_is_undecided():
    in_time = attrs.evolve(judge_run([]), undecided=())
    late = attrs.evolve(in_time, late="a producer was 61.0 s late")

    codes = [exit_of(each, targets) for each in (in_time, late) for targets in ((), MISSING)]

    passed, undecided = checker.PASSED, checker.UNDECIDED
    assert codes == [passed, passed, passed, undecided]
