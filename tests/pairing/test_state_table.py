"""The state of each entity: for those who send, for operators, and for other processes."""

import random
from collections.abc import Callable
from datetime import timedelta

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable, Unreachable
from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import STEADY, Failover, FailoverRule, State
from gateway.domain.operators.control import Override
from gateway.pairing.entity_record import EntityRecord, Records, SharedState
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from tests.harness.clocks import START, VirtualClock
from tests.pairing.harness import BILLS, LABEL, ORDERS, Events, virtual_time

pytestmark = virtual_time

DOWN = Unavailable("503")
NEVER = float("-inf")

Tells = list[tuple[str, float, str]]
Make = Callable[..., EntityStates]


@pytest.fixture
def tells() -> Tells:
    """The suspicions that were told to other gateways."""
    return []


@pytest.fixture
def make(events: Events, tells: Tells) -> Make:
    def make(max_troubled: int = 10, **options: object) -> EntityStates:
        return EntityStates(
            max_troubled=max_troubled,
            options=PairOptions(label=LABEL, **options),  # type: ignore[arg-type]
            clock=VirtualClock(),
            observer=events,
            rng=random.Random(1),
            tell=lambda entity, began, reason: tells.append((entity.name, began, reason)),
        )

    return make


def fail(states: EntityStates, entity: EntityPath = ORDERS) -> None:
    states.failed(states.begin(entity), DOWN)


async def fail_over(states: EntityStates) -> None:
    """Let sends fail for the whole interval of ten seconds."""
    for seconds in (0.0, 5.0, 5.0):
        await trio.sleep(seconds)
        fail(states)


def probe(states: EntityStates, entity: EntityPath = ORDERS) -> None:
    states.probed(entity, states.begin(entity))


def pin(states: EntityStates, *targets: str) -> None:
    states.pins.restore([override(each) for each in targets])


def override(target: str) -> Override:
    return Override(target=target, reason="case 7", operator="ann", since=START, until=None)


# Senders


async def test_a_covered_entity_is_pinned_when_it_is_asked_for(make: Make, events: Events) -> None:
    states = make()
    pin(states, "orders")
    found = [states.state_of(ORDERS) for _ in range(2)]

    assert found == [State.PINNED] * 2
    assert [each.entity for each in states.troubled()] == [ORDERS]
    assert [each.reason for each in events.of(EntityStateChanged)] == [
        "forced by an operator: orders by ann: case 7"
    ]
    assert states.state_of(BILLS) is State.PRIMARY


async def test_an_entity_shows_life_if_it_is_healthy_or_answered_a_later_request(
    make: Make,
) -> None:
    states = make(successes_to_return=9)
    unknown = states.shows_life(ORDERS, 0.0)
    fail(states)
    began = trio.current_time()
    before = states.shows_life(ORDERS, began)
    probe(states)
    at_once = states.shows_life(ORDERS, began)
    await trio.sleep(1.0)
    probe(states)
    after = states.shows_life(ORDERS, began)
    states.sent(states.begin(ORDERS))

    assert (unknown, before, at_once, after) == (True, False, False, True)
    assert states.shows_life(ORDERS, began + 100.0)


async def test_a_return_is_that_of_the_entity_or_of_the_namespace(make: Make) -> None:
    states = make()
    never = states.returned_at(ORDERS)
    fail(states)
    in_trouble = states.returned_at(ORDERS)
    await trio.sleep(1.0)
    states.sent(states.begin(ORDERS))
    returned = trio.current_time()
    found = [states.returned_at(ORDERS), states.returned_at(BILLS)]
    await trio.sleep(1.0)
    states.failed(states.begin(BILLS), Unreachable("refused"))
    lost = states.returned_at(ORDERS)
    await trio.sleep(1.0)
    states.sent(states.begin(BILLS))

    assert (never, in_trouble, lost) == (NEVER, NEVER, NEVER)
    assert found == [returned, NEVER]
    assert states.returned_at(ORDERS) == returned + 2.0


