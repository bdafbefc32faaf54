"""A syphon finds its backlog queues, reports a stall, and competes with others without loss."""

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.capabilities import Sessions
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized, NotSupported, Unavailable
from gateway.domain.events.gateway import SyphonFailed, SyphonStalled
from gateway.domain.message import ReceiveMode
from gateway.extensions.order.queues import ORDERED_PROPERTIES, is_ordered_queue, ordered_queue
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.syphon.backlog_message import BacklogQueueInfo
from gateway.ports import Broker
from tests.harness.faults import Hang, Operation, Refuse, busy
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    QUEUE,
    Slow,
    message,
    refuse,
    send,
    virtual_time,
)
from tests.trace_contexts import TRACE_CONTEXT

pytestmark = virtual_time

SEND, MANAGE = Operation.SEND, Operation.MANAGE
SELDOM = {
    "rescan": 1000.0,
    "stall_after": 1000.0,
    "queue_retry": Backoff(first=1.0, cap=1000.0, jitter=0.0),
}


async def make_queues(harness, *indices):
    queues = [backlog.queue_name(LABEL, index) for index in indices]
    for queue in queues:
        await harness.secondary.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
    return queues


# Discovery


async def test_every_queue_of_the_label_is_drained_whatever_was_configured(harness):
    for queue in await make_queues(harness, 3, 57, 1000):
        await harness.divert(message(str(queue)), queue=queue)
    await harness.syphon()

    await trio.sleep(1.0)

    assert len(await harness.primary.ids()) == 3


async def test_a_trace_context_comes_home_as_it_was_sent(harness):
    pair = await harness.pair()
    pair.states.force_over(ORDERS, "a detour")
    await send(pair, message(properties=TRACE_CONTEXT))()
    assert len(await harness.secondary.ids(QUEUE)) == 1

    await harness.syphon()
    await trio.sleep(1.0)

    (home,) = await harness.primary.messages()
    assert home.properties == TRACE_CONTEXT


async def test_more_queues_than_fit_on_a_page_are_found(harness):
    queues = await make_queues(harness, *range(1, 251))
    for queue in queues:
        await harness.divert(message(str(queue)), queue=queue)
    await harness.syphon()

    await trio.sleep(5.0)

    assert sorted(await harness.primary.ids()) == sorted(map(str, queues))


async def test_queues_of_another_label_are_left_alone(harness):
    other = backlog.queue_name("west", 0)
    await harness.secondary.store.create_queue(other, backlog.QUEUE_PROPERTIES)
    await harness.divert(message(), queue=other)
    await harness.syphon()

    await trio.sleep(100.0)

    assert await harness.secondary.ids(other) == ["m1"]


@pytest.mark.parametrize("error", [NotAuthorized, NotSupported])
async def test_without_the_right_to_list_indices_are_tried_until_ten_are_missing(harness, error):
    near, far, too_far = await make_queues(harness, 9, 19, 30)
    for queue in (QUEUE, near, far, too_far):
        await harness.divert(message(str(queue)), queue=queue)
    harness.secondary.fail(refuse(error, "no"), MANAGE)
    await harness.syphon()

    await trio.sleep(30.0)

    assert set(await harness.primary.ids()) == {str(QUEUE), str(near), str(far)}


@attrs.define
class Unlisted(ForwardingBroker):
    """A source that lists no queues, and refuses each that isn't granted; as RabbitMQ does."""

    inner: Broker
    granted: set[EntityPath]
    asked: Counter[EntityPath] = attrs.field(factory=Counter)

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)

    async def list_queues(self, prefix="", *, skip=0, top=100):
        await trio.lowlevel.checkpoint()
        raise NotSupported("no plugin")

    @asynccontextmanager
    async def open_receiver(self, entity, mode=ReceiveMode.PEEK_LOCK):
        self.asked[entity] += 1
        if entity not in self.granted:
            raise NotAuthorized("no permission")
        async with self.inner.open_receiver(entity, mode) as receiver:
            yield receiver


async def test_a_source_that_lists_nothing_is_asked_for_named_queues_and_seldom_for_others(harness):
    (further,) = await make_queues(harness, 1)
    await harness.divert(message(), queue=further)
    syphon = harness.make_syphon(rescan=60.0)
    syphon.named = [QUEUE]
    syphon.source = source = Unlisted(harness.secondary.store, {QUEUE, further})
    await harness.nursery.start(syphon.run)

    await trio.sleep(590.0)
    early = set(source.asked)
    await trio.sleep(3000.0)

    assert early == {QUEUE}
    assert await harness.primary.ids() == ["m1"]
    assert source.asked[backlog.queue_name(LABEL, 2)] == 1
    assert source.asked[ordered_queue(LABEL, 0)] == 1
    assert set(source.asked) == {
        *early,
        further,
        backlog.queue_name(LABEL, 2),
        ordered_queue(LABEL, 0),
    }
    assert not harness.events.of(SyphonFailed)  # it needs no right to read what need not exist


