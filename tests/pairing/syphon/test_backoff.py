"""The syphon backs off from an entity, and restarts with small sends."""

import math
import random

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, EntityNotFound, Unavailable, Unreachable
from gateway.domain.events.gateway import SyphonBackedOff
from gateway.domain.failover import State
from gateway.domain.operators.control import Override
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import START, VirtualClock
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, LABEL, ORDERS, load_of, virtual_time

pytestmark = virtual_time

PAUSE = Backoff(first=10.0, cap=1000.0, jitter=0.0)
OUT = Unavailable("out")


@pytest.fixture
def make(events):
    def make(states=None, primary=None, **bounds):
        rng = random.Random(1)
        load = load_of(primary or MemoryBroker(VirtualClock(), rng))
        return EntityBackoffs(
            rng=rng, observer=events, load=load, largest=8, states=states, **bounds
        )

    return make


@pytest.fixture
def make_states(events):
    def make(**options):
        return EntityStates(
            options=PairOptions(label=LABEL, **options),
            clock=VirtualClock(),
            observer=events,
            rng=random.Random(1),
        )

    return make


@pytest.fixture
async def states(make_states):
    return make_states(failover_interval=60.0)


@pytest.fixture
async def half_open(make_states):
    states = make_states(failover_interval=0.0, successes_to_return=9)
    states.failed(states.begin(ORDERS), OUT)
    states.probed(ORDERS)
    return states