async def test_only_a_suspect_entity_has_an_interval_that_ends(make: Make) -> None:
    states = make(failover_interval=60.0)
    healthy = states.interval_ends(ORDERS)
    began = trio.current_time()
    fail(states)
    suspect = states.interval_ends(ORDERS)
    for _ in range(2):
        await trio.sleep(30.0)
        fail(states)

    assert (healthy, suspect) == (None, began + 60.0)
    assert states.state_of(ORDERS) is State.SECONDARY
    assert states.interval_ends(ORDERS) is None


async def test_a_healthy_entity_has_its_verdict(make: Make) -> None:
    assert await make().wait_verdict(ORDERS, trio.current_time() + 1.0) is True


async def test_a_verdict_is_waited_for_until_it_comes_or_the_deadline(make: Make) -> None:
    states = make(suspect_wait=10.0, successes_to_return=9)
    fail(states)
    verdicts: list[tuple[bool, float]] = []

    async def wait(seconds: float) -> None:
        heard = await states.wait_verdict(ORDERS, trio.current_time() + seconds)
        verdicts.append((heard, trio.current_time()))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await wait(0.0)
        nursery.start_soon(wait, 1.0)
        nursery.start_soon(wait, 5.0)
        await trio.sleep(2.0)
        probe(states)

    assert verdicts == [(False, began), (False, began + 1.0), (True, began + 2.0)]


async def test_senders_that_wait_hear_of_a_failed_probe_at_once(make: Make) -> None:
    states = make(suspect_wait=10.0)
    fail(states)
    woken: list[float] = []

    async def wait() -> None:
        await states.wait_verdict(ORDERS, trio.current_time() + 5.0)
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1.0)
        states.probe_failed(ORDERS, DOWN)
        failed = trio.current_time()

    assert woken == [failed]
    assert not await states.wait_verdict(ORDERS, trio.current_time() + 5.0)
    assert trio.current_time() == failed


async def test_a_change_of_the_state_is_waited_for(make: Make) -> None:
    states = make()
    began = trio.current_time()
    await states.wait_moved(ORDERS, State.SUSPECT)
    fail(states)
    await states.wait_moved(ORDERS, State.PRIMARY)
    moved: list[float] = []

    async def wait() -> None:
        await states.wait_moved(ORDERS, State.SUSPECT)
        moved.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1.0)
        fail(states)
        await trio.sleep(1.0)
        states.sent(states.begin(ORDERS))

    assert moved == [began + 2.0]


# Operators


async def test_pins_are_in_effect_at_once_for_entities_that_are_named_or_in_trouble(
    make: Make, events: Events
) -> None:
    states = make()
    fail(states, BILLS)
    seen = states.changes.version
    pin(states, "*")
    states.apply_pins([ORDERS], "order")

    assert {each.entity: each.state for each in states.troubled()} == {
        ORDERS: State.PINNED,
        BILLS: State.PINNED,
    }
    assert [each.entity for each in events.of(EntityStateChanged)[1:]] == [ORDERS, BILLS]
    assert states.changes.version > seen


async def test_pins_that_are_gone_return_what_they_covered_and_nothing_else(
    make: Make, events: Events
) -> None:
    states = make(failover_interval=0.0)
    fail(states, BILLS)
    pin(states, "orders")
    states.state_of(ORDERS)
    pin(states)
    states.apply_pins((), "the end of an order")

    assert {each.entity: each.state for each in states.troubled()} == {BILLS: State.SECONDARY}
    assert events.of(EntityStateChanged)[-1].reason == "the end of an order"


async def test_pins_without_a_concerned_entity_are_a_change(make: Make) -> None:
    states = make()
    seen = states.changes.version
    states.apply_pins((), "order")

    assert states.changes.version == seen + 1


async def test_adopted_pins_return_what_they_no_longer_cover(make: Make) -> None:
    states = make(failover_interval=0.0)
    fail(states, BILLS)
    pin(states, "orders", "later")
    for name in ("orders", "later"):
        states.state_of(EntityPath(name))
    states.adopt_pins([override("later")])

    assert {each.entity.name: each.state for each in states.troubled()} == {
        "Bills": State.SECONDARY,
        "later": State.PINNED,
    }


