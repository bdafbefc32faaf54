"""How long an entity that failed is let rest, and how gently its messages begin again."""

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, Unavailable
from gateway.domain.events import SyphonHeld
from gateway.domain.failover import State
from gateway.pairing import holds as module
from gateway.pairing.holds import Holds
from gateway.pairing.options import PairOptions
from gateway.pairing.standings import Standings
from gateway.testing.clocks import VirtualClock
from tests.pairing.lab import BILLS, LABEL, ORDERS, virtual_time

pytestmark = virtual_time

PAUSE = Backoff(first=10.0, cap=1000.0, jitter=0.0)
OUT = Unavailable("out")


@pytest.fixture
def make(events):
    def make(standings=None):
        return Holds(rng=random.Random(1), observer=events, largest=8, standings=standings)

    return make


@pytest.fixture
async def half_open(events):
    standings = Standings(
        options=PairOptions(label=LABEL, failover_interval=0.0, successes_to_return=9),
        clock=VirtualClock(),
        observer=events,
        rng=random.Random(1),
    )
    standings.failed(standings.begin(ORDERS), OUT)
    standings.probed(ORDERS)
    return standings


async def test_a_hold_ends_by_itself(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")
    began = trio.current_time()

    await holds.wait_release(ORDERS)

    assert trio.current_time() - began == pytest.approx(10.0)
    assert not holds.held(ORDERS)


async def test_who_isnt_held_isnt_waited_for(make):
    began = trio.current_time()

    await make().wait_release(ORDERS)

    assert trio.current_time() == began


async def test_a_hold_is_one_entitys(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")

    assert not holds.held(BILLS)
    assert holds.window(BILLS) == 8


async def test_each_failure_after_a_rest_makes_the_next_one_longer(make, events):
    holds = make()
    for _ in range(3):
        holds.hold(ORDERS, PAUSE, "out")
        await holds.wait_release(ORDERS)

    assert [event.seconds for event in events.of(SyphonHeld)] == [10.0, 20.0, 40.0]


async def test_sends_that_fail_together_are_one_failure(make, events):
    holds = make()
    for _ in range(3):
        holds.hold(ORDERS, PAUSE, "out")

    assert [event.seconds for event in events.of(SyphonHeld)] == [10.0] * 3


async def test_a_failure_never_shortens_a_rest(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out", least=50.0)
    holds.hold(ORDERS, PAUSE, "out")

    await trio.sleep(49.0)

    assert holds.held(ORDERS)


async def test_a_rest_may_be_short(make):
    holds = make()
    holds.hold(ORDERS, Backoff(first=0.25, cap=0.25, jitter=0.0), "out")

    await trio.sleep(0.25)

    assert not holds.held(ORDERS)


async def test_a_success_ends_the_rest_and_begins_slowly(make, nursery):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")
    began = trio.current_time()
    released = []

    async def wait():
        await holds.wait_release(ORDERS)
        released.append(trio.current_time())

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    windows = [holds.window(ORDERS)]
    for _ in range(3):
        holds.confirm(ORDERS)
        windows.append(holds.window(ORDERS))
    await wait_all_tasks_blocked()

    assert released == [began]
    assert windows == [1, 2, 4, 8]


async def test_an_entity_that_is_well_again_takes_no_memory(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")

    for _ in range(3):
        holds.confirm(ORDERS)

    assert not holds._holds


async def test_who_rests_is_counted(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")
    holds.hold(BILLS, PAUSE, "out", least=20.0)

    await trio.sleep(9.0)
    both = holds.resting
    await trio.sleep(1.0)

    assert (both, holds.resting) == (2, 1)


async def test_a_success_forgets_the_failures_before_it(make, events):
    holds = make()
    for _ in range(2):
        holds.hold(ORDERS, PAUSE, "out")
        holds.confirm(ORDERS)

    assert [event.seconds for event in events.of(SyphonHeld)] == [10.0, 10.0]


async def test_a_failure_makes_it_begin_slowly_again(make):
    holds = make()
    holds.hold(ORDERS, PAUSE, "out")
    holds.confirm(ORDERS)

    holds.hold(ORDERS, PAUSE, "out")

    assert holds.window(ORDERS) == 1


async def test_a_success_without_a_failure_changes_nothing(make):
    holds = make()

    holds.confirm(ORDERS)

    assert holds.window(ORDERS) == 8


async def test_an_entity_is_gone_since_the_first_time_that_it_was(make):
    holds = make()
    first = holds.gone_for(ORDERS)
    await trio.sleep(30.0)

    assert (first, holds.gone_for(ORDERS)) == (0.0, 30.0)
    assert holds.window(ORDERS) == 1
    holds.confirm(ORDERS)
    assert holds.gone_for(ORDERS) == 0.0


async def test_nobody_knows_of_an_entity_of_which_nothing_was_heard_for_long(make):
    holds = make()
    holds.gone_for(ORDERS)
    await trio.sleep(3600.0)
    asked = holds.gone_for(ORDERS)
    await trio.sleep(3600.5)

    assert (asked, holds.gone_for(ORDERS)) == (3600.0, 0.0)
    await trio.sleep(30.0)
    assert holds.gone_for(ORDERS) == 30.0


async def test_holds_are_bounded_and_the_oldest_goes_first(make, monkeypatch):
    monkeypatch.setattr(module, "MAX_HOLDS", 2)
    holds = make()
    entities = [EntityPath(f"entity-{number}") for number in range(3)]
    for entity in entities:
        holds.hold(entity, PAUSE, "out")
    held = [[holds.held(entity) for entity in entities]]
    holds.hold(entities[2], PAUSE, "out")  # is there already: takes no room
    held.append([holds.held(entity) for entity in entities])

    assert held == [[False, True, True]] * 2


async def test_a_trial_that_fails_closes_a_half_open_entity(make, half_open):
    holds = make(half_open)

    holds.end_trial(holds.trial(ORDERS), OUT)

    assert half_open.state_of(ORDERS) is State.SECONDARY


async def test_a_trial_that_is_busy_says_nothing_of_a_half_open_entity(make, half_open):
    holds = make(half_open)

    holds.end_trial(holds.trial(ORDERS), Busy())

    assert half_open.state_of(ORDERS) is State.HALF_OPEN


async def test_a_trial_that_succeeds_counts(make, half_open):
    holds = make(half_open)
    for _ in range(8):
        trial = holds.trial(ORDERS)
        holds.end_trial(trial, None)
        holds.release(trial)

    assert half_open.state_of(ORDERS) is State.PRIMARY


async def test_there_is_no_trial_while_it_rests(make, half_open):
    holds = make(half_open)
    holds.hold(ORDERS, PAUSE, "out")

    assert holds.trial(ORDERS) is None
    await trio.sleep(10.0)
    assert holds.trial(ORDERS) is not None


async def test_there_is_no_trial_of_a_healthy_entity_or_without_standings(make, half_open):
    assert make(half_open).trial(BILLS) is None
    assert make().trial(ORDERS) is None


async def test_without_standings_a_trials_end_means_nothing(make, half_open):
    holds, trial = make(), half_open.begin_trial(ORDERS)

    holds.end_trial(trial, None)
    holds.release(trial)

    assert half_open.begin_trial(ORDERS) is None  # it is still on its way


async def test_a_diverted_entity_is_held_until_it_comes_back(make, half_open, nursery):
    holds = make(half_open)
    released = []

    async def wait():
        await holds.wait_release(ORDERS)
        released.append(trio.current_time())

    nursery.start_soon(wait)
    await trio.sleep(1000.0)
    before = list(released)
    half_open.force_back(ORDERS)
    now = trio.current_time()
    await wait_all_tasks_blocked()

    assert (before, released) == ([], [now])
    assert holds.window(ORDERS) == 1  # gently


async def test_a_suspect_entity_gets_one_message_and_is_well_when_it_takes_it(make, events):
    standings = Standings(
        options=PairOptions(label=LABEL, failover_interval=60.0),
        clock=VirtualClock(),
        observer=events,
        rng=random.Random(1),
    )
    standings.failed(standings.begin(ORDERS), OUT)
    holds = make(standings)

    suspect = holds.window(ORDERS)
    holds.confirm(ORDERS)

    assert suspect == 1
    assert standings.state_of(ORDERS) is State.PRIMARY
    assert holds.window(ORDERS) == 8