async def test_a_backoff_ends_by_itself(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")
    began = trio.current_time()

    await backoffs.wait_until_resumed(ORDERS)

    assert trio.current_time() - began == pytest.approx(10.0)
    assert not backoffs.is_suspended(ORDERS)


async def test_an_entity_that_isnt_backing_off_isnt_waited_for(make):
    began = trio.current_time()

    await make().wait_until_resumed(ORDERS)

    assert trio.current_time() == began


async def test_a_backoff_is_one_entitys(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")

    assert not backoffs.is_suspended(BILLS)
    assert backoffs.window(BILLS) == 8


async def test_each_failure_after_a_rest_makes_the_next_one_longer(make, events):
    backoffs = make()
    for _ in range(3):
        backoffs.back_off(ORDERS, PAUSE, "out")
        await backoffs.wait_until_resumed(ORDERS)

    assert [event.seconds for event in events.of(SyphonBackedOff)] == [10.0, 20.0, 40.0]


async def test_sends_that_fail_together_are_one_failure(make, events):
    backoffs = make()
    for _ in range(3):
        backoffs.back_off(ORDERS, PAUSE, "out")

    assert [event.seconds for event in events.of(SyphonBackedOff)] == [10.0] * 3


async def test_a_failure_never_shortens_a_rest(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out", least=50.0)
    backoffs.back_off(ORDERS, PAUSE, "out")

    await trio.sleep(49.0)

    assert backoffs.is_suspended(ORDERS)


async def test_a_rest_may_be_short(make):
    backoffs = make()
    backoffs.back_off(ORDERS, Backoff(first=0.25, cap=0.25, jitter=0.0), "out")

    await trio.sleep(0.25)

    assert not backoffs.is_suspended(ORDERS)


async def test_a_success_ends_the_rest_and_begins_slowly(make, nursery):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")
    began = trio.current_time()
    released = []

    async def wait():
        await backoffs.wait_until_resumed(ORDERS)
        released.append(trio.current_time())

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    windows = [backoffs.window(ORDERS)]
    for _ in range(3):
        backoffs.confirm(ORDERS)
        windows.append(backoffs.window(ORDERS))
    await wait_all_tasks_blocked()

    assert released == [began]
    assert windows == [1, 2, 4, 8]


async def test_an_entity_that_is_well_again_takes_no_memory(make):
    backoffs = make()
    empty = entries(backoffs)
    backoffs.back_off(ORDERS, PAUSE, "out")

    for _ in range(3):
        backoffs.confirm(ORDERS)

    assert entries(backoffs) == empty


async def test_each_suspended_entity_is_counted(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")
    backoffs.back_off(BILLS, PAUSE, "out", least=20.0)

    await trio.sleep(9.0)
    both = backoffs.backing_off
    await trio.sleep(1.0)

    assert (both, backoffs.backing_off) == (2, 1)


async def test_a_success_forgets_the_failures_before_it(make, events):
    backoffs = make()
    for _ in range(2):
        backoffs.back_off(ORDERS, PAUSE, "out")
        backoffs.confirm(ORDERS)

    assert [event.seconds for event in events.of(SyphonBackedOff)] == [10.0, 10.0]


async def test_a_failure_makes_it_begin_slowly_again(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")
    backoffs.confirm(ORDERS)

    backoffs.back_off(ORDERS, PAUSE, "out")

    assert backoffs.window(ORDERS) == 1


async def test_a_success_without_a_failure_changes_nothing(make):
    backoffs = make()

    backoffs.confirm(ORDERS)

    assert backoffs.window(ORDERS) == 8


async def test_an_entity_is_gone_since_the_first_time_that_it_was(make):
    backoffs = make()
    first = backoffs.gone_for(ORDERS)
    await trio.sleep(30.0)

    assert (first, backoffs.gone_for(ORDERS)) == (0.0, 30.0)
    assert backoffs.window(ORDERS) == 1
    backoffs.confirm(ORDERS)
    assert backoffs.gone_for(ORDERS) == 0.0


async def test_nobody_knows_of_an_entity_of_which_nothing_was_heard_for_long(make):
    backoffs = make()
    backoffs.gone_for(ORDERS)
    await trio.sleep(3600.0)
    asked = backoffs.gone_for(ORDERS)
    await trio.sleep(3600.5)

    assert (asked, backoffs.gone_for(ORDERS)) == (3600.0, 0.0)
    await trio.sleep(30.0)
    assert backoffs.gone_for(ORDERS) == 30.0


async def test_backoffs_are_bounded_and_the_oldest_goes_first(make):
    backoffs = make(most=2)
    entities = [EntityPath(f"entity-{number}") for number in range(3)]
    for entity in entities:
        backoffs.back_off(entity, PAUSE, "out")
    suspended = [[backoffs.is_suspended(entity) for entity in entities]]
    backoffs.back_off(entities[2], PAUSE, "out")  # is there already: takes no room
    suspended.append([backoffs.is_suspended(entity) for entity in entities])

    assert suspended == [[False, True, True]] * 2


async def test_a_trial_that_fails_closes_a_half_open_entity(make, half_open):
    backoffs = make(half_open)

    backoffs.finish(backoffs.begin(ORDERS), OUT)

    assert half_open.state_of(ORDERS) is State.SECONDARY


async def test_a_trial_that_is_busy_says_nothing_of_a_half_open_entity(make, half_open):
    backoffs = make(half_open)

    for _ in range(9):
        trial = backoffs.begin(ORDERS)
        backoffs.finish(trial, Busy())
        backoffs.release(trial)

    assert half_open.state_of(ORDERS) is State.HALF_OPEN


async def test_a_trial_that_succeeds_too_late_is_a_failure(make, half_open):
    backoffs = make(half_open)
    trial = backoffs.begin(ORDERS)
    await trio.sleep(half_open.options.slowest_success)
    backoffs.finish(trial, None)

    assert half_open.state_of(ORDERS) is State.SECONDARY


async def test_a_failure_that_is_no_trials_says_nothing_of_a_healthy_entity(make, states):
    backoffs = make(states)

    backoffs.finish(backoffs.begin(ORDERS), OUT)

    assert states.state_of(ORDERS) is State.PRIMARY


async def test_a_trial_that_succeeds_counts(make, half_open):
    backoffs = make(half_open)
    for _ in range(8):
        trial = backoffs.begin(ORDERS)
        backoffs.finish(trial, None)
        backoffs.release(trial)

    assert half_open.state_of(ORDERS) is State.PRIMARY


async def test_trials_are_one_at_a_time_and_none_during_a_backoff(make, half_open):
    backoffs = make(half_open)
    backoffs.back_off(ORDERS, PAUSE, "out")
    early = backoffs.begin(ORDERS)
    await trio.sleep(10.0)
    trial, second = backoffs.begin(ORDERS), backoffs.begin(ORDERS)
    backoffs.release(trial)

    assert (early, second) == (None, None)
    assert trial.attempt.trial
    assert backoffs.begin(ORDERS).most == 1


async def test_a_send_to_a_healthy_entity_is_no_trial(make, half_open):
    permit = make(half_open).begin(BILLS)

    assert permit.most == 8
    assert not permit.attempt.trial
    assert make().begin(ORDERS).attempt is None


async def test_a_half_open_entity_has_the_trial_of_whoever_comes_first(make, half_open):
    assert half_open.begin_trial(ORDERS) is not None

    assert make(half_open).begin(ORDERS) is None


async def test_after_a_failure_one_send_at_a_time_tries_the_entity(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out")
    await trio.sleep(10.0)
    first, second, other = (backoffs.begin(each) for each in (ORDERS, ORDERS, BILLS))
    suspended = backoffs.is_suspended(ORDERS)
    backoffs.release(first)

    assert (first.most, second, other.most) == (1, None, 8)
    assert suspended
    assert backoffs.begin(ORDERS) is not None


async def test_a_send_without_an_answer_for_long_is_joined_by_no_other(make):
    backoffs = make()
    permit = backoffs.begin(ORDERS)
    backoffs.hold(permit)
    meanwhile = backoffs.begin(ORDERS)
    backoffs.confirm(ORDERS)
    backoffs.release(permit)

    assert meanwhile is None
    assert backoffs.begin(ORDERS).most == 8  # as if nothing had been


@pytest.mark.parametrize("ends", [True, False])
async def test_a_backoff_after_an_outage_ends_with_it_and_any_other_goes_on(make, ends):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time() if ends else None)
    await trio.sleep(1.0)
    backoffs.load.failed(BILLS, trio.current_time(), Unreachable("refused"))
    await trio.sleep(1.0)
    backoffs.load.answered(BILLS, trio.current_time())
    began = trio.current_time()

    await backoffs.wait_until_resumed(ORDERS)

    assert trio.current_time() - began == pytest.approx(0.0 if ends else 8.0)
    assert backoffs.backing_off == 0
    assert backoffs.begin(ORDERS).most == 1


async def test_a_failure_that_tells_about_the_time_before_the_return_is_not_reported(make, events):
    backoffs = make()
    began = trio.current_time()
    backoffs.load.failed(BILLS, began, Unreachable("refused"))
    backoffs.load.failed(ORDERS, began, Unreachable("refused"))
    await trio.sleep(1.0)
    backoffs.load.answered(BILLS, trio.current_time())

    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=began)
    untold = events.of(SyphonBackedOff)
    backoffs.back_off(ORDERS, PAUSE, "in doubt", outage_at=began, in_doubt=2)
    backoffs.back_off(ORDERS, PAUSE, "again", outage_at=trio.current_time())

    assert backoffs.is_suspended(ORDERS)
    assert untold == []
    assert [each.reason for each in events.of(SyphonBackedOff)] == ["in doubt", "again"]


async def test_an_answer_of_another_entity_ends_no_backoff_while_the_primary_isnt_lost(make):
    backoffs = make()
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time())
    await trio.sleep(1.0)

    backoffs.load.answered(BILLS, trio.current_time())

    assert backoffs.is_suspended(ORDERS)


async def test_a_backoff_ends_when_the_gateway_sends_to_the_entity_again(make, states):
    backoffs = make(states)
    states.failed(states.begin(ORDERS), OUT)
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time())
    await trio.sleep(2.0)
    began = trio.current_time()
    states.sent(states.begin(ORDERS))

    await backoffs.wait_until_resumed(ORDERS)

    assert trio.current_time() == began


async def test_a_backoff_ends_when_the_gateways_namespace_is_back(make, states):
    backoffs = make(states)
    states.failed(states.begin(BILLS), Unreachable("refused"))
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time())
    await trio.sleep(2.0)
    began = trio.current_time()
    states.probed(BILLS, states.begin(BILLS))

    await backoffs.wait_until_resumed(ORDERS)

    assert trio.current_time() == began


async def test_a_diverted_entity_backs_off_until_it_comes_back(make, half_open, nursery):
    backoffs = make(half_open)
    released = []

    async def wait():
        await backoffs.wait_until_resumed(ORDERS)
        released.append(trio.current_time())

    nursery.start_soon(wait)
    await trio.sleep(1000.0)
    before = list(released)
    half_open.force_back(ORDERS)
    now = trio.current_time()
    await wait_all_tasks_blocked()

    assert (before, released) == ([], [now])
    assert backoffs.window(ORDERS) == 1  # gently


async def test_a_suspect_entity_gets_one_trial_after_an_answer_and_is_well_when_it_takes_it(
    make, states
):
    states.failed(states.begin(ORDERS), OUT)
    backoffs = make(states)
    before = backoffs.begin(ORDERS)
    states.probed(ORDERS)

    trial, second = backoffs.begin(ORDERS), backoffs.begin(ORDERS)
    backoffs.finish(trial, None)

    assert (before, second, trial.most) == (None, None, 1)
    assert states.state_of(ORDERS) is State.PRIMARY


async def test_no_entity_is_sent_to_while_the_gateways_namespace_is_lost(make, states):
    states.failed(states.begin(BILLS), Unreachable("refused"))
    backoffs = make(states)

    assert backoffs.begin(ORDERS) is None
    assert backoffs.is_suspended(ORDERS)


async def test_a_send_that_a_suspect_entity_accepts_in_time_makes_it_well(make, states):
    backoffs = make(states)
    permit = backoffs.begin(ORDERS)
    backoffs.silent(permit)
    suspect = states.state_of(ORDERS)
    backoffs.finish(permit, None)

    assert (suspect, states.state_of(ORDERS)) == (State.SUSPECT, State.PRIMARY)


@pytest.mark.parametrize(("seconds", "state"), [(-0.1, State.PRIMARY), (0.0, State.SUSPECT)])
async def test_a_send_that_a_suspect_entity_accepts_too_late_leaves_it_in_doubt(
    make, states, seconds, state
):
    backoffs = make(states)
    permit = backoffs.begin(ORDERS)
    backoffs.silent(permit)
    await trio.sleep(states.options.slowest_success + seconds)
    backoffs.finish(permit, None)

    assert states.state_of(ORDERS) is state


# Waiting


@attrs.define(eq=False)
class Waiting:
    """Notes when a wait returns, and with which answer."""

    returned: list[tuple[float, object]] = attrs.field(factory=list)

    async def run(self, wait, *arguments):
        began = trio.current_time()
        answer = await wait(*arguments)
        self.returned.append((trio.current_time() - began, answer))


def lose(backoffs):
    backoffs.load.failed(BILLS, trio.current_time(), Unreachable("refused"))


def pause(backoffs):
    override = Override(target="orders", reason="", operator="ann", since=START)
    backoffs.pauses.overrides.add([override])
    backoffs.pauses.apply()


def fail(backoffs):
    backoffs.back_off(ORDERS, PAUSE, "out")


@pytest.mark.parametrize("happens", [lose, pause, fail])
async def test_an_entity_is_suspended_at_once_by_all_that_suspends_it(
    make, states, nursery, happens
):
    backoffs, waiting, change = make(states), Waiting(), Waiting()
    nursery.start_soon(waiting.run, backoffs.wait_until_suspended, ORDERS)
    nursery.start_soon(change.run, backoffs.wait_change)
    await trio.sleep(5.0)
    happens(backoffs)
    await wait_all_tasks_blocked()

    assert backoffs.is_suspended(ORDERS)
    assert (waiting.returned, change.returned) == ([(5.0, None)], [(5.0, None)])


async def test_an_entity_that_is_suspended_already_is_not_waited_for(make):
    backoffs, waiting = make(), Waiting()
    fail(backoffs)
    await waiting.run(backoffs.wait_until_suspended, ORDERS)

    assert waiting.returned == [(0.0, None)]


async def test_the_end_of_a_try_lets_the_next_one_begin_at_once(make, nursery):
    backoffs, waiting = make(), Waiting()
    fail(backoffs)
    await trio.sleep(10.0)
    tried = backoffs.begin(ORDERS)
    nursery.start_soon(waiting.run, backoffs.wait_until_resumed, ORDERS)
    await trio.sleep(3.0)
    backoffs.release(tried)
    await wait_all_tasks_blocked()

    assert waiting.returned == [(3.0, None)]


async def test_an_answer_of_any_entity_to_the_gateway_ends_a_backoff_at_once(make, states, nursery):
    backoffs, waiting = make(states), Waiting()
    states.failed(states.begin(BILLS), Unreachable("refused"))
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time())
    nursery.start_soon(waiting.run, backoffs.wait_until_resumed, ORDERS)
    await trio.sleep(2.0)
    states.sent(states.begin(EntityPath("cards")))
    await wait_all_tasks_blocked()

    assert waiting.returned == [(2.0, None)]