async def test_adopted_pins_leave_entities_that_an_operator_forced_over_alone(make: Make) -> None:
    states = make()
    states.force_over(ORDERS)
    states.adopt_pins([])

    assert states.state_of(ORDERS) is State.PINNED


# Other processes


@attrs.define
class Sharing:
    """Other processes, which note what they are told."""

    states: list[EntityPath] = attrs.field(factory=list)
    pins: int = 0

    def record_state(self, entity: EntityPath) -> None:
        self.states.append(entity)

    def record_pins(self) -> None:
        self.pins += 1


async def test_each_change_of_ones_own_is_shared_but_for_a_pause(
    make: Make, nursery: trio.Nursery
) -> None:
    states, others = make(), Sharing()
    states.share_with(others)
    await nursery.start(states.run)
    fail(states)
    fail(states)
    states.apply_pins((), "order")
    states.adopt(SharedState(entity=BILLS, since=START, reason="", failover=SUSPECT))
    told = list(others.states)
    trio.lowlevel.current_clock().jump(60.0)
    fail(states)

    assert (told, others.pins) == ([ORDERS], 1)
    assert states.state_of(BILLS) is State.PRIMARY
    assert others.states == [ORDERS]


async def test_a_shared_state_has_its_moments_from_now_on(make: Make) -> None:
    states, other = make(), make()
    fail(states)
    began = states.clock()
    await trio.sleep(5.0)
    shared = states.shared(ORDERS)
    await trio.sleep(2.0)
    adopted = other.adopt(shared)
    [again] = other.all_shared()

    assert (shared.failover.failing_since, shared.since) == (-5.0, began)
    assert adopted is True
    assert again == shared
    assert other.interval_ends(ORDERS) == trio.current_time() - 5.0 + 60.0


async def test_a_healthy_state_needs_no_memory_where_it_is_adopted(make: Make) -> None:
    states = make(max_troubled=0)

    assert states.adopt(states.shared(ORDERS)) is True
    assert states.all_shared() == []


async def test_a_state_is_adopted_unless_there_are_too_many(make: Make) -> None:
    states, other = make(), make(max_troubled=1)
    for entity in (ORDERS, BILLS):
        fail(states, entity)
    adopted = [other.adopt(each) for each in states.all_shared()]

    assert adopted == [True, False]
    assert [each.entity for each in other.troubled()] == [ORDERS]


