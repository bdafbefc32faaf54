"""The sessions that a drain of ordered entities locks: which, when, how many, and for how long."""

from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    EntityNotFound,
    InvalidRequest,
    SessionLockLost,
    SessionNotAvailable,
    Unavailable,
)
from gateway.domain.events.gateway import LeftUntouched, SyphonFailed
from gateway.extensions.order.ordered_drain import OrderedDrain
from gateway.extensions.order.queues import ORDERED_PROPERTIES
from gateway.pairing.syphon.backlog_message import BacklogQueueInfo
from tests.harness.faults import Hang, Operation, Refuse
from tests.harness.retained import entries
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    Slow,
    envelope,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

QUEUE = EntityPath(f"{LABEL}/x-servicebus-transfer/ordered/9")
LOCK = 2.0  # seconds
SEND, SETTLE, RENEW = Operation.SEND, Operation.SETTLE, Operation.RENEW
STEADY = Backoff(first=1.0, cap=60.0, jitter=0.0)


@pytest.fixture
def ordered() -> bool:
    return True


@attrs.define(eq=False)
class Source:
    """The secondary, which records the sessions that are locked, and fails as it is told."""

    inner: object
    opened: list[tuple[str | None, float]] = attrs.field(factory=list)  # wanted, when
    locked: list[str] = attrs.field(factory=list)
    released: list[float] = attrs.field(factory=list)
    listed: list[tuple[int, int, float]] = attrs.field(factory=list)  # skip, top, when
    limits: list[int] = attrs.field(factory=list)  # of receives
    failures: list[bool] = attrs.field(factory=list)  # of the next locks, in their order
    pages: dict[int, list[str]] | None = None  # by `skip`; None: those of the namespace
    listing: object = None  # an error, or infinite time, that the next list ends with
    taken: frozenset[str] = frozenset()  # sessions of another syphon
    stuck: bool = False  # a release gets no answer
    held: set[str] = attrs.field(factory=set)
    most_held: int = 0

    @asynccontextmanager
    async def open_session(self, entity, session_id):
        self.opened.append((session_id, trio.current_time()))
        if self.failures and self.failures.pop(0):
            raise Unavailable("no")
        if session_id in self.taken:
            raise SessionNotAvailable("another syphon has it")
        async with self.inner.open_session(entity, session_id) as receiver:
            self.locked.append(receiver.session_id)
            self.held.add(receiver.session_id)
            self.most_held = max(len(self.held), self.most_held)
            try:
                yield Session(self, receiver)
                if self.stuck:
                    await trio.sleep_forever()
            finally:
                self.held.discard(receiver.session_id)
                self.released.append(trio.current_time())

    async def list_sessions(self, entity, *, updated_since=None, skip=0, top=50):
        self.listed.append((skip, top, trio.current_time()))
        if self.listing is not None:
            fault, self.listing = self.listing, None
            if isinstance(fault, Exception):
                raise fault
            await trio.sleep(fault)
        if self.pages is not None:
            return self.pages[skip]
        return await self.inner.list_sessions(entity, skip=skip, top=top)


@attrs.frozen
class Session:
    source: Source
    inner: object

    async def receive(self, limit):
        self.source.limits.append(limit)
        return await self.inner.receive(limit)

    def __getattr__(self, name):
        return getattr(self.inner, name)


async def started(harness, *, lock=LOCK, most=None, info=None, **options):
    """A drain of a queue of its own that hasn't run yet, and its source."""
    properties = attrs.evolve(ORDERED_PROPERTIES, lock_duration=timedelta(seconds=lock))
    await harness.secondary.store.create_queue(QUEUE, properties)
    source = Source(harness.secondary.broker)
    at = harness.make_drain(**options).at
    at = attrs.evolve(at, source=source, queue=QUEUE)
    at.update(info or BacklogQueueInfo(lock_duration=timedelta(seconds=lock)))
    drain = OrderedDrain(at=at) if most is None else OrderedDrain(at=at, most_sessions=most)
    return drain, source


def session_of(number: int) -> str:
    return f"{number:032x}"