async def test_a_success_lets_other_sends_begin_before_the_try_is_released(make):
    backoffs = make()
    fail(backoffs)
    await trio.sleep(10.0)
    backoffs.begin(ORDERS)
    backoffs.confirm(ORDERS)

    assert backoffs.begin(ORDERS) is not None


async def test_messages_are_received_once_the_primary_is_found(make, nursery):
    backoffs, waiting = make(), Waiting()
    await waiting.run(backoffs.wait_for_more)
    lose(backoffs)
    nursery.start_soon(waiting.run, backoffs.wait_for_more)
    await trio.sleep(5.0)
    backoffs.confirm(ORDERS, began=trio.current_time())
    await wait_all_tasks_blocked()

    assert waiting.returned == [(0.0, False), (5.0, True)]


async def test_no_message_is_received_while_a_send_waits_for_room(make, nursery):
    backoffs, waiting = make(), Waiting()
    lose(backoffs)
    backoffs.confirm(ORDERS, began=trio.current_time())

    async def send():
        async with backoffs.load.room(ORDERS):
            await trio.sleep(5.0)

    for _ in range(backoffs.load.limit + 1):
        nursery.start_soon(send)
    await wait_all_tasks_blocked()
    await waiting.run(backoffs.wait_for_more)

    assert waiting.returned == [(5.0, False)]


