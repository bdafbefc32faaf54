"""Each process has a wall clock of its own; what one that is wrong may cost is judged exactly."""

from datetime import timedelta
from math import inf

import attrs
import pytest
import trio

from gateway.checker.history import ClockSet, EntityStateMoved
from gateway.domain.errors import Busy, NotAuthorized
from tests.harness.clocks import START
from tests.simulation.clocks import Clocks
from tests.simulation.laws import Laws
from tests.simulation.scenario import CHAOS, CLOCKS, ClockStep, Front
from tests.simulation.seeds import LASTING_STEP, draw
from tests.simulation.world import run_scenario

STEPPED = [draw(seed) for seed in range(300) if draw(seed).clock_steps]
ALONE = [each for each in STEPPED if len(each.faults) == len(each.clock_steps)]


async def test_a_clock_is_wrong_from_its_step_until_it_is_put_right(autojump_clock, nursery):
    told = []
    clocks = Clocks(lambda *what: told.append(what))
    now = trio.current_time()
    step = ClockStep(process="gateway", ahead=-60.0, drift=0.1, at=now + 10.0, back=now + 30.0)

    nursery.start_soon(clocks.trouble, step)
    shown = []
    for moment in (5.0, 20.0, 40.0):
        await trio.sleep_until(now + moment)
        shown.append((clocks.of("syphon in gateway")() - START).total_seconds() - now)

    assert shown == pytest.approx([5.0, -39.0, 40.0])
    assert (clocks.of("primary")() - START).total_seconds() - now == pytest.approx(40.0)
    assert told == [("gateway", -60.0, 0.1), ("gateway", 0.0, 0.0)]


def test_the_steps_of_many_seeds_are_worth_having():
    steps = [step for scenario in STEPPED for step in scenario.clock_steps]
    lasting = [step for step in steps if step.back == inf]

    assert {step.process for step in steps} == set(CLOCKS)
    assert max(step.ahead for step in steps) > 7200.0
    assert min(step.ahead for step in steps) < -7200.0
    assert max(abs(step.ahead) for step in lasting) <= LASTING_STEP
    assert all(step.back <= CHAOS for step in steps if step not in lasting)
    assert len(ALONE) > 5


def test_where_nothing_but_clocks_is_wrong_nothing_moves():
    for scenario in ALONE[:5]:
        outcomes = run_scenario(scenario)

        assert outcomes.problems == ()
        assert [each for each in outcomes.records if isinstance(each, EntityStateMoved)] == []
        assert any(isinstance(each, ClockSet) for each in outcomes.records)


async def test_a_token_is_refused_only_where_clocks_are_too_far_apart():
    scenario = next(each for each in STEPPED if each.parts.front is Front.REST)
    clocks = Clocks(lambda *what: None)

    def refused(ahead, error):
        clocks.of("gateway").set(ahead, 0.0)
        laws = Laws(scenario, clocks)
        laws.note_refusal(error)
        return laws.broken

    apart = timedelta(hours=1, minutes=5).total_seconds()
    assert refused(apart, NotAuthorized("expired")) == []
    assert len(refused(apart - 2.0, NotAuthorized("expired"))) == 1
    assert refused(0.0, Busy("later")) == []


def test_a_process_that_is_not_there_may_have_a_clock_that_is_wrong():
    scenario = next(each for each in STEPPED if each.syphons == 0)
    step = ClockStep(process="syphon", ahead=5.0, drift=0.0, at=20.0, back=inf)

    assert run_scenario(attrs.evolve(scenario, clock_steps=(step,))).problems == ()