async def divert(harness, number, *names, entity=ORDERS, pair=LABEL):
    """Put messages into the session of that number."""
    for place, name in enumerate(names, 1):
        wrapped = envelope(pair=pair).wrap(
            message(name),
            entity,
            attempt=harness.new_id(),
            now=harness.clock(),
            place=f"{session_of(number)}.0.{place}",
        )
        await harness.secondary.store.send(QUEUE, [wrapped])


async def drained(harness, drain, seconds):
    """Let the drain run for so long."""
    with trio.move_on_after(seconds):
        await drain.run()


# --- how many, and how long


async def test_sixty_four_sessions_are_locked_at_once(harness):
    drain, source = await started(harness, lock=60)
    for number in range(70):
        await divert(harness, number, f"m{number}")
    harness.primary.fail(Slow(5), SEND)

    await drained(harness, drain, 60)

    assert source.most_held == 64
    assert len(await harness.primary.ids()) == 70


@pytest.mark.parametrize(("batch", "limit"), [(7, 7), (1000, 100)])
async def test_a_receive_asks_for_a_batch_of_at_most_a_hundred(harness, batch, limit):
    drain, source = await started(harness, batch=batch)
    await divert(harness, 1, "a")

    await drained(harness, drain, 1)

    assert set(source.limits) == {limit}


async def test_sessions_are_locked_one_after_the_other_without_a_pause(harness):
    drain, _ = await started(harness)
    for number in range(10):
        await divert(harness, number, f"m{number}")

    await drained(harness, drain, 0.4)

    assert len(await harness.primary.ids()) == 10


async def test_a_session_is_locked_once_and_released_half_a_second_after_its_last_message(harness):
    drain, source = await started(harness, batch=1)
    await divert(harness, 1, "a", "b", "c")
    began = trio.current_time()

    await drained(harness, drain, 5)

    assert source.locked == [session_of(1)]
    assert source.released == [pytest.approx(began + 0.5, abs=0.01)]


async def test_a_release_without_an_answer_holds_its_place_for_an_attempts_time(harness):
    drain, source = await started(harness, most=1, attempt_timeout=7.0)
    await divert(harness, 1, "a")
    await divert(harness, 2, "b")
    source.stuck = True
    began = trio.current_time()

    await drained(harness, drain, 9)

    assert source.opened[1][1] - began == pytest.approx(0.5 + 7, abs=0.01)


async def test_received_messages_count_for_the_stall(harness):
    drain, _ = await started(harness)
    await divert(harness, 1, "a")
    harness.primary.fail(Hang(), SEND)
    drain.at.progress.record_waiting()
    before = drain.at.progress.has_received

    await drained(harness, drain, 1)

    assert (before, drain.at.progress.has_received) == (False, True)


@pytest.mark.parametrize("most", [6, 7])
async def test_half_of_the_sessions_wait_locked_until_their_entity_resumes(harness, most):
    drain, source = await started(harness, lock=60, most=most)
    for number in range(8):
        await divert(harness, number, f"m{number}")
    harness.primary.fail(Refuse(), SEND)

    with trio.move_on_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.run)
            await trio.sleep(8)
            waiting, before = set(source.held), len(source.locked)
            harness.primary.heal()
            await trio.sleep(100)
            relocked = waiting.intersection(source.locked[before:])
            harness.primary.fail(Refuse(), SEND)
            for number in range(8):
                await divert(harness, number, f"n{number}")
            await trio.sleep(8)
            again = len(source.held)
            nursery.cancel_scope.cancel()

    assert (len(waiting), again) == (3, 3)
    assert relocked == set()
    assert len(await harness.primary.ids()) == 8


# --- locks


async def test_a_lock_is_renewed_each_third_of_its_time(harness):
    drain, _ = await started(harness, attempt_timeout=60.0)
    await divert(harness, 1, "a")
    harness.primary.fail(Slow(3), SEND)
    began = trio.current_time()

    await drained(harness, drain, 3)

    times = [at - began for at in harness.secondary.times(RENEW)]
    assert times == pytest.approx([LOCK / 3 * n for n in range(1, 5)], abs=0.01)