async def test_an_entity_has_failed_until_the_primary_accepts_a_message_for_it(make):
    backoffs = make()
    failed = [backoffs.failed(ORDERS)]
    fail(backoffs)
    failed.append(backoffs.failed(ORDERS))
    backoffs.confirm(ORDERS)
    failed.append(backoffs.failed(ORDERS))

    assert failed == [False, True, False]


@pytest.mark.parametrize(
    ("outcome", "returned"),
    [("none", (5.0, True)), ("accepted", (2.0, True)), ("failed", (2.0, False))],
)
async def test_the_outcome_of_a_try_is_waited_for_some_time(make, nursery, outcome, returned):
    backoffs, waiting = make(), Waiting()
    fail(backoffs)
    await trio.sleep(10.0)
    nursery.start_soon(waiting.run, backoffs.wait_for_outcome, ORDERS, 5.0)
    await trio.sleep(2.0)
    if outcome == "accepted":
        backoffs.confirm(ORDERS)
    elif outcome == "failed":
        fail(backoffs)
    await trio.sleep(5.0)

    assert waiting.returned == [returned]


async def test_a_spread_time_is_up_to_a_fifth_longer(make):
    backoffs = make()
    spread = [backoffs.spread(10.0) for _ in range(100)]

    assert 10.0 <= min(spread) < 10.5
    assert 11.5 < max(spread) <= 12.0


