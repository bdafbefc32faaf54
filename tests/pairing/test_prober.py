import itertools
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityDisabled, EntityNotFound, Unavailable
from gateway.domain.failover import State
from gateway.pairing.options import PairOptions
from gateway.pairing.prober import AT_ONCE, Prober
from gateway.pairing.standings import Standings
from gateway.testing.faults import Hang, Operation, Refuse
from tests.pairing.lab import LABEL, ORDERS, Slow, reaches, refuse, virtual_time

pytestmark = virtual_time

PROBE = Operation.PROBE


@pytest.fixture
def make(lab):
    async def make(**options):
        chosen = PairOptions(label=LABEL, **{"failover_interval": 0.0, **options})
        standings = Standings(
            options=chosen, clock=lab.clock, observer=lab.events, rng=random.Random(1)
        )
        prober = Prober(
            primary=lab.primary.broker, standings=standings, options=chosen, rng=lab.rng
        )
        await lab.nursery.start(prober.run)
        return standings

    return make


def fail(standings, entity=ORDERS):
    standings.failed(standings.begin(entity), Unavailable("out"))


async def test_nobody_is_probed_while_all_is_well(lab, make):
    standings = await make(failover_interval=60.0)
    fail(standings)
    await trio.sleep(600.0)

    assert standings.state_of(ORDERS) is State.SUSPECT
    assert lab.primary.times(PROBE) == []


async def test_probes_begin_at_once_and_come_later_and_later(lab, make):
    standings = await make(ping_interval=20.0)
    lab.primary.fail(Refuse())
    started = trio.current_time()
    fail(standings)

    await trio.sleep(200.0)

    at = [round(moment - started, 3) for moment in lab.primary.times(PROBE)]
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert at[0] == 0.0
    wanted = [1.0, 2.0, 4.0, 8.0, 16.0, *[20.0] * (len(pauses) - 5)]
    for pause, nominal in zip(pauses, wanted, strict=True):
        assert 0.79 * nominal <= pause <= 1.21 * nominal
    assert len({round(pause, 3) for pause in pauses[5:]}) > 1  # jittered


async def test_enough_probes_bring_an_entity_back_without_traffic(lab, make):
    standings = await make(successes_to_return=3)
    fail(standings)
    started = trio.current_time()

    await reaches(standings, State.PRIMARY)

    assert len(lab.primary.times(PROBE)) == 3
    assert 1.6 <= trio.current_time() - started <= 2.4  # a second between two
    await trio.sleep(600.0)
    assert len(lab.primary.times(PROBE)) == 3


async def test_a_failed_probe_closes_a_half_open_entity(lab, make):
    standings = await make(successes_to_return=3)
    fail(standings)
    await wait_all_tasks_blocked()
    assert standings.state_of(ORDERS) is State.HALF_OPEN
    lab.primary.fail(Refuse())

    await trio.sleep(2.0)

    assert standings.state_of(ORDERS) is State.SECONDARY


async def test_successes_before_a_failure_dont_count(lab, make):
    standings = await make(successes_to_return=2)
    fail(standings)
    await wait_all_tasks_blocked()
    fail(standings)
    assert standings.state_of(ORDERS) is State.SECONDARY

    await wait_all_tasks_blocked()

    assert standings.state_of(ORDERS) is State.HALF_OPEN


async def test_a_hanging_probe_is_a_failed_one(lab, make):
    standings = await make(attempt_timeout=5.0, successes_to_return=2)
    fail(standings)
    await wait_all_tasks_blocked()
    lab.primary.fail(Hang())

    await trio.sleep(7.0)

    assert standings.state_of(ORDERS) is State.SECONDARY


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled])
async def test_an_entity_that_a_probe_finds_gone_stays_out_and_is_probed_on(lab, make, error):
    standings = await make()
    lab.primary.fail(refuse(error, "gone"), PROBE)
    fail(standings)
    await trio.sleep(10.0)
    found = standings.unreachable(ORDERS)
    lab.primary.heal()

    await reaches(standings, State.PRIMARY)

    assert isinstance(found, error)
    assert standings.unreachable(ORDERS) is None


async def test_a_probe_leaves_no_message(lab, make):
    standings = await make()
    fail(standings)

    await reaches(standings, State.PRIMARY)

    assert await lab.primary.ids() == []


async def test_a_pinned_entity_isnt_probed(lab, make):
    standings = await make()
    standings.force_over(ORDERS)

    await trio.sleep(600.0)

    assert lab.primary.times(PROBE) == []


async def test_pinning_ends_the_probes(lab, make):
    standings = await make()
    lab.primary.fail(Refuse())
    fail(standings)
    await trio.sleep(10.0)
    standings.force_over(ORDERS)
    await wait_all_tasks_blocked()
    before = len(lab.primary.times(PROBE))

    await trio.sleep(600.0)

    assert len(lab.primary.times(PROBE)) == before


async def test_an_entity_that_fails_again_is_probed_at_once_again(lab, make):
    standings = await make(successes_to_return=1)
    fail(standings)
    await reaches(standings, State.PRIMARY)
    await wait_all_tasks_blocked()
    lab.primary.fail(Refuse())
    before = len(lab.primary.times(PROBE))

    fail(standings)
    await wait_all_tasks_blocked()

    assert len(lab.primary.times(PROBE)) == before + 1


