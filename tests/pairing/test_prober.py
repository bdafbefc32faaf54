import itertools
import random
from collections import Counter

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    Busy,
    EntityDisabled,
    EntityNotFound,
    NotAuthorized,
    Unavailable,
    Unreachable,
)
from gateway.domain.failover import State
from gateway.pairing.options import EntityRule, PairOptions
from gateway.pairing.prober import AT_ONCE, FIRST, Prober
from gateway.pairing.states import EntityStates
from tests.harness.faults import Hang, Operation, Refuse
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, LABEL, ORDERS, Slow, reaches, refuse, virtual_time

pytestmark = virtual_time

PROBE = Operation.PROBE


@pytest.fixture
def make(harness):
    async def make(**options):
        chosen = PairOptions(label=LABEL, **{"failover_interval": 0.0, **options})
        states = EntityStates(
            options=chosen, clock=harness.clock, observer=harness.events, rng=random.Random(1)
        )
        prober = Prober(
            primary=harness.primary.broker, states=states, options=chosen, rng=harness.rng
        )
        await harness.nursery.start(prober.run)
        make.prober = prober
        return states

    return make


def fail(states, entity=ORDERS):
    states.failed(states.begin(entity), Unavailable("out"))


async def test_nobody_is_probed_while_all_is_well(harness, make):
    await make(failover_interval=60.0)

    await trio.sleep(600.0)

    assert harness.primary.times(PROBE) == []


async def test_probes_begin_at_once_and_come_later_and_later(harness, make):
    states = await make(ping_interval=20.0)
    harness.primary.fail(Refuse())
    started = trio.current_time()
    fail(states)

    await trio.sleep(200.0)

    at = [round(moment - started, 3) for moment in harness.primary.times(PROBE)]
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert at[0] == 0.0
    wanted = [1.0, 2.0, 4.0, 8.0, 16.0, *[20.0] * (len(pauses) - 5)]
    for pause, nominal in zip(pauses, wanted, strict=True):
        assert 0.79 * nominal <= pause <= 1.21 * nominal
    assert len({round(pause, 3) for pause in pauses[5:]}) > 1  # jittered


async def test_enough_probes_bring_an_entity_back_without_traffic(harness, make):
    states = await make(successes_to_return=3)
    fail(states)
    started = trio.current_time()

    await reaches(states, State.PRIMARY)

    assert len(harness.primary.times(PROBE)) == 3
    assert 1.6 <= trio.current_time() - started <= 2.4  # a second between two
    await trio.sleep(600.0)
    assert len(harness.primary.times(PROBE)) == 3


async def test_a_failed_probe_closes_a_half_open_entity(harness, make):
    states = await make(successes_to_return=3)
    fail(states)
    await wait_all_tasks_blocked()
    assert states.state_of(ORDERS) is State.HALF_OPEN
    harness.primary.fail(Refuse())

    await trio.sleep(2.0)

    assert states.state_of(ORDERS) is State.SECONDARY


async def test_successes_before_a_failure_dont_count(harness, make):
    states = await make(successes_to_return=2)
    fail(states)
    await wait_all_tasks_blocked()
    fail(states)
    assert states.state_of(ORDERS) is State.SECONDARY

    await wait_all_tasks_blocked()

    assert states.state_of(ORDERS) is State.HALF_OPEN


async def test_a_hanging_probe_is_a_failed_one(harness, make):
    states = await make(attempt_timeout=5.0, successes_to_return=2)
    fail(states)
    await wait_all_tasks_blocked()
    harness.primary.fail(Hang())

    await trio.sleep(7.0)

    assert states.state_of(ORDERS) is State.SECONDARY


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled])
async def test_an_entity_that_a_probe_finds_gone_stays_out_and_is_probed_on(harness, make, error):
    states = await make()
    harness.primary.fail(refuse(error, "gone"), PROBE)
    fail(states)
    await trio.sleep(10.0)
    found = states.unreachable(ORDERS)
    harness.primary.heal()

    await reaches(states, State.PRIMARY)

    assert isinstance(found, error)
    assert states.unreachable(ORDERS) is None


async def test_a_probe_leaves_no_message(harness, make):
    states = await make()
    fail(states)

    await reaches(states, State.PRIMARY)

    assert await harness.primary.ids() == []


