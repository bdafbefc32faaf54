"""The requests by which dead letters are shown and moved, in their order."""

from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    EntityNotFound,
    LockLost,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    Unavailable,
)
from gateway.domain.message import DeadLetter
from gateway.extensions.redrive.events import DeadLettersRedriven
from gateway.extensions.redrive.order import Redriven, Selection
from tests.extensions.redrive.harness import (
    DEAD,
    EVERYTHING,
    NOWHERE,
    SEND,
    SETTLE,
    SHORT,
    bury,
    redrive_of,
    rows,
    run,
)
from tests.harness.faults import Hang, Operation
from tests.pairing.harness import LABEL, QUEUE, Slow, message, refuse, virtual_time

pytestmark = virtual_time

RECEIVE, RENEW = Operation.RECEIVE, Operation.RENEW
PEEKS = 100  # messages that Service Bus shows at most by one request


@attrs.define(eq=False)
class Recorder:
    """
    A namespace that records the requests for dead letters. It counts none of them if `counts` is
    false, and a peek shows none of those that `hidden` has.
    """

    inner: object
    counts: bool = True
    can_peek: bool = True
    hidden: frozenset[str] = frozenset()
    peeked: list[tuple[int, int]] = attrs.field(factory=list)  # sequence number, limit
    limits: list[int] = attrs.field(factory=list)  # of receives
    opened: list[EntityPath] = attrs.field(factory=list)
    forgotten: list[str] = attrs.field(factory=list)  # message ids
    open: int = 0  # receivers
    most_open: int = 0

    async def list_queues(self, prefix="", *, skip=0, top=100):
        found = await self.inner.list_queues(prefix, skip=skip, top=top)
        return found if self.counts else [attrs.evolve(each, dead_lettered=None) for each in found]

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)

    async def peek(self, entity, *, from_sequence=0, limit=1):
        if not self.can_peek:
            raise NotSupported("no")
        self.peeked.append((from_sequence, limit))
        found = await self.inner.peek(entity, from_sequence=from_sequence, limit=limit)
        return [each for each in found if each.message.message_id not in self.hidden]

    @asynccontextmanager
    async def open_receiver(self, entity):
        self.opened.append(entity)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            async with self.inner.open_receiver(entity) as receiver:
                yield RecordedReceiver(self, receiver)
        finally:
            self.open -= 1


@attrs.frozen
class RecordedReceiver:
    namespace: Recorder
    inner: object

    async def receive(self, limit):
        self.namespace.limits.append(limit)
        return await self.inner.receive(limit)

    async def settle(self, delivery, settlement):
        await self.inner.settle(delivery, settlement)

    def forget_message(self, delivery):
        self.namespace.forgotten.append(delivery.message.message_id)


# --- showing


async def test_a_survey_peeks_page_by_page_where_that_shows_all(harness):
    await bury(harness, *(message(f"m{n}") for n in range(250)))
    source = Recorder(harness.secondary.store, counts=False)
    last = [each.sequence_number for each in await harness.secondary.deliveries(DEAD)][99::100]

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert survey.messages == 250
    starts = [0, *(number + 1 for number in last)]
    assert source.peeked[:3] == [(start, PEEKS) for start in starts]
    assert source.opened == []


async def test_a_survey_that_has_peeked_all_counted_dead_letters_receives_none(harness):
    await bury(harness, message("m1"), message("m2"))
    source = Recorder(harness.secondary.store)

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert rows(survey) == {("EntityNotFound", "orders"): (2, 2)}
    assert survey.problems == ()
    assert source.opened == []


async def test_a_survey_asks_for_nothing_where_no_dead_letters_are_counted(harness):
    source = Recorder(harness.secondary.store)

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert (survey.messages, survey.problems) == (0, ())
    assert (source.peeked, source.opened) == ([], [])


async def test_a_survey_receives_what_a_peek_does_not_show(harness):
    await bury(harness, message("m1"), message("m2"), message("m3"))
    source = Recorder(harness.secondary.store, hidden=frozenset({"m2"}))

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert rows(survey) == {("EntityNotFound", "orders"): (3, 3)}


async def test_a_survey_receives_where_the_namespace_refuses_to_peek(harness):
    await bury(harness, *(message(f"m{n}") for n in range(3)))
    source = Recorder(harness.secondary.store, counts=False, can_peek=False)

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert rows(survey) == {("EntityNotFound", "orders"): (3, 3)}
    assert set(source.limits) == {PEEKS}
    assert source.forgotten == ["m0", "m1", "m2"]  # the survey needs their locks alone