async def test_a_renewal_without_an_answer_is_repeated_after_one_and_a_half_attempts(harness):
    drain, _ = await started(harness, lock=60, attempt_timeout=10.0)
    await divert(harness, 1, "a")
    harness.primary.fail(Slow(90), SEND)
    harness.secondary.fail(Hang(), RENEW, times=1)

    await drained(harness, drain, 60)

    first, second = harness.secondary.times(RENEW)[:2]
    assert second - first == pytest.approx(15 + (60 - 20 - 15) / 3, abs=0.01)


async def test_a_session_whose_lock_is_lost_is_left_at_once(harness):
    drain, source = await started(harness, attempt_timeout=600.0)
    await divert(harness, 1, "a")
    harness.primary.fail(Slow(300), SEND)
    harness.secondary.fail(refuse(SessionLockLost, "lost"), RENEW, times=1)
    began = trio.current_time()

    await drained(harness, drain, 2)

    assert source.released[0] == pytest.approx(began + LOCK / 3, abs=0.01)


# --- errors of the queue


async def test_failures_of_the_queue_are_reported_and_pause_ever_longer(harness):
    drain, source = await started(harness, queue_retry=STEADY)
    await divert(harness, 1, "a")
    await divert(harness, 2, "b")
    source.failures = [True, True, True, False, True, True, False]
    began = trio.current_time()

    await drained(harness, drain, 20)

    times = [at - began for _, at in source.opened][:7]
    assert times == pytest.approx([0, 1, 3, 7, 7, 8, 10], abs=0.01)
    failed = SyphonFailed(queue=QUEUE, reason=str(Unavailable("no")))
    assert harness.events.of(SyphonFailed) == [failed] * 5


async def test_a_queue_that_is_gone_ends_the_drain_and_its_sends(harness):
    drain, source = await started(harness, attempt_timeout=3600.0)
    await divert(harness, 1, "a")
    harness.primary.fail(Hang(), SEND)
    results = []

    async def run():
        results.append(await drain.run())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.sleep(1)
            await harness.secondary.store.delete_queue(QUEUE)

    assert [type(each) for each in results] == [EntityNotFound]
    assert source.held == set()


async def test_an_error_after_the_lock_ends_the_session_alone(harness):
    drain, source = await started(harness)
    await divert(harness, 1, "a")

    @asynccontextmanager
    async def ends_badly(entity, session_id, inner=source.open_session):
        async with inner(entity, session_id) as session:
            yield session
            raise Unavailable("the release has failed")

    drain = OrderedDrain(at=attrs.evolve(drain.at, source=Ending(source, ends_badly)))
    await drained(harness, drain, 1)
    await divert(harness, 2, "b")
    await drained(harness, drain, 1)

    assert await harness.primary.ids() == ["a", "b"]


@attrs.frozen
class Ending:
    """A source whose sessions end as that context manager says."""

    source: Source
    open_session: object

    async def list_sessions(self, entity, *, updated_since=None, skip=0, top=50):
        return await self.source.list_sessions(entity, skip=skip, top=top)


# --- the search beside sessions that can't be moved


async def test_a_foreign_session_is_reported_once_and_left_for_the_time_of_a_lock(harness):
    drain, source = await started(harness)
    await divert(harness, 1, "foreign", pair="west")

    await drained(harness, drain, LOCK - 0.1)

    assert len(source.limits) == 1  # locked again as the oldest one, it is released unread
    [told] = harness.events.of(LeftUntouched)
    assert (told.queue, told.messages) == (QUEUE, 1)


async def test_no_message_passes_a_foreign_one_of_its_session(harness):
    drain, _ = await started(harness, batch=1)
    await divert(harness, 1, "foreign", pair="west")
    await divert(harness, 1, "own")

    await drained(harness, drain, 10)

    assert await harness.primary.ids() == []