async def test_a_pinned_entity_isnt_probed(harness, make):
    states = await make()
    states.force_over(ORDERS)

    await trio.sleep(600.0)

    assert harness.primary.times(PROBE) == []


async def test_pinning_ends_the_probes(harness, make):
    states = await make()
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(10.0)
    states.force_over(ORDERS)
    await wait_all_tasks_blocked()
    before = len(harness.primary.times(PROBE))

    await trio.sleep(600.0)

    assert len(harness.primary.times(PROBE)) == before


async def test_an_entity_that_fails_again_is_probed_at_once_again(harness, make):
    states = await make(successes_to_return=1)
    fail(states)
    await reaches(states, State.PRIMARY)
    await wait_all_tasks_blocked()
    harness.primary.fail(Refuse())
    before = len(harness.primary.times(PROBE))

    fail(states)
    await wait_all_tasks_blocked()

    assert len(harness.primary.times(PROBE)) == before + 1


async def test_many_entities_take_turns(harness, make):
    states = await make(attempt_timeout=5.0)
    harness.primary.fail(Hang())
    for number in range(AT_ONCE + 1):
        fail(states, EntityPath(f"entity-{number}"))

    await trio.sleep(4.5)
    first = len(harness.primary.times(PROBE))
    await trio.sleep(0.6)

    assert first == AT_ONCE
    assert len({a.entity for a in harness.primary.asked}) == AT_ONCE + 1


async def test_no_more_than_sixteen_probes_are_on_their_way(harness, make):
    states = await make(attempt_timeout=5.0)
    harness.primary.fail(Hang())
    for number in range(40):
        fail(states, EntityPath(f"entity-{number}"))

    await wait_all_tasks_blocked()
    at_first = len(harness.primary.times(PROBE))
    await trio.sleep(4.9)

    assert at_first == 4  # until answers show that the namespace is quick
    assert len(harness.primary.times(PROBE)) == 16


async def test_a_busy_namespace_gets_one_probe_at_a_time(harness, make):
    @attrs.frozen
    class BusySoon:
        async def strike(self, _work, _nursery):
            under_way.append(1)
            most.append(len(under_way))
            await trio.sleep(0.1)
            under_way.pop()
            raise Busy

    under_way, most = [], []
    states = await make()
    harness.primary.fail(BusySoon())
    for number in range(40):
        fail(states, EntityPath(f"entity-{number}"))
    await trio.sleep(30.0)

    assert max(most[:10]) == FIRST
    assert max(most[20:]) == 1


async def test_an_entity_that_is_pinned_while_it_waits_for_its_turn_isnt_probed(harness, make):
    states = await make(attempt_timeout=5.0)
    harness.primary.fail(Hang())
    for number in range(AT_ONCE):
        fail(states, EntityPath(f"entity-{number}"))
    await wait_all_tasks_blocked()
    fail(states)
    await wait_all_tasks_blocked()

    states.force_over(ORDERS)
    await trio.sleep(600.0)

    assert ORDERS not in {asked.entity for asked in harness.primary.asked}


async def test_a_probe_that_hangs_is_called_says_how_long_it_took(harness, make):
    states = await make(attempt_timeout=5.0, successes_to_return=2)
    fail(states)
    await wait_all_tasks_blocked()
    harness.primary.fail(Hang())

    await trio.sleep(7.0)

    [state] = states.troubled()
    assert "no answer from orders within 5 s" in state.reason


async def test_a_probe_has_as_long_as_an_attempt(harness, make):
    states = await make(attempt_timeout=5.0, successes_to_return=2, slow_call_duration=None)
    harness.primary.fail(Slow(4.9), PROBE)
    fail(states)

    await trio.sleep(5.0)

    assert states.state_of(ORDERS) is State.HALF_OPEN


async def test_after_a_success_the_pauses_begin_small_again(harness, make):
    states = await make(ping_interval=60.0, successes_to_return=2)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(30.0)
    harness.primary.heal()
    await reaches(states, State.HALF_OPEN)
    harness.primary.fail(Refuse())
    before = len(harness.primary.times(PROBE))

    await trio.sleep(10.0)

    first, second, third = harness.primary.times(PROBE)[before : before + 3]
    assert 0.79 <= second - first <= 1.21
    assert 1.59 <= third - second <= 2.41