async def test_a_named_queue_that_may_not_be_read_is_a_fault(harness):
    (named,) = await make_queues(harness, 1)
    syphon = harness.make_syphon()
    syphon.named = [QUEUE, named]
    syphon.source = Unlisted(harness.secondary.store, {QUEUE})
    await harness.nursery.start(syphon.run)

    await trio.sleep(5.0)

    assert {event.queue for event in harness.events.of(SyphonFailed)} == {named}


async def test_a_source_without_sessions_is_asked_for_no_queue_of_ordered_entities(harness):
    syphon = harness.make_syphon()
    source = Unlisted(WithoutSessions(harness.secondary.store), {QUEUE})
    syphon.source = source
    await harness.nursery.start(syphon.run)

    await trio.sleep(100.0)

    assert not any(is_ordered_queue(queue) for queue in source.asked)


async def test_a_queue_of_ordered_entities_that_cant_be_read_stops_no_other(harness):
    """The secondary has no sessions, as over HTTP."""
    ordered = ordered_queue(LABEL, 0)
    await harness.secondary.store.create_queue(ordered, ORDERED_PROPERTIES)
    await harness.divert(message())
    syphon = harness.make_syphon()
    syphon.source = WithoutSessions(harness.secondary.broker)
    await harness.nursery.start(syphon.run)

    await trio.sleep(5.0)

    assert await harness.primary.ids() == ["m1"]
    assert ordered in {event.queue for event in harness.events.of(SyphonFailed)}


@attrs.frozen
class WithoutSessions(ForwardingBroker):
    inner: Broker
    forwards = ForwardingBroker.forwards - {Sessions}

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)


class Endless:
    """A namespace that has each requested queue."""

    def __init__(self, *, lists: bool) -> None:
        self.lists = lists

    async def list_queues(self, prefix, *, skip=0, top=100):
        await trio.lowlevel.checkpoint()
        if not self.lists:
            raise NotAuthorized("no")
        names = (backlog.queue_name(LABEL, skip + each) for each in range(top))
        return [EntityInfo(path=name) for name in names if name.name.startswith(prefix)]

    @asynccontextmanager
    async def open_receiver(self, queue, *_):
        yield self

    async def receive(self, limit):
        await trio.sleep_forever()


@pytest.mark.parametrize("lists", [False, True])
async def test_a_namespace_that_has_each_queue_that_is_asked_for_is_looked_through(harness, lists):
    syphon = harness.make_syphon()
    syphon.reports_progress = False
    syphon.source = Endless(lists=lists)
    await harness.nursery.start(syphon.run)

    await trio.sleep(1100.0)

    assert backlog.queue_name(LABEL, 999) in syphon.queues
    assert len(syphon.queues) < 1200


async def test_a_queue_of_clients_whose_name_begins_as_those_of_the_backlog_is_left_alone(harness):
    theirs = EntityPath(f"{LABEL}/x-servicebus-transfers")
    await harness.secondary.store.create_queue(theirs, QueueProperties())
    await harness.secondary.store.send(theirs, [message()])
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)
    pair = await harness.pair()
    await trio.sleep(5.0)

    assert syphon.queues == [QUEUE]
    assert (await pair.depth.read(5.0, troubled=True)).pending == 0
    assert await harness.secondary.ids(theirs) == ["m1"]


async def test_a_look_without_the_right_to_list_ends_also_where_queues_hang(harness):
    harness.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    harness.secondary.fail(Hang(20.0), Operation.RECEIVE)
    await harness.divert(message())
    await harness.syphon(rescan=10.0)
    await trio.sleep(30.0)
    harness.secondary.heal()

    await trio.sleep(120.0)

    assert await harness.primary.ids() == ["m1"]


async def test_a_queue_that_is_made_later_is_found(harness):
    await harness.syphon(rescan=60.0)
    await trio.sleep(30.0)
    (queue,) = await make_queues(harness, 5)
    await harness.divert(message(), queue=queue)

    await trio.sleep(31.0)

    assert await harness.primary.ids() == ["m1"]