async def test_a_survey_of_two_queues_is_an_outage_if_one_of_them_is_out(harness):
    other = backlog.queue_name(LABEL, 3)
    await harness.secondary.store.create_queue(other, backlog.QUEUE_PROPERTIES)
    await bury(harness, message("m1"))
    await bury(harness, message("m2"), queue=other)
    harness.secondary.fail(refuse(NotAuthorized, "no"), RECEIVE, entity=DEAD)
    harness.secondary.fail(refuse(Unavailable, "no"), RECEIVE, entity=other.dead_letter)

    survey = await redrive_of(harness).survey(EVERYTHING)

    assert len(survey.problems) == 2
    assert survey.is_outage


async def test_a_survey_says_how_many_are_counted_and_do_not_come(harness):
    await bury(harness, *(message(f"m{n}") for n in range(3)))
    source = Recorder(harness.secondary.store, can_peek=False)
    async with harness.secondary.store.open_receiver(DEAD) as receiver:
        await receiver.receive(1)
        survey = await redrive_of(harness, source=source).survey(EVERYTHING)

    assert survey.messages == 2
    assert not survey.is_outage
    assert survey.problems == (
        f"{QUEUE}: 1 of 3 dead letters weren't received: they are locked, perhaps by an earlier"
        " look, or gone; try again",
    )


# --- moving


async def test_no_more_than_ten_are_locked_together(harness):
    await bury(harness, *(message(f"m{n}") for n in range(25)))
    source = Recorder(harness.secondary.store)

    assert await run(harness, source=source) == Redriven(moved=25)
    assert source.limits == [10, 10, 10]


async def test_no_more_than_sixteen_queues_are_worked_at_together(harness):
    for index in range(2, 22):
        queue = backlog.queue_name(LABEL, index)
        await harness.secondary.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
        await bury(harness, message(f"m{index}"), queue=queue)
    harness.secondary.fail(Slow(1), SEND)
    source = Recorder(harness.secondary.broker)

    assert await run(harness, source=source) == Redriven(moved=20)
    assert source.most_open == 16


async def test_a_redrive_without_a_reason_reports_none(harness):
    await bury(harness, message("m1"))

    await redrive_of(harness).run(EVERYTHING, add=lambda _: None)

    told = DeadLettersRedriven(messages=1, left=0, reason="")
    assert harness.events.of(DeadLettersRedriven) == [told]


async def test_the_messages_that_stay_need_no_memory(harness):
    await bury(harness, message("other"), reason="MessageTooLarge")
    await harness.secondary.store.send(QUEUE, [message("foreign")])
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="EntityNotFound"))
    await bury(harness, message("m1"))
    source = Recorder(harness.secondary.store)

    done = await run(harness, Selection(reasons=("EntityNotFound",)), source=source)

    assert (done.moved, done.left) == (1, 1)
    assert sorted(source.forgotten) == ["foreign", "other"]


async def test_a_message_that_is_dead_lettered_again_meanwhile_is_left(harness):
    await bury(harness, *(message(f"m{n}") for n in range(5)), entity=NOWHERE)
    source = Recorder(harness.secondary.store, counts=False)
    await harness.syphon(gone_grace=0)

    with trio.fail_after(600):
        done = await run(harness, source=source, rate=1)

    assert (done.moved, done.left) == (5, 5)
    assert done.problems == ("the message was dead-lettered again: EntityNotFound",)
    assert sorted(source.forgotten) == [f"m{n}" for n in range(5)]


@pytest.mark.parametrize("error", [MessageTooLarge, EntityNotFound])
async def test_a_message_that_is_refused_for_itself_is_left_and_the_next_is_moved(harness, error):
    await bury(harness, message("m1"), message("m2"))
    harness.secondary.fail(refuse(error, "no"), SEND, times=1)

    done = await run(harness)

    assert done == Redriven(moved=1, left=1, problems=(f"{QUEUE}: no",))
    assert await harness.secondary.ids(DEAD) == ["m1"]


async def test_a_lock_is_renewed_before_a_move_once_a_third_of_it_is_over(harness):
    await bury(harness, *(message(f"m{n}") for n in range(10)))
    lock = backlog.LEGACY_PROPERTIES.lock_duration
    harness.secondary.fail(Slow(lock.total_seconds() / 15), SEND)
    began = trio.current_time()

    assert await run(harness) == Redriven(moved=10)

    used = [(at - began) / lock.total_seconds() for at in harness.secondary.times(RENEW)]
    assert used == pytest.approx([n / 15 for n in range(6, 10)])