@pytest.mark.parametrize("fault", [Hang(), refuse(EntityNotFound, "gone")])
async def test_probes_come_later_and_later_however_they_fail(harness, make, fault):
    states = await make(attempt_timeout=1.0, ping_interval=20.0)
    harness.primary.fail(fault)
    fail(states)

    await trio.sleep(100.0)

    assert 7 <= len(harness.primary.times(PROBE)) <= 10


async def test_an_entity_that_fails_again_long_after_is_probed_again(harness, make):
    states = await make(successes_to_return=1)
    fail(states)
    await reaches(states, State.PRIMARY)
    await trio.sleep(60.0)
    harness.primary.fail(Refuse())
    before = len(harness.primary.times(PROBE))

    fail(states)
    await wait_all_tasks_blocked()

    assert len(harness.primary.times(PROBE)) == before + 1


async def test_an_entity_that_fails_while_another_is_probed_is_probed_too(harness, make):
    states = await make()
    harness.primary.fail(Refuse())
    fail(states, EntityPath("other"))
    await trio.sleep(10.0)
    before = len(harness.primary.times(PROBE))

    fail(states)
    await wait_all_tasks_blocked()

    assert [asked.entity for asked in harness.primary.asked[before:]] == [ORDERS]


async def test_each_entity_has_one_series_of_probes(harness, make):
    states = await make(ping_interval=20.0)
    harness.primary.fail(Refuse())
    fail(states)
    for number in range(5):
        await trio.sleep(0.01)
        fail(states, EntityPath(f"entity-{number}"))

    await trio.sleep(0.5)

    asked = [each.entity for each in harness.primary.asked]
    assert len(asked) == len(set(asked)) == 6


async def test_an_entity_that_is_failed_over_when_the_prober_begins_is_probed(harness):
    options = PairOptions(label=LABEL, failover_interval=0.0)
    states = EntityStates(
        options=options, clock=harness.clock, observer=harness.events, rng=random.Random(1)
    )
    fail(states)
    prober = Prober(primary=harness.primary.broker, states=states, options=options, rng=harness.rng)

    await harness.nursery.start(prober.run)
    await wait_all_tasks_blocked()

    assert len(harness.primary.times(PROBE)) == 1


async def test_the_next_probe_is_foretold_while_an_entity_needs_probes(harness, make):
    states = await make(ping_interval=20.0)
    next_probe = make.prober.next_probe
    harness.primary.fail(Refuse())
    before = next_probe(ORDERS)
    fail(states)
    await trio.sleep(0.1)
    foretold = trio.current_time() + next_probe(ORDERS)
    first, *_ = harness.primary.times(PROBE)
    await trio.sleep(5.0)
    _, second, *_ = harness.primary.times(PROBE)
    harness.primary.heal()
    await reaches(states, State.PRIMARY)

    assert before is None
    assert first < foretold == pytest.approx(second)
    assert next_probe(ORDERS) is None


async def test_while_the_namespace_is_lost_the_next_probe_is_that_of_any_entity(harness, make):
    states = await make(ping_interval=20.0)
    harness.primary.fail(Refuse(lambda: Unreachable("no connection")))
    states.failed(states.begin(ORDERS), Unreachable("no connection"))
    states.failed(states.begin(BILLS), Unreachable("no connection"))
    await trio.sleep(30.0)
    foretold = {trio.current_time() + make.prober.next_probe(each) for each in (ORDERS, BILLS)}
    probes = len(harness.primary.times(PROBE))
    await trio.sleep(30.0)

    assert states.evidence.namespace.is_lost
    assert [*foretold] == [pytest.approx(harness.primary.times(PROBE)[probes])]


async def flapped(harness, states):
    """The entity has returned, failed again, and is half-open for 40 s more."""
    fail(states)
    await reaches(states, State.PRIMARY)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(2.0)
    harness.primary.heal()
    await reaches(states, State.HALF_OPEN)


async def test_an_entity_whose_past_alone_delays_its_return_is_answering_after_three_seconds(
    harness, make
):
    states = await make()
    await flapped(harness, states)
    at_first = dict(states.answering())

    at_last = []
    for _ in range(30):
        await trio.sleep(1.0)
        at_last.append(dict(states.answering()))
    await reaches(states, State.PRIMARY)

    assert at_first == {}
    assert at_last == [{}, {}, *[{State.HALF_OPEN: 1}] * 28]
    assert states.answering() == {}


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_an_entity_that_fails_or_is_silent_again_isnt_answering(harness, make, fault):
    states = await make(slow_call_duration=2.0)
    await flapped(harness, states)
    await trio.sleep(10.0)
    before = dict(states.answering())
    harness.primary.fail(fault)

    await trio.sleep(3.1)

    assert before == {State.HALF_OPEN: 1}
    assert states.answering() == {}