async def test_a_search_goes_page_by_page_a_second_apart_and_begins_anew_when_it_is_over(harness):
    drain, source = await started(harness, lock=2.5)
    await divert(harness, 1, "foreign", pair="west")
    source.pages = {0: [session_of(1)] * 100, 100: [session_of(1)]}
    began = trio.current_time()

    await drained(harness, drain, 5.9)

    found = [(skip, top, at - began) for skip, top, at in source.listed]
    expected = [0, 100, 0, 0, 100, 0]  # the session was tried again after three searches
    assert [skip for skip, _, _ in found] == expected
    assert {top for _, top, _ in found} == {100}
    assert [at for _, _, at in found] == pytest.approx(range(6), abs=0.01)


async def test_a_search_that_fails_is_reported_and_goes_on(harness):
    drain, source = await started(harness)
    await divert(harness, 1, "foreign", pair="west")
    source.listing = Unavailable("no list")

    await drained(harness, drain, 1.5)

    failed = SyphonFailed(queue=QUEUE, reason=str(Unavailable("no list")))
    assert harness.events.of(SyphonFailed) == [failed]
    assert len(source.listed) == 2


async def test_a_search_without_an_answer_is_repeated_after_one_and_a_half_attempts(harness):
    drain, source = await started(harness, lock=60, attempt_timeout=10.0)
    await divert(harness, 1, "foreign", pair="west")
    source.listing = 1000.0

    await drained(harness, drain, 20)

    first, second = (at for _, _, at in source.listed[:2])
    assert second - first == pytest.approx(15 + 1, abs=0.01)


async def test_a_session_that_another_syphon_has_is_passed_over(harness):
    drain, source = await started(harness, lock=60)
    await divert(harness, 1, "foreign", pair="west")
    await divert(harness, 2, "theirs")
    source.pages = {0: [session_of(1), session_of(2), session_of(3)]}
    source.taken = frozenset({session_of(2)})

    async with harness.secondary.store.open_session(QUEUE, session_of(2)):
        with trio.move_on_after(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain.run)
                await trio.sleep(0.5)
                await divert(harness, 3, "ours")

        assert await harness.primary.ids() == ["ours"]
    assert harness.events.of(SyphonFailed) == []


# --- a session that is left


async def test_a_session_that_is_left_keeps_no_copies(harness):
    drain, _ = await started(harness, lock=60, most=1)
    empty = entries(drain.at.copies)
    await divert(harness, 1, "a", "b")
    harness.primary.fail(Refuse(), SEND)

    await drained(harness, drain, 0.5)

    assert entries(drain.at.copies) == empty


async def test_a_session_that_is_left_forgets_no_copies_of_another_one(harness):
    drain, _ = await started(harness, lock=60)
    await divert(harness, 1, "a")
    await divert(harness, 2, "b")
    empty = entries(drain.at.copies)
    harness.primary.fail(None, SEND, times=1)
    harness.primary.fail(Slow(30), SEND)

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.run)
            await trio.sleep(5)
            under_way = entries(drain.at.copies)
            nursery.cancel_scope.cancel()

    assert under_way > empty


@pytest.mark.parametrize("batch", [1, 2])
async def test_no_message_passes_one_whose_entity_is_suspended(harness, batch):
    drain, _ = await started(harness, most=1, batch=batch)
    await divert(harness, 1, "a", "b", "c")
    harness.primary.fail(Refuse(), SEND, times=1)

    await drained(harness, drain, 0.5)

    assert await harness.primary.ids() == []


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_no_message_passes_a_malformed_one_before_its_dead_letter_is_confirmed(
    harness, batch
):
    drain, _ = await started(harness, lock=60, batch=batch)
    await divert_malformed(harness, "bad")
    await divert(harness, 1, "a", "b")
    harness.secondary.fail(Refuse(), SETTLE)

    await drained(harness, drain, 5)
    before = await harness.primary.ids()
    harness.secondary.heal()
    await drained(harness, drain, 5)

    assert before == []
    assert await harness.primary.ids() == ["a", "b"]


async def divert_malformed(harness, name):
    """Put a message into the first session that has no place in its order."""
    wrapped = envelope().wrap(message(name), ORDERS, attempt=harness.new_id(), now=harness.clock())
    wrong = attrs.evolve(wrapped, session_id=session_of(1))
    await harness.secondary.store.send(QUEUE, [wrong])