async def test_a_queue_that_is_deleted_and_made_again_is_drained_again(harness):
    await harness.syphon(rescan=60.0)
    await trio.sleep(10.0)
    await harness.secondary.store.delete_queue(QUEUE)
    await trio.sleep(60.0)
    await make_queues(harness, 0)
    await harness.divert(message())

    await trio.sleep(61.0)

    assert await harness.primary.ids() == ["m1"]


async def test_a_secondary_that_is_down_at_the_start_is_found_later(harness):
    await harness.divert(message())
    harness.secondary.fail(Refuse())
    await harness.syphon(rescan=10.0)
    await trio.sleep(30.0)
    told = len(harness.events.of(SyphonFailed))
    harness.secondary.heal()

    await trio.sleep(11.0)

    assert told >= 2
    assert await harness.primary.ids() == ["m1"]


async def test_a_secondary_that_was_down_for_a_moment_is_asked_again_soon(harness):
    await harness.divert(message())
    harness.secondary.fail(Refuse())
    await harness.syphon()  # the syphon looks for new queues once a minute
    await trio.sleep(5.0)
    harness.secondary.heal()

    await trio.sleep(10.0)

    assert await harness.primary.ids() == ["m1"]


async def test_a_secondary_that_is_down_is_asked_later_and_later(harness):
    harness.secondary.fail(Refuse(), MANAGE)
    started = trio.current_time()
    await harness.syphon(**SELDOM)

    await trio.sleep(20.0)

    looks = [at - started for at in harness.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 1.0, 3.0, 7.0, 15.0])


async def test_a_secondary_that_has_come_back_is_asked_as_seldom_as_before(harness):
    harness.secondary.fail(Refuse(), MANAGE, times=2)
    started = trio.current_time()
    await harness.syphon(**SELDOM)

    await trio.sleep(1500.0)

    looks = [at - started for at in harness.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 1.0, 3.0, 1003.0])


async def test_a_secondary_that_is_down_again_is_asked_again_soon(harness):
    harness.secondary.fail(Refuse(), MANAGE, times=3)
    await harness.syphon(**SELDOM)
    await trio.sleep(500.0)
    harness.secondary.fail(Refuse(), MANAGE, times=1)

    await trio.sleep(1000.0)

    *_, failed, told = harness.secondary.times(MANAGE)
    assert told - failed == pytest.approx(1.0)


@pytest.mark.parametrize(("rescan", "stall_after"), [(10.0, 60.0), (60.0, 10.0)])
async def test_a_syphon_polls_as_often_as_the_more_urgent_reason_needs(
    harness, rescan, stall_after
):
    started = trio.current_time()
    await harness.syphon(rescan=rescan, stall_after=stall_after)

    await trio.sleep(25.0)

    looks = [at - started for at in harness.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 10.0, 20.0])


async def test_without_the_right_to_list_a_queue_that_cant_be_read_is_told_and_isnt_there(harness):
    harness.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    harness.secondary.fail(refuse(Unavailable, "out"), Operation.RECEIVE)
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)

    await trio.sleep(1.0)

    assert syphon.queues == []
    assert harness.events.of(SyphonFailed) == [SyphonFailed(queue=QUEUE, reason="out")]


async def test_a_list_that_never_comes_is_given_up_after_half_a_minute(harness):
    harness.secondary.fail(Hang(), MANAGE)
    started = trio.current_time()
    await harness.syphon(**SELDOM)

    await trio.sleep(60.0)

    looks = [at - started for at in harness.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 31.0])  # and a pause of a second


async def test_without_the_right_to_list_an_empty_queue_is_looked_at_once(harness):
    first, second = harness.queues(2)
    await make_queues(harness, 1)
    harness.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    started = trio.current_time()
    await harness.syphon()

    await trio.sleep(0.5)

    looks = {each.entity for each in harness.secondary.asked if each.at == started}
    assert looks >= {first, second}


async def test_without_the_right_to_list_a_queue_that_hangs_when_it_is_opened_isnt_there(harness):
    opened = []

    class HangsOpen:
        async def list_queues(self, *_, **__):
            await trio.lowlevel.checkpoint()
            raise NotAuthorized("no")

        def open_receiver(self, queue, *_):
            opened.append(queue)
            return self

        async def __aenter__(self):
            await trio.sleep_forever()

        async def __aexit__(self, *_):
            await trio.lowlevel.checkpoint()  # noqa: ASYNC102 it never gets here

    syphon = harness.make_syphon()
    syphon.source = HangsOpen()
    await harness.nursery.start(syphon.run)

    await trio.sleep(20.0)  # ten queues are tried, each for a second

    assert opened
    assert syphon.queues == []