# The return of the namespace


async def test_at_a_return_that_others_have_seen_all_troubled_entities_are_probed_at_once(
    harness, make
):
    """Receivers are answered before the next probe is due."""
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    for entity in (ORDERS, BILLS):
        fail(states, entity)
    await trio.sleep(200.0)
    harness.primary.heal()
    await trio.sleep(1.0)
    early = states.to_probe()

    states.evidence.returns.notify()
    await trio.sleep(1.5)  # two successes, a second apart

    assert set(early) == {ORDERS, BILLS}
    assert states.troubled() == []


async def test_while_the_namespace_is_lost_a_return_that_others_have_seen_is_looked_into(
    harness, make
):
    states = await make(ping_interval=60.0)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    for entity in (ORDERS, BILLS):
        fail_with(states, entity, Unreachable("connection refused"))
    await trio.sleep(300.0)
    harness.primary.heal()
    lost = states.evidence.namespace.is_lost

    states.evidence.returns.notify()
    await trio.sleep(3.0)

    assert lost
    assert states.troubled() == []


async def test_the_pauses_are_short_again_after_a_return(harness, make):
    """A broker is up before its queues are."""
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(300.0)
    returned = trio.current_time()

    states.evidence.returns.notify()
    await trio.sleep(8.0)

    at = [moment - returned for moment in harness.primary.times(PROBE) if moment >= returned]
    assert len(at) >= 3
    assert at[0] < 0.1


async def test_many_entities_are_probed_within_a_second_of_a_return_and_not_in_one_moment(
    harness, make
):
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    entities = [EntityPath(f"orders-{number}") for number in range(300)]
    for entity in entities:
        fail(states, entity)
    await trio.sleep(300.0)
    harness.primary.heal()
    returned = trio.current_time()

    states.evidence.returns.notify()
    await trio.sleep(1.5)

    at = [moment - returned for moment in harness.primary.times(PROBE) if moment >= returned]
    first = sorted(at)[:300]
    assert first[-1] <= 1.1
    assert sum(moment < 0.1 for moment in first) < 100


async def test_a_namespace_that_comes_and_goes_ends_pauses_now_and_then(harness, make):
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(300.0)
    before = len(harness.primary.times(PROBE))

    for _ in range(600):
        states.evidence.returns.notify()
        await trio.sleep(0.1)

    # Each ten seconds: at once, and after 1, 2 and 4 s.
    assert 6 <= len(harness.primary.times(PROBE)) - before <= 4 * 7


async def test_a_return_ends_no_pause_between_two_successes(harness, make):
    states = await make(successes_to_return=2)
    fail(states)
    await trio.sleep(0.5)

    states.evidence.returns.notify()
    await trio.sleep(0.1)

    assert len(harness.primary.times(PROBE)) == 1
    assert states.state_of(ORDERS) is State.HALF_OPEN


# Each pause


def pauses_of(harness, began=0.0):
    """The pauses between the probes since then."""
    at = [moment for moment in harness.primary.times(PROBE) if moment >= began]
    return [after - before for before, after in itertools.pairwise(at)]


@pytest.mark.parametrize(("interval", "longest"), [(60.0, 3.0), (8.0, 2.0), (0.2, 0.1)])
async def test_a_suspect_is_probed_each_quarter_of_its_interval_or_each_three_seconds(
    harness, make, interval, longest
):
    states = await make(failover_interval=interval)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(interval - 0.01)

    pauses = pauses_of(harness)
    assert states.state_of(ORDERS) is State.SUSPECT
    assert max(pauses) == pytest.approx(longest)


async def test_the_pauses_are_short_again_after_the_failover(harness, make):
    states = await make(failover_interval=30.0)
    harness.primary.fail(Refuse())
    fail(states)
    await reaches(states, State.SECONDARY)
    failed_over = trio.current_time()

    await trio.sleep(10.0)

    first, second, third, *_ = pauses_of(harness, failed_over)
    assert 0.79 <= first <= 1.21
    assert 1.59 <= second <= 2.41
    assert 3.19 <= third <= 4.81


