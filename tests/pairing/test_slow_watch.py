"""Sends without an answer: when they make their entity suspect, and how long they go on waiting."""

import random
from collections.abc import AsyncIterator, Callable

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.errors import Unavailable
from gateway.domain.failover import State
from gateway.pairing.options import PairOptions
from gateway.pairing.slow_watch import SlowWatch, UnansweredSend
from gateway.pairing.states import EntityStates
from tests.harness.clocks import VirtualClock
from tests.harness.retained import entries
from tests.pairing.harness import BILLS, LABEL, ORDERS, Events, virtual_time

pytestmark = virtual_time

SLOW = 2.0  # slow_call_duration
WAIT = 0.5  # suspect_wait


@attrs.define(eq=False)
class Copy:
    """A second copy that notes what it is told."""

    after: float
    delivered: bool = False
    refused: bool = False
    expected: int = 0
    begun: list[tuple[float, bool]] = attrs.field(factory=list)  # when, and if in doubt
    then: Callable[[], object] | None = None
    cancelled: int = 0

    def expect(self) -> None:
        self.expected += 1

    def begin(self, nursery: trio.Nursery, then: Callable[[], object], *, in_doubt: bool) -> None:
        self.begun.append((trio.current_time(), in_doubt))
        self.then = then

    def accepted_by_primary(self) -> None:
        raise AssertionError("the sender tells it")

    async def wait(self) -> bool:
        raise AssertionError("the sender waits")

    def cancel(self) -> None:
        self.cancelled += 1


@attrs.define(eq=False)
class Stand:
    """A watch that runs, and the sends that it watches."""

    watch: SlowWatch
    states: EntityStates
    began: float = attrs.field(factory=trio.current_time)

    def send(
        self, entity=ORDERS, *, gives_up: bool = True, second: Copy | None = None
    ) -> tuple[UnansweredSend | None, trio.CancelScope]:
        scope = trio.CancelScope()
        patience = scope if gives_up else None
        return self.watch.begin(self.states.begin(entity), patience, second), scope

    def answer(self, watched: UnansweredSend | None) -> None:
        assert watched is not None
        self.states.sent(watched.attempt)
        self.watch.accepted(watched.attempt)
        self.watch.stop(watched)

    def state(self, entity=ORDERS) -> State:
        return self.states.state_of(entity)


@pytest.fixture
async def make(events: Events) -> AsyncIterator[Callable[..., object]]:
    async with trio.open_nursery() as nursery:

        async def make(**options: object) -> Stand:
            given = {"slow_call_duration": SLOW, "suspect_wait": WAIT, **options}
            chosen = PairOptions(label=LABEL, **given)  # type: ignore[arg-type]
            states = EntityStates(
                options=chosen, clock=VirtualClock(), observer=events, rng=random.Random(1)
            )
            watch = SlowWatch(options=chosen, states=states)
            await nursery.start(watch.run)
            return Stand(watch, states)

        yield make
        nursery.cancel_scope.cancel()


async def test_a_send_is_slow_after_its_time_and_gives_up_after_suspect_wait(make):
    stand = await make()
    _, scope = stand.send()
    found = []
    for seconds in (SLOW - 0.1, 0.2, WAIT - 0.2, 0.2):
        await trio.sleep(seconds)
        found.append((stand.state(), stand.watch.slow, scope.cancel_called))

    assert found == [
        (State.PRIMARY, 0, False),
        (State.SUSPECT, 1, False),
        (State.SUSPECT, 1, False),
        (State.SUSPECT, 1, True),
    ]


async def test_a_send_that_may_not_be_cancelled_goes_on(make):
    stand = await make()
    watched, _ = stand.send(gives_up=False)
    await trio.sleep(10 * SLOW)

    assert (stand.state(), stand.watch.slow) == (State.SUSPECT, 1)
    stand.watch.stop(watched)


async def test_a_send_is_watched_only_if_something_may_follow(make):
    stand = await make(slow_call_duration=None)
    watched, _ = stand.send()
    stand.watch.stop(watched)
    await trio.sleep(100.0)

    assert watched is None
    assert stand.state() is State.PRIMARY


async def test_a_send_goes_on_as_long_as_its_entity_shows_life_and_is_asked_each_time_for_more(
    make,
):
    stand = await make()
    _, scope = stand.send()
    given_up = []
    for number in range(3):
        await trio.sleep(SLOW - 0.1 if number else SLOW + 0.1)
        stand.states.refused(stand.states.begin(ORDERS))
        probe = stand.states.begin(ORDERS)
        stand.states.probed(ORDERS, probe)
        stand.states.failed(stand.states.begin(ORDERS), Unavailable("503"))
        given_up.append(scope.cancel_called)
    await trio.sleep(SLOW + WAIT + 0.2)

    assert given_up == [False] * 3
    assert scope.cancel_called


async def test_a_later_send_that_was_accepted_excuses_those_before_it(make):
    stand = await make()
    _, older = stand.send()
    await trio.sleep(0.5)
    newer, _ = stand.send()
    _, others = stand.send(BILLS)
    await trio.sleep(0.5)
    latest, _ = stand.send()
    stand.answer(newer)
    await trio.sleep(10.0)

    assert not older.cancel_called
    assert others.cancel_called
    assert latest is not None
    assert not latest.overtaken
    assert stand.watch.slow == 3  # the excused one was slow, too


async def test_an_excused_send_makes_nothing_suspect(make):
    stand = await make()
    stand.send()
    await trio.sleep(0.5)
    newer, _ = stand.send()
    stand.answer(newer)
    await trio.sleep(10.0)

    assert (stand.watch.slow, stand.state()) == (1, State.PRIMARY)


