"""A run that fails gives a line to repeat it, a schedule of few faults, and one message's way."""

import json
import math
from collections import Counter

import attrs
import pytest

from gateway.checker.history import Attempted, End, Settled, Way
from gateway.checker.operations import Acked, Completed, Delivered, Invoked
from gateway.listening import locks, queue_session
from tests.simulation import runs, world
from tests.simulation.__main__ import main
from tests.simulation.bugs import bug_named
from tests.simulation.caught import caught_from, shrunk_from, told_of
from tests.simulation.coverage import SOMETIMES, unseen
from tests.simulation.diagram import diagram, message_in
from tests.simulation.runs import Figures, Totals, run_seeds
from tests.simulation.scenario import ClockStep
from tests.simulation.seeds import draw
from tests.simulation.shrink import shrink
from tests.simulation.world import run_scenario

pytestmark = pytest.mark.slow

BUG = bug_named("a time-out is a failure")


def test_a_schedule_is_shrunk_to_the_few_faults_that_break_something():
    # Earlier ones break with all of their faults only.
    whole, smallest, problems = BUG.call(shrunk_from, 8)

    assert problems != ()
    assert 1 <= smallest < whole


def test_a_scenario_that_passes_is_left_whole():
    scenario = attrs.evolve(draw(1), windows=draw(1).windows[:3], crashes=())
    assert len(scenario.faults) == 3

    assert shrink(scenario) == scenario


def test_a_failed_run_says_how_to_repeat_it():
    seed, code, errors = BUG.call(told_of, 0, 1, "--hours", "0.01")

    assert code == 1
    assert f"reproduce: python -m tests.simulation --replay {seed}" in errors


def test_a_run_that_breaks_off_is_a_problem_and_says_how_to_repeat_it(capsys, monkeypatch):
    def crash(seed, load):
        raise AssertionError("a bug of the gateway")

    monkeypatch.setattr(runs, "run_world", crash)
    code = main(["--hours", "0.01", "--seed", "7"])

    told = capsys.readouterr().err
    assert code == 1
    assert "seed 7: it broke off: AssertionError('a bug of the gateway')" in told
    assert "--replay 7" in told


def test_a_run_that_makes_no_progress_is_a_problem(monkeypatch):
    monkeypatch.setattr(locks, "PAUSE", 0.0)  # a lock that ends within a second is renewed at once
    monkeypatch.setattr(queue_session, "SHORTEST_LOCK", 0.0)
    behind = ClockStep(process="primary", ahead=-59.85, drift=0.0, at=15.0, back=100.0)
    scenario = attrs.evolve(
        draw(35170267, load=2), windows=(), crashes=(), disk_faults=(), clock_steps=(behind,)
    )
    monkeypatch.setattr(world, "draw", lambda seed, load: scenario)

    late = ClockStep(process="primary", ahead=-59.85, drift=0.0, at=20.0, back=math.inf)
    scenario = attrs.evolve(draw(25, 2), clock_steps=(late,))
    monkeypatch.setattr(runs, "run_world", lambda seed, load: run_scenario(scenario))

    assert "it broke off: Standstill" in runs.figures_of(25, load=2).problem


def test_a_replay_shows_the_fewest_faults_and_the_way_of_the_message(capfd):
    seed, first = BUG.call(caught_from, 8)  # earlier ones have crashes only

    assert main(["--replay", str(seed), "--bug", BUG.name]) == 1

    shown = capfd.readouterr().out
    assert f"seed {seed}: {first}" in shown
    assert "told not to be sent" in first
    assert "the fewest faults that still break something:\n  Window(" in shown
    assert "not sent" in shown.split("\nmessage ")[1]


def test_a_replay_of_what_is_well_says_so(capsys):
    assert main(["--replay", "1"]) == 0

    assert "seed 1: all is well" in capsys.readouterr().out


def test_the_figures_are_json(capsys):
    assert main(["--hours", "0.1", "--seed", "1", "--json"]) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["simulated_hours"] >= 0.1
    assert figures["violations"] == 0
    assert figures["sends"] > 0


def test_a_heavier_load_has_more_sends_and_is_named_with_what_failed():
    seed, _, errors = BUG.call(told_of, 11, 3, "--hours", "0.01")

    assert draw(seed, 3).sends == 3 * draw(seed).sends
    assert f"--replay {seed} --load 3" in errors


@pytest.mark.parametrize(
    "arguments", [["--hours", "0"], ["--hours", "nan"], ["--jobs", "0"], ["--load", "0"]]
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2


def test_the_way_of_a_message_is_drawn_step_by_step():
    attempt = {"at": 2, "entity": "orders", "message_ids": ("0-1-0",), "began": 1, "process": "p"}
    records = [
        Invoked(at=1, message_id="0-1-0", entity="orders", fingerprint="f"),
        Invoked(at=1, message_id="0-2-0", entity="orders", fingerprint="f"),
        Attempted(way=Way.BACKLOG, end=End.ACCEPTED, **attempt),
        Acked(at=3, message_id="0-1-0"),
        Attempted(way=Way.SYPHON, end=End.UNKNOWN, **attempt),
        Settled(at=4, process="p", queue="b", copy="7", message_id="0-1-0"),
        Delivered(at=5, message_id="0-1-0", entity="orders", fingerprint="f", copy="9"),
        Completed(at=6, entity="orders", copy="9"),
        Completed(at=6, entity="orders", copy="8"),
    ]

    lines = diagram(records, "0-1-0").splitlines()

    assert lines[0] == "message 0-1-0"
    assert [line[10 + 66 :].strip() for line in lines[2:]] == [
        "send to orders",
        "send by p: accepted",
        "accepted: None",
        "send by p: unknown",
        "completes copy 7",
        "copy 9",
        "completes copy 9",
    ]
    assert "---->" in lines[2]
    assert "<----" in lines[4]


def test_the_message_of_a_problem_is_found():
    assert message_in("S3 broken: 2-11-0 has arrived") == "2-11-0"
    assert message_in("last-audit/log: accepted=False") == "last-audit/log"
    assert message_in("orders failed for its interval and stays") is None


def test_an_event_that_was_never_seen_is_told():
    seen = Counter({name: 10**6 for name in SOMETIMES if name != "a power cut"})

    assert list(unseen(seen, runs=1000)) == ["a power cut"]
    assert unseen(seen, runs=0) == {}


def test_a_long_run_that_saw_too_little_fails():
    totals = Totals()
    nothing = Figures(
        seed=1,
        seconds=1,
        sends=0,
        faults=0,
        failovers=0,
        seen=Counter(),
        digest="",
        problem="",
    )
    for _ in range(runs.WORTH_COVERING):
        assert totals.passed
        totals.add(nothing)

    assert not totals.passed


def test_several_processes_bring_the_same_in_the_same_order():
    alone, together = run_seeds(284), run_seeds(284, jobs=2)

    assert [next(alone) for _ in range(5)] == [next(together) for _ in range(5)]
    together.close()