async def test_an_adopted_answer_wakes_those_who_wait_for_a_verdict(make: Make) -> None:
    states, other = make(), make(suspect_wait=10.0)
    fail(states)
    other.adopt(states.shared(ORDERS))
    verdicts: list[bool] = []

    async def wait() -> None:
        verdicts.append(await other.wait_verdict(ORDERS, trio.current_time() + 5.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        again = other.adopt(states.shared(ORDERS))
        await wait_all_tasks_blocked()
        unanswered = list(verdicts)
        probe(states)
        other.adopt(states.shared(ORDERS))
        await wait_all_tasks_blocked()
        answered = list(verdicts)
        nursery.cancel_scope.cancel()

    assert (again, unanswered, answered) == (True, [], [True])


async def test_an_adopted_state_that_stays_the_same_has_the_date_of_the_other_process(
    make: Make,
) -> None:
    states = make()
    fail(states)
    shared = attrs.evolve(states.shared(ORDERS), since=START - timedelta(days=1))
    states.adopt(shared)

    assert states.troubled()[0].since == START - timedelta(days=1)


SUSPECT = Failover(state=State.SUSPECT, failing_since=-1.0, last_failure=-1.0)


async def test_an_adopted_suspicion_isnt_ended_by_an_answer_of_the_namespace(make: Make) -> None:
    states = make(failover_interval=60.0)
    states.failed(states.begin(BILLS), Unreachable("refused"))
    states.suspect(ORDERS)
    quiet = attrs.evolve(SUSPECT, failing_since=-100.0, last_failure=-100.0)
    for failover in (Failover(state=State.SECONDARY), quiet):
        states.adopt(SharedState(entity=ORDERS, since=START, reason="", failover=failover))
    await trio.sleep(1.0)
    states.sent(states.begin(BILLS))

    assert states.state_of(ORDERS) is State.SUSPECT


@pytest.mark.parametrize(("seconds", "took"), [(1.5, 1.5), (None, 0.0)])
async def test_an_adopted_suspicion_is_told_with_the_start_of_its_request(
    make: Make, tells: Tells, seconds: float | None, took: float
) -> None:
    states = make(slow_call_duration=seconds)
    now = trio.current_time()
    for number, failover in enumerate((SUSPECT, Failover(state=State.SECONDARY))):
        entity = EntityPath(f"queue-{number}")
        states.adopt(SharedState(entity=entity, since=START, reason="late", failover=failover))

    assert tells == [
        ("queue-0", now - 1.0 - took, "late"),
        ("queue-1", now - took, "late"),
    ]


async def test_an_adopted_pin_and_a_change_of_a_troubled_entity_are_told_to_nobody(
    make: Make, tells: Tells
) -> None:
    states = make()
    pinned = Failover(state=State.PINNED)
    states.adopt(SharedState(entity=ORDERS, since=START, reason="", failover=pinned))
    states.adopt(SharedState(entity=ORDERS, since=START, reason="", failover=SUSPECT))
    back = states.adopt(SharedState(entity=ORDERS, since=START, reason="", failover=Failover()))

    assert (tells, back) == ([], True)
    assert states.state_of(ORDERS) is State.PRIMARY


# Observers


async def test_entities_that_only_their_past_keeps_away_are_counted_by_state(make: Make) -> None:
    states = make(failover_interval=0.0, successes_to_return=99)
    for entity in (ORDERS, BILLS):
        fail(states, entity)
    counts = []
    for _ in range(4):
        probe(states)
        counts.append(dict(states.answering()))
        await trio.sleep(1.0)
    silent = []
    for _ in range(3):
        silent.append(dict(states.answering()))
        await trio.sleep(1.0)

    assert STEADY == 3.0
    assert counts == [{}, {}, {}, {State.HALF_OPEN: 1}]
    assert silent == [{State.HALF_OPEN: 1}, {State.HALF_OPEN: 1}, {State.HALF_OPEN: 1}]
    assert states.answering() == {}


async def test_one_entity_in_trouble_beside_a_recovered_one_is_trouble(make: Make) -> None:
    states = make()
    found = [states.is_any_troubled]
    fail(states)
    states.sent(states.begin(ORDERS))
    found.append(states.is_any_troubled)
    fail(states, BILLS)

    assert found == [False, False]
    assert states.is_any_troubled is True


async def test_a_record_is_forgotten_when_its_entity_has_been_healthy_for_so_long() -> None:
    records = Records()
    healthy = records.of(ORDERS, START)
    suspect = records.of(BILLS, START)
    assert healthy is not None
    assert suspect is not None
    suspect.failover = SUSPECT
    healthy.changed = suspect.changed = trio.current_time() - 5.0
    rule = FailoverRule(interval=0.0)
    kept = []
    for seconds in (0.0, 0.1):
        await trio.sleep(seconds)
        records.forget_recovered(lambda _: rule, 5.0)
        kept.append(set(records))

    assert kept == [{ORDERS.key, BILLS.key}, {BILLS.key}]


async def test_records_have_a_bound_and_those_that_are_there_are_found() -> None:
    records = Records(1)
    first = records.of(ORDERS, START)

    assert isinstance(first, EntityRecord)
    assert records.of(BILLS, START) is None
    assert records.of(ORDERS, START) is first


# Changes


async def test_another_failure_wakes_nobody_who_waits_for_a_verdict(make: Make) -> None:
    states = make(suspect_wait=10.0)
    fail(states)
    verdicts: list[bool] = []

    async def wait() -> None:
        verdicts.append(await states.wait_verdict(ORDERS, trio.current_time() + 5.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        fail(states)
        await wait_all_tasks_blocked()
        woken = list(verdicts)
        nursery.cancel_scope.cancel()

    assert woken == []


async def test_the_date_of_a_state_is_that_of_its_first_failure_or_of_its_return(
    make: Make,
) -> None:
    states = make(failover_interval=10.0, successes_to_return=1)
    first = states.clock()
    dates = []
    for seconds, change in ((0.0, fail), (5.0, fail), (5.0, fail), (10.0, probe), (10.0, fail)):
        await trio.sleep(seconds)
        change(states)
        dates.append((states.state_of(ORDERS), states.shared(ORDERS).since))

    assert dates == [
        (State.SUSPECT, first),
        (State.SUSPECT, first),
        (State.SECONDARY, first),
        (State.PRIMARY, first + timedelta(seconds=20)),
        (State.SUSPECT, first + timedelta(seconds=30)),
    ]


async def test_only_a_suspicion_of_ones_own_is_told_and_once(make: Make, tells: Tells) -> None:
    states = make(failover_interval=10.0)
    attempt = states.begin(ORDERS)
    await trio.sleep(1.0)
    states.failed(attempt, DOWN)
    await fail_over(states)
    states.force_over(BILLS)

    assert states.state_of(ORDERS) is State.SECONDARY
    assert tells == [("orders", attempt.began, "503")]


async def test_a_suspicion_by_the_namespace_is_told_with_its_loss(make: Make, tells: Tells) -> None:
    states = make()
    later = EntityPath("later")
    lost = trio.current_time()
    states.failed(states.begin(BILLS), Unreachable("refused"))
    await trio.sleep(1.0)
    states.suspect(ORDERS)
    states.sent(states.begin(BILLS))
    await trio.sleep(1.0)
    slow = states.begin(BILLS)
    await trio.sleep(2.0)
    states.slow(slow)
    states.suspect(later)

    assert tells[1:] == [
        ("orders", lost, "the namespace: refused"),
        ("Bills", lost + 2.0, "no answer within 2 s"),
        ("later", lost + 4.0, "another entity had no answer in time"),
    ]


async def test_a_new_answer_of_a_half_open_entity_does_not_hasten_the_trial_after_a_failed_one(
    make: Make,
) -> None:
    states = make(failover_interval=10.0)
    await fail_over(states)
    probe(states)
    trial = states.begin_trial(ORDERS)
    assert trial is not None
    states.failed(trial, DOWN)
    probe(states)
    at_once = states.begin_trial(ORDERS)
    await trio.sleep(60.0)

    assert states.state_of(ORDERS) is State.HALF_OPEN
    assert at_once is None
    assert states.begin_trial(ORDERS) is not None


async def test_an_advised_suspicion_is_told_to_nobody_and_not_ended_by_the_namespace(
    make: Make, tells: Tells
) -> None:
    states = attrs.evolve(make(successes_to_return=1), answers=Bounded(10))
    states.failed(states.begin(BILLS), Unreachable("refused"))
    states.suspect(ORDERS)
    states.sent(states.begin(ORDERS))
    await trio.sleep(1.0)
    advised = states.advise(ORDERS, 0.5, "advice")
    states.failed(states.begin(BILLS), Unreachable("refused"))
    await trio.sleep(61.0)
    states.sent(states.begin(BILLS))

    assert advised
    assert states.state_of(ORDERS) is State.SUSPECT
    assert [name for name, *_ in tells] == ["Bills", "orders"]


async def test_the_way_to_tell_others_is_kept(make: Make) -> None:
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        make().tell = print


async def test_a_first_suspicion_by_advice_is_not_ended_by_the_namespace_either(
    make: Make,
) -> None:
    states = attrs.evolve(make(), answers=Bounded(10))
    states.sent(states.begin(ORDERS))
    await trio.sleep(1.0)
    states.advise(ORDERS, 0.5, "advice")
    states.failed(states.begin(BILLS), Unreachable("refused"))
    await trio.sleep(61.0)
    states.sent(states.begin(BILLS))

    assert states.state_of(ORDERS) is State.SUSPECT