async def test_each_drain_knows_the_depth_and_the_lock_of_its_queue(harness):
    await make_queues(harness, 1)
    await harness.divert(message("1"), message("2"))
    harness.primary.fail(Refuse(), SEND)
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)

    await trio.sleep(1.0)

    assert {drain.at.queue: drain.at.info for drain in syphon._drains.values()} == {
        QUEUE: BacklogQueueInfo(depth=2, lock_duration=backlog.LEGACY_LOCK),
        backlog.queue_name(LABEL, 1): BacklogQueueInfo(depth=0, lock_duration=backlog.LOCK),
    }


async def test_a_syphon_counts_the_entities_that_back_off(harness):
    for entity in (ORDERS, BILLS):
        await harness.divert(message(), entity=entity)
    harness.primary.fail(Refuse(), SEND, entity=BILLS)
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)

    await trio.sleep(0.5)

    assert syphon.backing_off == 1


async def test_a_list_that_never_comes_doesnt_stop_what_is_drained(harness):
    await harness.syphon(rescan=10.0)
    await trio.sleep(1.0)
    harness.secondary.fail(Hang(), MANAGE)
    await trio.sleep(60.0)

    await harness.divert(message())
    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["m1"]


# The watchdog


async def test_a_backlog_that_doesnt_move_is_told(harness):
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    syphon = harness.make_syphon(stall_after=60.0)
    await harness.nursery.start(syphon.run)

    await trio.sleep(59.0)
    before, early = harness.events.of(SyphonStalled), syphon.stalled
    await trio.sleep(10.0)
    late = syphon.stalled
    harness.primary.heal()
    await trio.sleep(60.0)

    assert before == []
    assert (early, late, syphon.stalled) == (False, True, False)
    assert harness.events.of(SyphonStalled) == [SyphonStalled(pending=1, seconds=60.0)]


@pytest.mark.parametrize("lock", [15.0, 60.0])
async def test_a_message_that_a_killed_syphon_has_locked_is_no_stall_until_its_lock_can_have_ended(
    harness, lock
):
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=lock))
    await harness.secondary.store.update_queue(QUEUE, properties)
    await harness.divert(message())
    async with harness.secondary.broker.open_receiver(QUEUE) as receiver:  # of that syphon
        [delivery] = await receiver.receive(1)
        await harness.syphon(stall_after=5.0)
        for _ in range(4 + int(lock)):
            await receiver.renew(delivery)  # longer than one that was killed
            await trio.sleep(1.0)
        before = harness.events.of(SyphonStalled)
        await trio.sleep(10.0)

    assert before == []
    assert harness.events.of(SyphonStalled)[0].seconds == 5.0 + lock


async def test_a_message_that_a_syphon_has_locked_itself_is_a_stall_without_more_patience(harness):
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(stall_after=5.0)

    stalled = await harness.events.first(SyphonStalled)

    assert stalled.seconds == 5.0


async def test_the_time_without_a_backlog_is_no_stall(harness):
    await harness.syphon(stall_after=60.0)
    await trio.sleep(3599.5)
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    began = trio.current_time()

    stalled = await harness.events.first(SyphonStalled)

    assert stalled.seconds == 60.0
    assert 60.0 <= trio.current_time() - began <= 120.0


async def test_a_message_that_comes_just_before_a_look_after_hours_without_a_backlog_has_its_time(
    harness,
):
    harness.primary.fail(Slow(1.0), SEND)
    await harness.syphon(rescan=60.0, stall_after=60.0)
    await trio.sleep(3 * 3600.0 - 0.5)

    await harness.divert(message())
    await trio.sleep(120.0)

    assert await harness.primary.ids() == ["m1"]
    assert harness.events.of(SyphonStalled) == []


async def test_a_message_that_comes_long_after_one_that_expired_has_its_time(harness):
    harness.primary.fail(Refuse(), SEND)
    await harness.divert(message("early", time_to_live=timedelta(seconds=20)))
    await harness.syphon(rescan=60.0, stall_after=60.0)
    await trio.sleep(3600.0 - 0.5)
    harness.primary.heal()
    harness.primary.fail(Slow(1.0), SEND)

    await harness.divert(message("late"))
    await trio.sleep(120.0)

    assert await harness.primary.ids() == ["late"]
    assert harness.events.of(SyphonStalled) == []


