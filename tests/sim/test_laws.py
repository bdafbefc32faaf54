"""What the laws of the simulation hold for broken, and what they don't."""

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Outcome
from gateway.domain.events import StandingChanged
from gateway.testing.faults import Call, Operation
from gateway.testing.sim.clocks import Clocks
from gateway.testing.sim.laws import Laws
from gateway.testing.sim.scenario import ClockStep
from gateway.testing.sim.seeds import draw

ORDERS = EntityPath("orders")


def watching():
    """Laws of a run in which an entity that fails for 5 s must fail over, and that can be seen."""
    pair = attrs.evolve(draw(0).pair, failover_interval=5.0)
    scenario = attrs.evolve(draw(0), pair=pair, syphons=1, windows=(), clients_deadline=None)
    return Laws(scenario, Clocks(lambda *_: None))


async def fail(laws, at, took):
    await trio.sleep_until(at)
    call = Call(operation=Operation.SEND, entity=ORDERS, outcome=Outcome.UNKNOWN, took=took)
    laws.note_call("gateway", "primary", call)


def fail_over(laws):
    over = StandingChanged(entity=ORDERS, before="suspect", after="secondary", reason="")
    laws.note_event(over)


async def test_an_entity_that_fails_for_its_interval_fails_over(autojump_clock):
    laws = watching()
    for at in (4.0, 8.0, 12.0):
        await fail(laws, at, took=3.0)

    assert laws.broken == []
    await fail(laws, 16.0, took=3.0)
    assert laws.broken == ["orders failed for its interval and stays"]


async def test_an_attempt_that_may_not_count_closes_no_gap(autojump_clock):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, 9.0, took=0.75)  # with so little time left it says nothing
    for at in (16.0, 20.0):
        await fail(laws, at, took=4.0)

    assert laws.broken == []


@pytest.mark.parametrize(("cut_off_at", "broken"), [(9.75, 0), (9.65, 1)])
async def test_an_attempt_that_may_not_count_may_begin_a_streak(cut_off_at, broken, autojump_clock):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, cut_off_at, took=0.75)  # 5 s after the failure, or just less
    await fail(laws, 10.5, took=3.0)  # it began before the other, and ends after it
    await fail(laws, 12.0, took=1.5)

    assert len(laws.broken) == broken


@pytest.mark.parametrize(("began", "broken"), [(9.05, []), (9.2, ["after 0.000 s"])])
async def test_one_failure_before_a_silence_and_one_after_it_are_no_outage(
    began, broken, autojump_clock
):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, began + 3.0, took=3.0)
    fail_over(laws)

    assert [one.split("over ")[-1] for one in laws.broken if "failed over" in one] == broken


def test_what_is_left_on_the_primary_is_stuck_there_unless_its_date_is_hours_away():
    laws = watching()
    laws.note_left(0)
    assert laws.broken == []

    laws.note_left(2)
    assert laws.broken == ["the primary still has 2 messages, and doesn't give them"]

    step = ClockStep(process="client", ahead=7200.0, drift=0.0, at=50.0, back=60.0)
    with_clocks = Laws(attrs.evolve(laws.scenario, clock_steps=(step,)), laws.clocks)
    with_clocks.note_left(2)
    assert with_clocks.broken == []