async def test_many_entities_take_turns(lab, make):
    standings = await make(attempt_timeout=5.0)
    lab.primary.fail(Hang())
    for number in range(AT_ONCE + 1):
        fail(standings, EntityPath(f"entity-{number}"))

    await wait_all_tasks_blocked()
    first = len(lab.primary.times(PROBE))
    await trio.sleep(5.1)

    assert first == AT_ONCE
    assert len({a.entity for a in lab.primary.asked}) == AT_ONCE + 1


async def test_no_more_than_sixteen_probes_are_on_their_way(lab, make):
    standings = await make(attempt_timeout=5.0)
    lab.primary.fail(Hang())
    for number in range(40):
        fail(standings, EntityPath(f"entity-{number}"))

    await wait_all_tasks_blocked()

    assert len(lab.primary.times(PROBE)) == 16


async def test_an_entity_that_is_pinned_while_it_waits_for_its_turn_isnt_probed(lab, make):
    standings = await make(attempt_timeout=5.0)
    lab.primary.fail(Hang())
    for number in range(AT_ONCE):
        fail(standings, EntityPath(f"entity-{number}"))
    await wait_all_tasks_blocked()
    fail(standings)
    await wait_all_tasks_blocked()

    standings.force_over(ORDERS)
    await trio.sleep(600.0)

    assert ORDERS not in {asked.entity for asked in lab.primary.asked}


async def test_what_a_probe_that_hangs_is_called_says_how_long_it_took(lab, make):
    standings = await make(attempt_timeout=5.0, successes_to_return=2)
    fail(standings)
    await wait_all_tasks_blocked()
    lab.primary.fail(Hang())

    await trio.sleep(7.0)

    [standing] = standings.troubled()
    assert "no answer within 5.0 s" in standing.reason


async def test_a_probe_has_as_long_as_an_attempt(lab, make):
    standings = await make(attempt_timeout=5.0, successes_to_return=2)
    lab.primary.fail(Slow(4.9), PROBE)
    fail(standings)

    await trio.sleep(5.0)

    assert standings.state_of(ORDERS) is State.HALF_OPEN


async def test_after_a_success_the_pauses_begin_small_again(lab, make):
    standings = await make(ping_interval=60.0, successes_to_return=2)
    lab.primary.fail(Refuse())
    fail(standings)
    await trio.sleep(30.0)
    lab.primary.heal()
    await reaches(standings, State.HALF_OPEN)
    lab.primary.fail(Refuse())
    before = len(lab.primary.times(PROBE))

    await trio.sleep(10.0)

    first, second, third = lab.primary.times(PROBE)[before : before + 3]
    assert 0.79 <= second - first <= 1.21
    assert 1.59 <= third - second <= 2.41


@pytest.mark.parametrize("fault", [Hang(), refuse(EntityNotFound, "gone")])
async def test_probes_come_later_and_later_however_they_fail(lab, make, fault):
    standings = await make(attempt_timeout=1.0, ping_interval=20.0)
    lab.primary.fail(fault)
    fail(standings)

    await trio.sleep(100.0)

    assert 7 <= len(lab.primary.times(PROBE)) <= 10


async def test_an_entity_that_fails_again_long_after_is_probed_again(lab, make):
    standings = await make(successes_to_return=1)
    fail(standings)
    await reaches(standings, State.PRIMARY)
    await trio.sleep(60.0)
    lab.primary.fail(Refuse())
    before = len(lab.primary.times(PROBE))

    fail(standings)
    await wait_all_tasks_blocked()

    assert len(lab.primary.times(PROBE)) == before + 1


async def test_an_entity_that_fails_while_another_is_probed_is_probed_too(lab, make):
    standings = await make()
    lab.primary.fail(Refuse())
    fail(standings, EntityPath("other"))
    await trio.sleep(10.0)
    before = len(lab.primary.times(PROBE))

    fail(standings)
    await wait_all_tasks_blocked()

    assert [asked.entity for asked in lab.primary.asked[before:]] == [ORDERS]


async def test_each_entity_has_one_series_of_probes(lab, make):
    standings = await make(ping_interval=20.0)
    lab.primary.fail(Refuse())
    fail(standings)
    for number in range(5):
        await trio.sleep(0.01)
        fail(standings, EntityPath(f"entity-{number}"))

    await trio.sleep(0.5)

    asked = [each.entity for each in lab.primary.asked]
    assert len(asked) == len(set(asked)) == 6


async def test_what_is_failed_over_when_the_prober_begins_is_probed(lab):
    options = PairOptions(label=LABEL, failover_interval=0.0)
    standings = Standings(
        options=options, clock=lab.clock, observer=lab.events, rng=random.Random(1)
    )
    fail(standings)
    prober = Prober(primary=lab.primary.broker, standings=standings, options=options, rng=lab.rng)

    await lab.nursery.start(prober.run)
    await wait_all_tasks_blocked()

    assert len(lab.primary.times(PROBE)) == 1