async def test_a_lost_namespace_gets_three_probes_at_a_time_each_of_another_entity(harness, make):
    states = await make(attempt_timeout=10.0)
    harness.primary.fail(Hang(), PROBE)
    for number in range(6):
        fail_with(states, EntityPath(f"entity-{number}"), Unreachable("no connection"))

    await trio.sleep(9.0)

    asked = [each.entity for each in harness.primary.asked]
    assert len(asked) == len(set(asked)) == 3


async def test_a_lost_namespace_is_probed_later_and_later_and_its_entities_in_turn(harness, make):
    states = await make(ping_interval=60.0)
    harness.primary.fail(refuse(Unreachable, "no connection"))
    for entity in (ORDERS, BILLS):
        fail_with(states, entity, Unreachable("no connection"))
    began = trio.current_time()

    await trio.sleep(50.0)

    at = [moment - began for moment in harness.primary.times(PROBE)]
    for number, nominal in enumerate((0.0, 1.0, 3.0, 7.0, 15.0, 31.0)):
        some = at[3 * number : 3 * number + 3]
        assert [0.8 * nominal <= each <= 1.2 * nominal for each in some] == [True] * 3
    asked = Counter(each.entity for each in harness.primary.asked)
    assert abs(asked[ORDERS] - asked[BILLS]) <= 1


async def test_a_suspect_entity_keeps_the_turns_short_whatever_failed_before_it(harness, make):
    rule = EntityRule(match="orders", failover_interval=0.0)
    states = await make(failover_interval=3600.0, entities=(rule,))
    harness.primary.fail(refuse(Unreachable, "no connection"))
    for entity in (ORDERS, BILLS):
        fail_with(states, entity, Unreachable("no connection"))
    await trio.sleep(100.0)
    before = len(harness.primary.times(PROBE))

    await trio.sleep(60.0)

    found = [states.state_of(each) for each in (ORDERS, BILLS)]
    assert found == [State.SECONDARY, State.SUSPECT]
    assert len(harness.primary.times(PROBE)) - before == 3 * 20


async def test_no_probe_is_foretold_while_the_first_ones_after_a_loss_have_no_answer(harness, make):
    states = await make(attempt_timeout=5.0)
    foretold = []
    for _ in range(2):
        harness.primary.fail(Hang(), PROBE)
        fail_with(states, ORDERS, Unreachable("no connection"))
        foretold.append(make.prober.next_probe(ORDERS))
        await trio.sleep(4.0)
        foretold.append(make.prober.next_probe(ORDERS))
        await trio.sleep(4.0)
        harness.primary.heal()
        await reaches(states, State.PRIMARY)

    assert foretold == [None] * 4


async def test_a_lost_namespace_whose_entities_are_pinned_is_probed_once_one_isnt(harness, make):
    states = await make()
    harness.primary.fail(refuse(Unreachable, "no connection"))
    fail_with(states, ORDERS, Unreachable("no connection"))
    states.force_over(ORDERS)
    await trio.sleep(100.0)
    before = len(harness.primary.times(PROBE))
    fail_with(states, BILLS, Unreachable("no connection"))
    await trio.sleep(0.5)
    during = len(harness.primary.times(PROBE))
    harness.primary.heal()

    await trio.sleep(5.0)

    assert (before, during) == (0, 3)
    assert states.state_of(BILLS) is State.PRIMARY


async def test_entities_whose_probes_hang_are_a_lost_namespace_once_an_answer_would_be_late(
    harness, make
):
    states = await make(attempt_timeout=10.0, slow_call_duration=2.0)
    harness.primary.fail(Hang(), PROBE)
    for number in range(3):
        fail(states, EntityPath(f"entity-{number}"))

    await trio.sleep(1.99)
    before = states.evidence.namespace.is_lost
    await trio.sleep(0.02)

    assert not before
    assert states.evidence.namespace.is_lost


@pytest.mark.parametrize(("seconds", "state"), [(1.99, State.HALF_OPEN), (2.0, State.SECONDARY)])
async def test_a_probe_that_takes_as_long_as_a_slow_call_is_late(harness, make, seconds, state):
    states = await make(slow_call_duration=2.0)
    harness.primary.fail(Slow(seconds), PROBE)
    fail(states)

    await trio.sleep(2.5)

    assert states.state_of(ORDERS) is state