async def test_a_message_that_comes_after_an_hour_in_which_nobody_could_look_has_its_time(harness):
    harness.primary.fail(Slow(5.0), SEND)
    await harness.divert(message("early"))
    each_ten_seconds = Backoff(first=10.0, cap=10.0, jitter=0.0)
    await harness.syphon(rescan=60.0, stall_after=60.0, queue_retry=each_ten_seconds)
    await trio.sleep(30.0)
    harness.secondary.fail(Refuse(), MANAGE)
    await trio.sleep(3600.0 - 1.0)
    harness.secondary.heal()

    await harness.divert(message("late"))
    await trio.sleep(120.0)

    assert await harness.primary.ids() == ["early", "late"]
    assert harness.events.of(SyphonStalled) == []


@pytest.mark.parametrize("batch", [1, 20])
async def test_a_backlog_that_moves_slowly_isnt_stalled(harness, batch):
    for number in range(30):
        await harness.divert(message(f"{number}"))
    await harness.syphon(stall_after=60.0, batch=batch, max_drain_rate=0.1)

    await trio.sleep(250.0)

    assert harness.events.of(SyphonStalled) == []


async def test_an_empty_backlog_isnt_stalled(harness):
    await harness.syphon(stall_after=60.0)

    await trio.sleep(3600.0)

    assert harness.events.of(SyphonStalled) == []


async def test_a_look_that_fails_doesnt_put_the_alarm_off(harness):
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(stall_after=60.0, rescan=10.0)
    await trio.sleep(35.0)
    harness.secondary.fail(Refuse(), MANAGE, times=2)

    await trio.sleep(36.0)

    assert len(harness.events.of(SyphonStalled)) >= 1


# Several


async def test_two_syphons_compete_without_loss_or_duplicates(harness):
    for number in range(300):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(0.5), SEND)
    for _ in range(2):
        await harness.syphon(batch=20)

    await trio.sleep(60.0)

    ids = await harness.primary.ids()
    assert len(ids) == 300
    assert len(set(ids)) == 300
    assert await harness.secondary.ids(QUEUE) == []


async def test_one_of_two_syphons_takes_over_when_the_other_ends(harness):
    for number in range(50):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(1.0), SEND)
    first = await harness.syphon(batch=10)
    await harness.syphon(batch=10)
    await trio.sleep(1.5)

    first.cancel()
    await trio.sleep(200.0)

    assert set(await harness.primary.ids()) == {f"{number}" for number in range(50)}
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_busy_backlog_costs_pauses_and_no_duplicates(harness):
    await harness.divert(*(message(str(number)) for number in range(20)))
    harness.secondary.fail(busy(10.0), Operation.SETTLE, times=3)
    first = await harness.syphon()
    await trio.sleep(60.0)
    first.cancel()
    await harness.syphon()
    await trio.sleep(2 * backlog.LOCK.total_seconds())

    ids = await harness.primary.ids()
    assert sorted(ids, key=int) == [str(number) for number in range(20)]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_spool_is_drained_by_the_same_syphon(harness):
    pair = await harness.pair(spool=True)
    for namespace in (harness.primary, harness.secondary):
        namespace.fail(Refuse(), SEND)
    await pair.broker.send(ORDERS, [message()])
    for namespace in (harness.primary, harness.secondary):
        namespace.heal()
    await harness.syphon(source=harness.spool)

    await trio.sleep(5.0)

    assert await harness.primary.ids() == ["m1"]
    assert await harness.spool.ids(QUEUE) == []


async def test_a_syphon_pauses_after_failures_with_growing_pauses(harness):
    harness.secondary.fail(Refuse(), Operation.RECEIVE)
    await harness.syphon(queue_retry=Backoff(first=1.0, cap=1000.0, jitter=0.0))

    await trio.sleep(100.0)

    assert len(harness.secondary.times(Operation.RECEIVE)) == 7  # 0, 1, 3, 7, 15, 31, 63


async def test_a_drain_that_worked_for_a_while_begins_anew_with_short_pauses(harness):
    pauses = Backoff(first=1.0, cap=100.0, jitter=0.0)
    harness.secondary.fail(Refuse(), Operation.RECEIVE, times=4)
    await harness.syphon(queue_retry=pauses)
    await trio.sleep(200.0)
    before = len(harness.secondary.times(Operation.RECEIVE))
    harness.secondary.fail(Refuse(), Operation.RECEIVE)
    await harness.divert(message())
    broken = trio.current_time()

    await trio.sleep(10.0)

    later = [at - broken for at in harness.secondary.times(Operation.RECEIVE)[before:]]
    assert later == pytest.approx([0.0, 1.0, 3.0, 7.0])