@pytest.mark.parametrize("batch", [1, 2])
async def test_no_message_passes_a_refused_one_whose_dead_letter_is_unconfirmed(harness, batch):
    drain, source = await started(harness, lock=60, batch=batch)
    await divert(harness, 1, "refused", "a")
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND, times=1)
    harness.secondary.fail(Refuse(), SETTLE, times=1)
    began = trio.current_time()

    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.run)
            await trio.sleep(0.9)
            early = await harness.primary.ids()

    assert early == []
    assert source.released[0] - began == pytest.approx(1, abs=0.01)
    assert await harness.primary.ids() == ["refused", "a"]


async def test_no_message_passes_one_before_a_malformed_one_that_isnt_dead_lettered(harness):
    drain, _ = await started(harness, lock=60, batch=2)
    await divert(harness, 1, "refused")
    await divert_malformed(harness, "bad")
    await divert(harness, 1, "a")
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND, times=1)
    harness.secondary.fail(Refuse(), SETTLE, times=1)

    await drained(harness, drain, 10)

    assert await harness.primary.ids() == ["refused", "a"]


async def test_a_session_that_is_left_for_the_others_is_left_at_once(harness):
    drain, source = await started(harness, most=1, batch=1)
    await divert(harness, 1, "a", "b")
    harness.primary.fail(Refuse(), SEND)
    began = trio.current_time()

    await drained(harness, drain, 0.9)

    assert source.limits == [1]
    assert source.released[0] == pytest.approx(began, abs=0.01)


async def test_a_lost_session_that_is_locked_again_waits_for_the_send_under_way(harness):
    drain, source = await started(harness, attempt_timeout=600.0)
    await divert(harness, 1, "a", "b")
    harness.primary.fail(Slow(30), SEND, times=1)
    harness.secondary.fail(Refuse(), RENEW, times=12)  # the lock runs out

    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.run)
            await trio.sleep(50)
            left = len(source.released)
            nursery.cancel_scope.cancel()

    assert left == len(source.locked)
    assert source.locked.count(session_of(1)) > 1
    assert list(dict.fromkeys(await harness.primary.ids())) == ["a", "b"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_session_that_was_released_and_is_moved_is_forgotten(harness):
    drain, _ = await started(harness, lock=60, most=1)
    await divert(harness, 1, "a")
    await drained(harness, drain, 1)
    empty = entries(drain) - entries(drain.at)
    await divert(harness, 2, "b")
    harness.primary.fail(Refuse(), SEND, times=1)

    await drained(harness, drain, 0.5)
    released = entries(drain) - entries(drain.at)
    await drained(harness, drain, 10)

    assert await harness.primary.ids() == ["a", "b"]
    assert released > empty
    assert entries(drain) - entries(drain.at) == empty


async def test_a_session_that_is_listed_twice_is_locked_once_and_takes_one_place(harness):
    drain, source = await started(harness, most=2)
    await divert(harness, 1, "foreign", pair="west")
    source.pages = {0: []}
    harness.primary.fail(Slow(5), SEND, entity=ORDERS)

    with trio.move_on_after(LOCK - 0.1):  # so long sessions are searched beside the foreign one
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain.run)
            await trio.sleep(0.5)
            await divert(harness, 2, "a")
            await divert(harness, 3, "b", entity=BILLS)
            source.pages = {0: [session_of(2), session_of(2), session_of(3)]}

    assert [wanted for wanted, _ in source.opened].count(session_of(2)) == 1
    assert await harness.primary.ids(BILLS) == ["b"]


async def test_two_messages_of_one_attempt_are_two_copies(harness):
    drain, _ = await started(harness, lock=60)
    wrapped = envelope().wrap(
        message("a"), ORDERS, attempt="1", now=harness.clock(), place=f"{session_of(1)}.0.1"
    )
    await harness.secondary.store.send(QUEUE, [wrapped, wrapped])

    await drained(harness, drain, 5)

    assert await harness.primary.ids() == ["a", "a"]
    assert await harness.secondary.ids(QUEUE) == []