# Silent and missing entities


@attrs.frozen
class Probed:
    """A primary whose answers to probes never come, unless `answers`; it counts them."""

    answers: bool = False
    probes: list[EntityPath] = attrs.field(factory=list)

    async def probe(self, entity):
        self.probes.append(entity)
        await trio.sleep(0.0 if self.answers else math.inf)


async def test_an_entity_without_an_answer_to_send_and_probe_is_suspended(make):
    backoffs = make(primary=Probed())
    await backoffs.load.ask(ORDERS)

    assert backoffs.is_suspended(ORDERS)
    assert not backoffs.is_suspended(BILLS)


@pytest.mark.parametrize("is_outage", [True, False])
async def test_an_entity_is_probed_after_a_failure_that_counts_as_an_outage(
    make, nursery, is_outage
):
    primary = Probed(answers=True)
    backoffs = make(primary=primary)
    await nursery.start(backoffs.load.run)
    backoffs.back_off(ORDERS, PAUSE, "out", outage_at=trio.current_time() if is_outage else None)
    await trio.sleep(5.0)

    assert primary.probes == ([ORDERS] if is_outage else [])


async def missing(make_states):
    """Failed over, and found missing by a probe."""
    states = make_states(failover_interval=0.0)
    states.failed(states.begin(ORDERS), OUT)
    states.record_unreachable(ORDERS, EntityNotFound("none"))
    return states


async def test_a_missing_entity_that_failed_over_is_tried_after_the_grace(make, make_states):
    backoffs, waiting = make(await missing(make_states), gone_grace=10.0), Waiting()
    await waiting.run(backoffs.wait_until_resumed, ORDERS)
    [(_, seconds)] = backoffs.gone().items()

    assert waiting.returned == [(10.0, None)]
    assert seconds == 10.0


async def test_a_missing_entity_is_suspended_for_the_whole_grace(make, make_states):
    backoffs = make(await missing(make_states), gone_grace=10.0)
    suspended = [backoffs.is_suspended(ORDERS)]
    for pause in (9.5, 0.5):
        await trio.sleep(pause)
        suspended.append(backoffs.is_suspended(ORDERS))

    assert suspended == [True, True, False]


async def test_a_missing_entity_is_tried_at_once_without_a_grace(make, make_states):
    backoffs = make(await missing(make_states), gone_grace=0.0)

    assert not backoffs.is_suspended(ORDERS)


async def test_a_missing_entity_that_an_operator_pinned_is_not_tried(make, make_states):
    states = await missing(make_states)
    states.force_over(ORDERS)
    states.record_unreachable(ORDERS, EntityNotFound("none"))
    backoffs = make(states, gone_grace=10.0)
    suspended = []
    for _ in range(3):
        suspended.append(backoffs.is_suspended(ORDERS))
        await trio.sleep(10.0)

    assert states.unreachable(ORDERS) is not None
    assert suspended == [True] * 3