async def test_a_message_whose_lock_is_lost_before_its_move_is_moved_when_it_comes_again(harness):
    await bury(harness, message("m1"), message("m2"), queue=SHORT)
    harness.secondary.fail(Slow(1), SEND)
    harness.secondary.fail(refuse(LockLost, "too late"), RENEW, times=1)

    assert await run(harness) == Redriven(moved=2)
    assert sorted(await harness.secondary.ids(SHORT)) == ["m1", "m2"]


async def test_a_lost_lock_does_not_count_among_as_many_as_were_asked_for(harness):
    await bury(harness, *(message(f"m{n}") for n in range(5)), queue=SHORT)
    harness.secondary.fail(Slow(1), SEND)
    harness.secondary.fail(refuse(LockLost, "too late"), RENEW, times=1)

    done = await redrive_of(harness).run(EVERYTHING, add=lambda _: None, most=3)

    assert done == Redriven(moved=3)
    assert len(await harness.secondary.ids(SHORT)) == 3


async def with_lock(harness, seconds):
    """A backlog queue with such locks, which has two dead letters."""
    queue = backlog.queue_name(LABEL, 2)
    lock = timedelta(seconds=seconds)
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=lock)
    await harness.secondary.store.create_queue(queue, properties)
    await bury(harness, message("m1"), message("m2"), queue=queue)
    return queue


async def test_a_message_that_an_earlier_look_has_locked_is_moved_when_its_lock_ends(harness):
    queue = await with_lock(harness, 30)
    async with harness.secondary.store.open_receiver(queue.dead_letter) as receiver:
        await receiver.receive(1)

        assert await run(harness) == Redriven(moved=2)


@pytest.mark.parametrize(("lock", "patience"), [(30, 33.0), (300, 63.0)])
async def test_a_message_that_stays_locked_is_told_after_a_lock_and_at_most_a_minute(
    harness, lock, patience
):
    queue = await with_lock(harness, lock)
    began = trio.current_time()
    async with (
        harness.secondary.store.open_receiver(queue.dead_letter) as receiver,
        trio.open_nursery() as held,
    ):
        [delivery] = await receiver.receive(1)
        held.start_soon(renewed, receiver, delivery)
        done = await run(harness)
        held.cancel_scope.cancel()

    assert (done.moved, trio.current_time() - began) == (1, patience)
    assert "1 of 2 dead letters weren't received" in done.problems[0]


async def renewed(receiver, delivery):
    while True:
        await receiver.renew(delivery)
        await trio.sleep(1)


async def test_a_move_in_progress_is_finished_on_cancellation(harness):
    await bury(harness, message("m1"), message("m2"))
    harness.secondary.fail(Slow(5), SEND)

    with trio.move_on_after(2) as scope:
        await run(harness)

    assert scope.cancelled_caught
    assert await harness.secondary.ids(QUEUE) == ["m1"]
    assert await harness.secondary.ids(DEAD) == ["m2"]


async def test_a_cancelled_move_has_told_its_unknown_outcome(harness):
    await bury(harness, message("m1"), message("m2"))
    harness.secondary.fail(Hang(), SEND)
    told = []

    with trio.move_on_after(2):
        await redrive_of(harness).run(EVERYTHING, add=told.append)

    assert [each.unknown for each in told if each.unknown] == [1]
    assert "message m1 is still a dead letter, and may have been moved" in told[0].problems[0]


async def test_a_cancelled_move_has_told_that_its_message_is_in_both_places(harness):
    await bury(harness, message("m1"), message("m2"))
    harness.secondary.fail(Hang(), SETTLE)
    told = []

    with trio.move_on_after(2):
        await redrive_of(harness).run(EVERYTHING, add=told.append)

    assert told[0] == Redriven(moved=1)
    assert [each.problems[0] for each in told[1:]] == [
        f"{QUEUE}: 1 messages were moved and are still dead letters"
    ]


async def test_a_namespace_that_answers_nothing_is_given_ten_seconds(harness):
    await bury(harness, message("m1"))
    harness.secondary.fail(Hang(), SEND)
    began = trio.current_time()

    await run(harness)

    assert trio.current_time() - began == pytest.approx(10, abs=0.001)


async def test_a_dead_letter_that_stays_beside_its_copy_is_no_outage(harness):
    await bury(harness, message("m1"))
    harness.secondary.fail(refuse(Unavailable, "no"), SETTLE)

    assert not (await run(harness)).is_outage
