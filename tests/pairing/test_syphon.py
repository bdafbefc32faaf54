"""Which backlog queues a syphon finds, and how several get along."""

from datetime import timedelta

import pytest
import trio

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.errors import NotAuthorized, NotSupported, Unavailable
from gateway.domain.events import SyphonFailed, SyphonStalled
from gateway.testing.faults import Hang, Operation, Refuse
from tests.pairing.lab import (
    BILLS,
    LABEL,
    ORDERS,
    QUEUE,
    Slow,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

SEND, MANAGE = Operation.SEND, Operation.MANAGE
SELDOM = {
    "rescan": 1000.0,
    "stall_after": 1000.0,
    "queue_retry": Backoff(first=1.0, cap=1000.0, jitter=0.0),
}


async def make_queues(lab, *indices):
    queues = [backlog.queue_name(LABEL, index) for index in indices]
    for queue in queues:
        await lab.secondary.store.create_queue(queue, backlog.QUEUE_PROPERTIES)
    return queues


# Discovery


async def test_every_queue_of_the_label_is_drained_whatever_was_configured(lab):
    for queue in await make_queues(lab, 3, 57, 1000):
        await lab.divert(message(str(queue)), queue=queue)
    await lab.syphon()

    await trio.sleep(1.0)

    assert len(await lab.primary.ids()) == 3


async def test_more_queues_than_fit_on_a_page_are_found(lab):
    queues = await make_queues(lab, *range(1, 251))
    for queue in queues:
        await lab.divert(message(str(queue)), queue=queue)
    await lab.syphon()

    await trio.sleep(5.0)

    assert sorted(await lab.primary.ids()) == sorted(map(str, queues))


async def test_queues_of_another_label_are_left_alone(lab):
    other = backlog.queue_name("west", 0)
    await lab.secondary.store.create_queue(other, backlog.QUEUE_PROPERTIES)
    await lab.divert(message(), queue=other)
    await lab.syphon()

    await trio.sleep(100.0)

    assert await lab.secondary.ids(other) == ["m1"]


@pytest.mark.parametrize("error", [NotAuthorized, NotSupported])
async def test_without_the_right_to_list_indices_are_tried_until_ten_are_missing(lab, error):
    near, far, too_far = await make_queues(lab, 9, 19, 30)
    for queue in (QUEUE, near, far, too_far):
        await lab.divert(message(str(queue)), queue=queue)
    lab.secondary.fail(refuse(error, "no"), MANAGE)
    await lab.syphon()

    await trio.sleep(30.0)

    assert set(await lab.primary.ids()) == {str(QUEUE), str(near), str(far)}


async def test_a_look_without_the_right_to_list_ends_also_where_queues_hang(lab):
    lab.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    lab.secondary.fail(Hang(20.0), Operation.RECEIVE)
    await lab.divert(message())
    await lab.syphon(rescan=10.0)
    await trio.sleep(30.0)
    lab.secondary.heal()

    await trio.sleep(120.0)

    assert await lab.primary.ids() == ["m1"]


async def test_a_queue_that_is_made_later_is_found(lab):
    await lab.syphon(rescan=60.0)
    await trio.sleep(30.0)
    (queue,) = await make_queues(lab, 5)
    await lab.divert(message(), queue=queue)

    await trio.sleep(31.0)

    assert await lab.primary.ids() == ["m1"]


async def test_a_queue_that_is_deleted_and_made_again_is_drained_again(lab):
    await lab.syphon(rescan=60.0)
    await trio.sleep(10.0)
    await lab.secondary.store.delete_queue(QUEUE)
    await trio.sleep(60.0)
    await make_queues(lab, 0)
    await lab.divert(message())

    await trio.sleep(61.0)

    assert await lab.primary.ids() == ["m1"]


async def test_a_secondary_that_is_down_at_the_start_is_found_later(lab):
    await lab.divert(message())
    lab.secondary.fail(Refuse())
    await lab.syphon(rescan=10.0)
    await trio.sleep(30.0)
    told = len(lab.events.of(SyphonFailed))
    lab.secondary.heal()

    await trio.sleep(11.0)

    assert told >= 2
    assert await lab.primary.ids() == ["m1"]


async def test_a_secondary_that_was_down_for_a_moment_is_asked_again_soon(lab):
    await lab.divert(message())
    lab.secondary.fail(Refuse())
    await lab.syphon()  # which looks for new queues once a minute
    await trio.sleep(5.0)
    lab.secondary.heal()

    await trio.sleep(10.0)

    assert await lab.primary.ids() == ["m1"]


async def test_a_secondary_that_is_down_is_asked_later_and_later(lab):
    lab.secondary.fail(Refuse(), MANAGE)
    started = trio.current_time()
    await lab.syphon(**SELDOM)

    await trio.sleep(20.0)

    looks = [at - started for at in lab.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 1.0, 3.0, 7.0, 15.0])


async def test_a_secondary_that_has_come_back_is_asked_as_seldom_as_before(lab):
    lab.secondary.fail(Refuse(), MANAGE, times=2)
    started = trio.current_time()
    await lab.syphon(**SELDOM)

    await trio.sleep(1500.0)

    looks = [at - started for at in lab.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 1.0, 3.0, 1003.0])