async def test_sends_that_ended_or_were_overtaken_are_forgotten(make):
    stand = await make()

    def held() -> int:
        return entries(stand.watch) - entries(stand.states)

    fresh = held()
    older, _ = stand.send()
    await trio.sleep(0.1)
    newer, _ = stand.send()
    stand.answer(newer)
    hanging = held()
    await trio.sleep(SLOW)
    stand.watch.stop(older)

    assert hanging == fresh + 2  # its time limit, and the send in its queue
    assert held() == fresh + 1


async def test_a_send_that_began_together_with_an_accepted_one_is_not_excused(make):
    stand = await make()
    one, _ = stand.send()
    _, scope = stand.send()
    stand.answer(one)
    await trio.sleep(SLOW + WAIT + 0.1)

    assert scope.cancel_called


async def test_a_send_that_ends_leaves_those_beside_it_to_be_excused(make):
    stand = await make()
    ended, _ = stand.send()
    _, scope = stand.send()
    stand.watch.stop(ended)
    await trio.sleep(0.5)
    newer, _ = stand.send()
    stand.answer(newer)
    await trio.sleep(10.0)

    assert not scope.cancel_called


async def test_a_send_that_may_not_be_cancelled_keeps_no_other_from_it(make):
    stand = await make()
    stand.send(gives_up=False)
    _, scope = stand.send()
    await trio.sleep(SLOW + WAIT + 0.1)

    assert scope.cancel_called


async def test_answers_in_time_beside_a_slow_send_count_against_the_late_ones(make):
    stand = await make(failover_interval=0.0)
    stand.send()
    await trio.sleep(SLOW + 0.1)
    states = []
    for late in (*[False] * 6, *[True] * 6):
        stand.states.sent(stand.states.begin(ORDERS), late=late)
        states.append(stand.state())

    assert states == [State.PRIMARY] * 11 + [State.SECONDARY]


async def test_a_send_from_before_the_start_of_the_watch_is_watched(make, nursery):
    stand = await make()
    later = attrs.evolve(stand, watch=SlowWatch(options=stand.watch.options, states=stand.states))
    _, scope = later.send()
    await nursery.start(later.watch.run)
    await trio.sleep(SLOW + WAIT + 0.1)

    assert scope.cancel_called


@pytest.mark.parametrize(("late", "is_excused"), [(0.5, False), (0.6, True)])
async def test_sends_begin_again_after_a_pause_of_the_gateway(make, late, is_excused):
    stand = await make()
    stand.send()
    await wait_all_tasks_blocked()
    trio.lowlevel.current_clock().jump(SLOW + late)
    await wait_all_tasks_blocked()
    after = stand.state()
    await trio.sleep(SLOW - 0.1)
    before = stand.state()
    await trio.sleep(0.2)

    assert (after, before) == ((State.PRIMARY,) * 2 if is_excused else (State.SUSPECT,) * 2)
    assert stand.state() is State.SUSPECT


async def test_after_a_pause_no_send_is_given_up_for_its_old_time(make):
    stand = await make()
    _, scope = stand.send()
    await trio.sleep(SLOW + 0.1)
    trio.lowlevel.current_clock().jump(10.0)
    await trio.sleep(0.1)

    assert not scope.cancel_called


async def test_after_a_pause_no_send_that_showed_life_is_given_up_for_its_old_time(make):
    stand = await make()
    _, scope = stand.send()
    await trio.sleep(SLOW + 0.1)
    stand.states.probed(ORDERS, stand.states.begin(ORDERS))
    await trio.sleep(WAIT)
    trio.lowlevel.current_clock().jump(10.0)
    await trio.sleep(0.1)

    assert not scope.cancel_called


# Second copies


async def test_a_copy_begins_after_its_time_without_doubt_in_a_healthy_entity(make):
    stand = await make(slow_call_duration=None)
    copy = Copy(after=1.0)
    watched, scope = stand.send(second=copy)
    await trio.sleep(0.9)
    before = (copy.expected, list(copy.begun))
    await trio.sleep(0.2)
    assert copy.then is not None
    copy.then()
    stand.watch.stop(watched)

    assert before == (1, [])
    assert copy.begun == [(stand.began + 1.0, False)]
    assert scope.cancel_called
    assert copy.cancelled == 1


async def test_a_copy_begins_as_soon_as_the_send_is_slow(make):
    stand = await make()
    copy = Copy(after=60.0)
    stand.send(second=copy)
    await trio.sleep(SLOW + 0.1)

    assert copy.begun == [(stand.began + SLOW, True)]


async def test_a_copy_that_begins_early_is_no_silence_of_the_namespace(make):
    stand = await make()
    stand.send(second=Copy(after=1.0))
    await trio.sleep(1.1)
    early = stand.states.evidence.namespace.is_any_silent
    stand.send(BILLS)
    await trio.sleep(SLOW + 0.1)

    assert not early
    assert stand.states.evidence.namespace.is_any_silent


async def test_a_copy_of_a_send_that_may_not_be_cancelled_never_begins(make):
    stand = await make()
    copy = Copy(after=1.0)
    stand.send(gives_up=False, second=copy)
    await trio.sleep(10.0)

    assert copy.begun == []


async def test_a_copy_with_less_time_than_the_sends_before_it_begins_in_time(make):
    stand = await make()
    stand.send()
    await trio.sleep(0.1)
    copy = Copy(after=0.5)
    stand.send(second=copy)
    await trio.sleep(0.6)

    assert copy.begun == [(pytest.approx(stand.began + 0.6), True)]
