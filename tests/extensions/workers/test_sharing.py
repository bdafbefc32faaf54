"""Entity states and the entity cache are the same in the parent and all workers, in the end."""

import json
import random
from collections import deque

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.app.runtime import Silence
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.domain.failover import State
from gateway.domain.operators.control import Override
from gateway.extensions.workers.sharing import (
    CacheSync,
    StateHub,
    StateReplica,
    state_of,
    state_value,
)
from gateway.pairing.entity_cache import EntityCache, KnownEntity
from gateway.pairing.entity_record import EntityState
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import START, VirtualClock

ORDERS, BILLS = EntityPath("orders"), EntityPath("bills")
OUT = Unavailable("out")


def make_states() -> EntityStates:
    options = PairOptions(label="east", failover_interval=2.0)
    return EntityStates(
        options=options, clock=VirtualClock(), observer=Silence(), rng=random.Random(1)
    )


@attrs.define(eq=False)
class Gateway:
    """
    A parent and two workers; their messages to each other are in transit until they are delivered.
    """

    parent: EntityStates = attrs.field(factory=make_states)
    workers: list[EntityStates] = attrs.field(factory=lambda: [make_states(), make_states()])
    up: list[deque[str]] = attrs.field(factory=lambda: [deque(), deque()])
    down: list[deque[str]] = attrs.field(factory=lambda: [deque(), deque()])
    hub: StateHub = attrs.field(init=False)
    replicas: list[StateReplica] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hub = StateHub(self.parent)
        self.replicas = [StateReplica(each, lambda: None) for each in self.workers]
        for number, replica in enumerate(self.replicas):
            replica.apply(self.hub.add(number + 1, lambda: None))

    @property
    def all(self) -> list[EntityStates]:
        return [self.parent, *self.workers]

    def collect(self, number: int) -> None:
        for message, way in (
            (self.replicas[number].collect(), self.up[number]),
            (self.hub.collect(number + 1), self.down[number]),
        ):
            if message is not None:
                way.append(json.dumps(message))

    def deliver(self, number: int, *, upwards: bool) -> None:
        way = (self.up if upwards else self.down)[number]
        if not way:
            return
        message = json.loads(way.popleft())
        if upwards:
            self.hub.apply(number + 1, message["changes"])
        else:
            self.replicas[number].apply(message)

    def settle(self) -> None:
        """Deliver all messages, until no side has another one."""
        for _ in range(5):
            for number in range(2):
                self.collect(number)
                while self.up[number]:
                    self.deliver(number, upwards=True)
            for number in range(2):
                self.collect(number)
                while self.down[number]:
                    self.deliver(number, upwards=False)

    def states_of(self, entity: EntityPath) -> list[State]:
        return [each.state_of(entity) for each in self.all]


def fail(states: EntityStates, entity: EntityPath = ORDERS) -> None:
    states.failed(states.begin(entity), OUT)


def happen(states: EntityStates, what: str, entity: EntityPath) -> None:
    match what:
        case "fail":
            fail(states, entity)
        case "send":
            states.sent(states.begin(entity))
        case "probe":
            states.probed(entity)
        case "pin":
            states.force_over(entity)
        case "unpin":
            states.force_back(entity)


EVENT = st.tuples(
    st.just("event"),
    st.integers(0, 2),
    st.sampled_from(["fail", "send", "probe", "pin", "unpin"]),
    st.sampled_from([ORDERS, BILLS]),
)
COLLECT = st.tuples(st.just("collect"), st.integers(0, 1))
DELIVER = st.tuples(st.just("deliver"), st.integers(0, 1), st.booleans())
PASS = st.tuples(st.just("pass"), st.sampled_from([0.5, 3.0]))


@given(st.lists(EVENT | COLLECT | DELIVER | PASS, max_size=40))
def test_all_states_end_up_the_same_whatever_happens_where(steps: list[tuple]) -> None:
    async def play() -> None:
        gateway = Gateway()
        for step in steps:
            match step:
                case ("event", process, what, entity):
                    happen(gateway.all[process], what, entity)
                case ("collect", number):
                    gateway.collect(number)
                case ("deliver", number, upwards):
                    gateway.deliver(number, upwards=upwards)
                case ("pass", seconds):
                    await trio.sleep(seconds)
        gateway.settle()
        for entity in (ORDERS, BILLS):
            assert len(set(gateway.states_of(entity))) == 1

    trio.run(play, clock=MockClock(autojump_threshold=0))


async def test_a_failure_in_one_worker_makes_the_entity_suspect_in_all(autojump_clock):
    gateway = Gateway()
    fail(gateway.workers[0])
    gateway.settle()

    assert gateway.states_of(ORDERS) == [State.SUSPECT] * 3


async def test_failures_in_several_workers_are_one_streak(autojump_clock):
    gateway = Gateway()
    fail(gateway.workers[0])
    gateway.settle()
    await trio.sleep(1.0)
    fail(gateway.workers[1])
    gateway.settle()
    before = gateway.states_of(ORDERS)
    await trio.sleep(1.0)
    fail(gateway.workers[1])  # the failover interval began with the first failure, elsewhere
    gateway.settle()

    assert before == [State.SUSPECT] * 3
    assert gateway.states_of(ORDERS) == [State.SECONDARY] * 3


async def test_a_return_in_one_worker_is_a_return_in_all(autojump_clock):
    gateway = Gateway()
    for _ in range(3):
        fail(gateway.workers[0])
        await trio.sleep(1.0)
    gateway.settle()
    failed_over = gateway.states_of(ORDERS)
    gateway.workers[1].probed(ORDERS)
    gateway.settle()
    half = gateway.states_of(ORDERS)
    gateway.workers[1].probed(ORDERS)
    gateway.settle()

    assert failed_over == [State.SECONDARY] * 3
    assert half == [State.HALF_OPEN] * 3
    assert gateway.states_of(ORDERS) == [State.PRIMARY] * 3