async def test_a_namespace_with_quick_answers_gets_more_probes_at_once(harness, make):
    @attrs.frozen
    class Quick:
        async def strike(self, _work, _nursery):
            under_way.append(1)
            most.append(len(under_way))
            await trio.sleep(0.1)
            under_way.pop()

    under_way, most = [], []
    states = await make()
    harness.primary.fail(Quick(), PROBE)
    for number in range(40):
        fail(states, EntityPath(f"entity-{number}"))

    await trio.sleep(0.9)

    assert max(most[:4]) == 4
    assert max(most) > 4


async def test_a_return_during_a_probe_that_fails_is_followed_by_another_probe_at_once(
    harness, make
):
    states = await make(attempt_timeout=5.0)
    harness.primary.fail(Hang(), PROBE)
    began = trio.current_time()
    fail(states)
    await trio.sleep(3.0)

    states.evidence.returns.notify()
    await trio.sleep(2.5)

    assert [at - began for at in harness.primary.times(PROBE)] == [0.0, 5.0]


async def test_a_second_return_ends_pauses_ten_seconds_after_the_first(harness, make):
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    fail(states)
    await trio.sleep(300.0)
    returned = trio.current_time()
    for pause in (8.5, 2.0):
        states.evidence.returns.notify()
        await trio.sleep(pause)

    first, second, third, fourth, last = [
        at - returned for at in harness.primary.times(PROBE) if at >= returned
    ]
    assert (first, last) == (0.0, 10.0)
    assert 0.79 <= second <= 1.21
    assert 1.59 <= third - second <= 2.41
    assert 3.19 <= fourth - third <= 4.81


@pytest.mark.parametrize(("number", "latest"), [(4, 0.0), (20, 1.0)])
async def test_more_than_four_entities_are_probed_over_a_second_after_a_return(
    harness, make, number, latest
):
    states = await make(ping_interval=60.0)
    harness.primary.fail(Refuse())
    for index in range(number):
        fail(states, EntityPath(f"entity-{index}"))
    await trio.sleep(300.0)
    returned = trio.current_time()
    first = {}

    states.evidence.returns.notify()
    await trio.sleep(3.0)

    for each in harness.primary.asked:
        if each.at >= returned:
            first.setdefault(each.entity, each.at - returned)
    assert len(first) == number
    assert max(first.values()) <= latest
    assert max(first.values()) >= 0.7 * latest
    assert min(first.values()) <= 0.3 * latest


async def test_a_prober_that_has_nothing_to_probe_any_more_holds_nothing(harness, make):
    states = await make()
    before = entries(make.prober) - entries(states)
    harness.primary.fail(Refuse())
    for entity in (ORDERS, BILLS):
        fail(states, entity)
    await trio.sleep(100.0)
    harness.primary.heal()
    for entity in (ORDERS, BILLS):
        await reaches(states, State.PRIMARY, entity)
    await trio.sleep(2.0)

    assert entries(make.prober) - entries(states) == before


async def test_the_turns_of_a_lost_namespace_are_quick_again_after_a_return(harness, make):
    states = await make(ping_interval=60.0)
    harness.primary.fail(refuse(Unreachable, "no connection"))
    fail_with(states, ORDERS, Unreachable("no connection"))
    await trio.sleep(300.0)
    returned = trio.current_time()

    states.evidence.returns.notify()
    await trio.sleep(5.0)

    at = [moment - returned for moment in harness.primary.times(PROBE) if moment >= returned]
    for number, nominal in enumerate((0.0, 1.0, 3.0)):
        some = at[3 * number : 3 * number + 3]
        assert [0.8 * nominal <= each <= 1.2 * nominal for each in some] == [True] * 3


async def test_a_suspect_whose_interval_is_over_is_probed_no_more_often(harness, make):
    """Refused probes show that it can be reached, for a whole interval after the last failure."""
    states = await make(failover_interval=10.0)
    harness.primary.fail(refuse(NotAuthorized, "no"), PROBE)
    for seconds in (8.0, 2.5):
        fail(states)
        await trio.sleep(seconds)
    before = len(harness.primary.times(PROBE))

    await trio.sleep(7.0)

    assert states.state_of(ORDERS) is State.SUSPECT
    assert 2 <= len(harness.primary.times(PROBE)) - before <= 3


def fail_with(states, entity, error):
    states.failed(states.begin(entity), error)