async def test_a_secondary_that_is_down_again_is_asked_again_soon(lab):
    lab.secondary.fail(Refuse(), MANAGE, times=3)
    await lab.syphon(**SELDOM)
    await trio.sleep(500.0)
    lab.secondary.fail(Refuse(), MANAGE, times=1)

    await trio.sleep(1000.0)

    *_, failed, told = lab.secondary.times(MANAGE)
    assert told - failed == pytest.approx(1.0)


@pytest.mark.parametrize(("rescan", "stall_after"), [(10.0, 60.0), (60.0, 10.0)])
async def test_it_looks_as_often_as_the_more_urgent_reason_says(lab, rescan, stall_after):
    started = trio.current_time()
    await lab.syphon(rescan=rescan, stall_after=stall_after)

    await trio.sleep(25.0)

    looks = [at - started for at in lab.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 10.0, 20.0])


async def test_without_the_right_to_list_a_queue_that_cant_be_read_is_told_and_isnt_there(lab):
    lab.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    lab.secondary.fail(refuse(Unavailable, "out"), Operation.RECEIVE)
    syphon = lab.make_syphon()
    await lab.nursery.start(syphon.run)

    await trio.sleep(1.0)

    assert syphon._drains == {}
    assert lab.events.of(SyphonFailed) == [SyphonFailed(queue=QUEUE, reason="out")]


async def test_a_list_that_never_comes_is_given_up_after_half_a_minute(lab):
    lab.secondary.fail(Hang(), MANAGE)
    started = trio.current_time()
    await lab.syphon(**SELDOM)

    await trio.sleep(60.0)

    looks = [at - started for at in lab.secondary.times(MANAGE)]
    assert looks == pytest.approx([0.0, 31.0])  # and a pause of a second


async def test_without_the_right_to_list_an_empty_queue_is_looked_at_for_a_second(lab):
    first, second = lab.queues(2)
    await make_queues(lab, 1)
    lab.secondary.fail(refuse(NotAuthorized, "no"), MANAGE)
    started = trio.current_time()
    await lab.syphon()

    await trio.sleep(1.5)

    looks = {each.entity: each.at - started for each in lab.secondary.asked if each.at > started}
    assert looks == {second: 1.0}
    assert first in {each.entity for each in lab.secondary.asked}


async def test_without_the_right_to_list_a_queue_that_hangs_when_it_is_opened_isnt_there(lab):
    class HangsOpen:
        def open_receiver(self, *_):
            return self

        async def __aenter__(self):
            await trio.sleep_forever()

        async def __aexit__(self, *_):
            await trio.lowlevel.checkpoint()  # noqa: ASYNC102 it never gets here

    syphon = lab.make_syphon()
    syphon.source = HangsOpen()

    assert not await syphon._is_there(QUEUE)


async def test_each_drain_knows_the_depth_of_its_queue(lab):
    await make_queues(lab, 1)
    await lab.divert(message("1"), message("2"))
    lab.primary.fail(Refuse(), SEND)
    syphon = lab.make_syphon()
    await lab.nursery.start(syphon.run)

    await trio.sleep(1.0)

    assert {drain.queue: drain.depth for drain in syphon._drains.values()} == {
        QUEUE: 2,
        backlog.queue_name(LABEL, 1): 0,
    }


async def test_it_says_how_many_entities_rest(lab):
    for entity in (ORDERS, BILLS):
        await lab.divert(message(), entity=entity)
    lab.primary.fail(Refuse(), SEND, entity=BILLS)
    syphon = lab.make_syphon()
    await lab.nursery.start(syphon.run)

    await trio.sleep(0.5)

    assert syphon.held == 1


async def test_a_list_that_never_comes_doesnt_stop_what_is_drained(lab):
    await lab.syphon(rescan=10.0)
    await trio.sleep(1.0)
    lab.secondary.fail(Hang(), MANAGE)
    await trio.sleep(60.0)

    await lab.divert(message())
    await trio.sleep(1.0)

    assert await lab.primary.ids() == ["m1"]


# The watchdog


async def test_a_backlog_that_doesnt_move_is_told(lab):
    await lab.divert(message())
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(stall_after=60.0)

    await trio.sleep(59.0)
    before = lab.events.of(SyphonStalled)
    await trio.sleep(10.0)

    assert before == []
    assert lab.events.of(SyphonStalled) == [SyphonStalled(pending=1, seconds=60.0)]


async def test_the_time_without_a_backlog_is_no_stall(lab):
    await lab.syphon(stall_after=60.0)
    await trio.sleep(3599.5)
    await lab.divert(message())
    lab.primary.fail(Refuse(), SEND)
    began = trio.current_time()

    stalled = await lab.events.first(SyphonStalled)

    assert stalled.seconds == 60.0
    assert 60.0 <= trio.current_time() - began <= 120.0