async def test_a_change_that_was_decided_without_knowing_another_ones_is_dropped(autojump_clock):
    gateway = Gateway()
    gateway.workers[0].force_over(ORDERS)
    fail(gateway.workers[1])
    for number in range(2):  # the pin comes first
        gateway.collect(number)
        gateway.deliver(number, upwards=True)
    gateway.settle()

    assert gateway.states_of(ORDERS) == [State.PINNED] * 3


async def test_two_quick_changes_of_one_worker_both_count(autojump_clock):
    gateway = Gateway()
    worker = gateway.workers[0]
    fail(worker)
    gateway.collect(0)
    worker.force_over(ORDERS)  # the worker's first change isn't confirmed yet
    gateway.collect(0)
    gateway.settle()

    assert gateway.states_of(ORDERS) == [State.PINNED] * 3


async def test_a_later_worker_begins_with_the_states_of_all(autojump_clock):
    gateway = Gateway()
    gateway.workers[0].force_over(ORDERS)
    gateway.settle()
    gateway.hub.remove(1)
    later = make_states()
    StateReplica(later, lambda: None).apply(gateway.hub.add(1, lambda: None))

    assert later.state_of(ORDERS) is State.PINNED


def override(target: str) -> Override:
    return Override(target=target, reason="", operator="ann", since=START)


async def test_an_operators_pattern_covers_what_a_worker_sends_to_first(autojump_clock):
    gateway = Gateway()
    gateway.parent.pins.add([override("orders/*")])
    gateway.parent.apply_pins((), "an operator")
    gateway.settle()
    worker = gateway.workers[0]

    assert worker.state_of(EntityPath("orders/eu")) is State.PINNED
    assert worker.state_of(BILLS) is State.PRIMARY
    gateway.settle()
    assert gateway.states_of(EntityPath("orders/eu")) == [State.PINNED] * 3


async def test_a_pin_that_is_taken_back_while_a_worker_applies_it_leaves_nothing(autojump_clock):
    gateway = Gateway()
    gateway.parent.pins.add([override("*")])
    gateway.parent.apply_pins((), "an operator")
    gateway.settle()

    gateway.parent.pins.remove(["*"])
    gateway.parent.apply_pins((), "an operator")
    assert gateway.workers[0].state_of(ORDERS) is State.PINNED  # the worker doesn't know yet
    gateway.settle()

    assert gateway.states_of(ORDERS) == [State.PRIMARY] * 3


async def test_a_later_worker_begins_with_the_pins(autojump_clock):
    gateway = Gateway()
    gateway.parent.pins.add([override("*")])
    later = make_states()
    StateReplica(later, lambda: None).apply(gateway.hub.add(3, lambda: None))

    assert later.state_of(ORDERS) is State.PINNED


async def test_states_from_before_a_restart_are_shared(autojump_clock):
    gateway = Gateway()
    gateway.parent.restore(
        [EntityState(entity=ORDERS, state=State.PINNED, since=START, reason="an operator")]
    )
    later = make_states()
    StateReplica(later, lambda: None).apply(gateway.hub.add(3, lambda: None))

    assert later.state_of(ORDERS) is State.PINNED
    assert later.troubled() == gateway.parent.troubled()


async def test_a_paused_worker_forgets_failures_for_itself_alone(autojump_clock):
    gateway = Gateway()
    fail(gateway.workers[0])
    gateway.settle()
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.workers[1].run)
        autojump_clock.jump(60.0)
        gateway.workers[1].probe_failed(BILLS, OUT)
        nursery.cancel_scope.cancel()
    gateway.settle()

    assert gateway.states_of(ORDERS) == [State.SUSPECT, State.SUSPECT, State.PRIMARY]


async def test_moments_count_from_now_in_another_process(autojump_clock):
    one, other = make_states(), make_states()
    fail(one)
    value = state_value(one.shared(ORDERS))
    await trio.sleep(1.0)
    other.adopt(state_of(value))
    ends = one.interval_ends(ORDERS), other.interval_ends(ORDERS)

    assert ends == (trio.current_time() + 1.0, trio.current_time() + 2.0)


async def test_an_adopted_state_wakes_who_waits_for_it(autojump_clock):
    one, other = make_states(), make_states()
    fail(other)
    one.force_over(ORDERS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.wait_moved, ORDERS, State.SUSPECT)
        await wait_all_tasks_blocked()
        other.adopt(one.shared(ORDERS))

    assert other.state_of(ORDERS) is State.PINNED


def make_cache() -> EntityCache:
    return EntityCache(primary=MemoryBroker(VirtualClock(), random.Random(1)))


async def test_entities_that_one_process_knows_are_known_to_the_other(autojump_clock):
    parent, worker = make_cache(), make_cache()
    here, there = CacheSync(parent), CacheSync(worker)
    parent.store(KnownEntity(entity=ORDERS, requires_session=True, max_message_size=1000))
    worker.store(KnownEntity(entity=BILLS))
    for _ in range(2):
        there.apply(json.loads(json.dumps(here.collect() or {})))
        here.apply(json.loads(json.dumps(there.collect() or {})))
    known = [cache.all() for cache in (parent, worker)]
    worker.remove(BILLS)
    here.apply(json.loads(json.dumps(there.collect() or {})))

    assert sorted(known[0], key=str) == sorted(known[1], key=str)
    assert parent.of(ORDERS) == KnownEntity(
        entity=ORDERS, requires_session=True, max_message_size=1000
    )
    assert parent.of(BILLS) is None
    assert here.collect() is None
    assert there.collect() is None