async def test_what_comes_just_before_a_look_after_hours_without_a_backlog_has_its_time(lab):
    lab.primary.fail(Slow(1.0), SEND)
    await lab.syphon(rescan=60.0, stall_after=60.0)
    await trio.sleep(3 * 3600.0 - 0.5)

    await lab.divert(message())
    await trio.sleep(120.0)

    assert await lab.primary.ids() == ["m1"]
    assert lab.events.of(SyphonStalled) == []


async def test_what_comes_long_after_a_message_that_expired_has_its_time(lab):
    lab.primary.fail(Refuse(), SEND)
    await lab.divert(message("early", time_to_live=timedelta(seconds=20)))
    await lab.syphon(rescan=60.0, stall_after=60.0)
    await trio.sleep(3600.0 - 0.5)
    lab.primary.heal()
    lab.primary.fail(Slow(1.0), SEND)

    await lab.divert(message("late"))
    await trio.sleep(120.0)

    assert await lab.primary.ids() == ["late"]
    assert lab.events.of(SyphonStalled) == []


async def test_what_comes_after_an_hour_in_which_nobody_could_look_has_its_time(lab):
    lab.primary.fail(Slow(5.0), SEND)
    await lab.divert(message("early"))
    each_ten_seconds = Backoff(first=10.0, cap=10.0, jitter=0.0)
    await lab.syphon(rescan=60.0, stall_after=60.0, queue_retry=each_ten_seconds)
    await trio.sleep(30.0)
    lab.secondary.fail(Refuse(), MANAGE)
    await trio.sleep(3600.0 - 1.0)
    lab.secondary.heal()

    await lab.divert(message("late"))
    await trio.sleep(120.0)

    assert await lab.primary.ids() == ["early", "late"]
    assert lab.events.of(SyphonStalled) == []


@pytest.mark.parametrize("batch", [1, 20])
async def test_a_backlog_that_moves_slowly_isnt_stalled(lab, batch):
    for number in range(30):
        await lab.divert(message(f"{number}"))
    await lab.syphon(stall_after=60.0, batch=batch, max_drain_rate=0.1)

    await trio.sleep(250.0)

    assert lab.events.of(SyphonStalled) == []


async def test_an_empty_backlog_isnt_stalled(lab):
    await lab.syphon(stall_after=60.0)

    await trio.sleep(3600.0)

    assert lab.events.of(SyphonStalled) == []


async def test_a_look_that_fails_doesnt_put_the_alarm_off(lab):
    await lab.divert(message())
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(stall_after=60.0, rescan=10.0)
    await trio.sleep(35.0)
    lab.secondary.fail(Refuse(), MANAGE, times=2)

    await trio.sleep(36.0)

    assert len(lab.events.of(SyphonStalled)) >= 1


# Several


async def test_two_syphons_compete_without_loss_or_duplicates(lab):
    for number in range(300):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(0.5), SEND)
    for _ in range(2):
        await lab.syphon(batch=20)

    await trio.sleep(60.0)

    ids = await lab.primary.ids()
    assert len(ids) == 300
    assert len(set(ids)) == 300
    assert await lab.secondary.ids(QUEUE) == []


async def test_one_of_two_syphons_takes_over_when_the_other_ends(lab):
    for number in range(50):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(1.0), SEND)
    first = await lab.syphon(batch=10)
    await lab.syphon(batch=10)
    await trio.sleep(1.5)

    first.cancel()
    await trio.sleep(200.0)

    assert set(await lab.primary.ids()) == {f"{number}" for number in range(50)}
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_spool_is_drained_by_the_same_syphon(lab):
    pair = await lab.pair(spool=True)
    for namespace in (lab.primary, lab.secondary):
        namespace.fail(Refuse(), SEND)
    await pair.broker.send(ORDERS, [message()])
    for namespace in (lab.primary, lab.secondary):
        namespace.heal()
    await lab.syphon(source=lab.spool)

    await trio.sleep(5.0)

    assert await lab.primary.ids() == ["m1"]
    assert await lab.spool.ids(QUEUE) == []


async def test_a_syphon_rests_after_failures_with_growing_pauses(lab):
    lab.secondary.fail(Refuse(), Operation.RECEIVE)
    await lab.syphon(queue_retry=Backoff(first=1.0, cap=1000.0, jitter=0.0))

    await trio.sleep(100.0)

    assert len(lab.secondary.times(Operation.RECEIVE)) == 7  # 0, 1, 3, 7, 15, 31, 63


async def test_a_drain_that_worked_for_a_while_begins_anew_with_short_pauses(lab):
    pauses = Backoff(first=1.0, cap=100.0, jitter=0.0)
    lab.secondary.fail(Refuse(), Operation.RECEIVE, times=4)
    await lab.syphon(queue_retry=pauses)
    await trio.sleep(200.0)
    before = len(lab.secondary.times(Operation.RECEIVE))
    lab.secondary.fail(Refuse(), Operation.RECEIVE)
    await lab.divert(message())
    broken = trio.current_time()

    await trio.sleep(10.0)

    later = [at - broken for at in lab.secondary.times(Operation.RECEIVE)[before:]]
    assert later == pytest.approx([0.0, 1.0, 3.0, 7.0])
