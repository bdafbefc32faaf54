import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.events import BacklogOrphaned
from gateway.domain.failover import State
from gateway.testing.faults import Hang, Operation, Refuse
from tests.pairing.lab import BILLS, QUEUE, message, reaches, send, virtual_time

pytestmark = virtual_time


async def diverted_and_back(lab, **options):
    pair = await lab.pair(failover_interval=0.0, **options)
    lab.primary.fail(Refuse(), Operation.SEND, times=1)
    await send(pair)()
    await reaches(pair.standings, State.PRIMARY)
    return pair


async def test_a_backlog_that_nobody_moves_is_told_five_minutes_after_the_return(lab):
    await diverted_and_back(lab)

    await trio.sleep(299.0)
    before = lab.events.of(BacklogOrphaned)
    await trio.sleep(2.0)

    assert before == []
    assert lab.events.of(BacklogOrphaned) == [BacklogOrphaned(pending=1, seconds=300.0)]


async def test_it_is_told_again_for_as_long_as_it_is_there(lab):
    await diverted_and_back(lab)
    await trio.sleep(700.0)
    told = len(lab.events.of(BacklogOrphaned))

    await lab.secondary.empty(QUEUE)
    await trio.sleep(3600.0)

    assert told == 2
    assert len(lab.events.of(BacklogOrphaned)) == 2


async def test_a_backlog_that_is_moved_is_no_orphan(lab):
    await diverted_and_back(lab)
    await lab.syphon()

    await trio.sleep(3600.0)

    assert lab.events.of(BacklogOrphaned) == []


async def test_sends_that_were_diverted_while_suspect_leave_a_backlog_too(lab):
    pair = await lab.pair(failover_interval=60.0)
    lab.primary.fail(Refuse(), Operation.SEND, times=1)
    await send(pair)()
    await trio.sleep(1.0)
    await send(pair, message("m2"))()
    assert pair.standings.troubled() == []

    await trio.sleep(301.0)

    assert len(lab.events.of(BacklogOrphaned)) == 1


async def test_nothing_is_said_during_the_outage(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Refuse())
    await send(pair)()

    await trio.sleep(3600.0)

    assert lab.events.of(BacklogOrphaned) == []


async def test_short_trouble_elsewhere_doesnt_silence_it(lab):
    pair = await diverted_and_back(lab)
    await trio.sleep(100.0)
    # Two changes at once: suspect, and well again.
    failed = pair.standings.begin(BILLS)
    pair.standings.force_over(EntityPath("other"))
    pair.standings.force_back(EntityPath("other"))
    pair.standings.sent(failed)

    await trio.sleep(310.0)

    assert len(lab.events.of(BacklogOrphaned)) == 1


async def test_a_secondary_that_doesnt_tell_is_no_alarm(lab):
    await diverted_and_back(lab)
    lab.secondary.fail(Refuse(), Operation.MANAGE)

    await trio.sleep(3600.0)

    assert lab.events.of(BacklogOrphaned) == []
    assert await lab.secondary.ids(QUEUE) == ["m1"]


async def test_a_queue_that_doesnt_tell_in_time_is_left_out(lab):
    first, second = lab.queues(2)
    await lab.secondary.store.create_queue(second, backlog.QUEUE_PROPERTIES)
    await diverted_and_back(lab, queues=2)
    await lab.divert(message(), queue=first)
    lab.secondary.fail(Hang(), Operation.MANAGE, entity=second)

    await trio.sleep(300.0 + 29.5)
    before = lab.events.of(BacklogOrphaned)
    await trio.sleep(1.0)

    assert before == []
    assert len(lab.events.of(BacklogOrphaned)) == 1


async def test_who_diverted_nothing_says_nothing_of_anothers_backlog(lab):
    await lab.divert(message())
    pair = await lab.pair()
    pair.standings.changes.note()

    await trio.sleep(3600.0)

    assert lab.events.of(BacklogOrphaned) == []


async def test_what_is_moved_is_looked_for_once(lab):
    await diverted_and_back(lab)
    await lab.secondary.empty(QUEUE)
    await trio.sleep(301.0)
    looks = len(lab.secondary.times(Operation.MANAGE))

    await trio.sleep(3600.0)

    assert len(lab.secondary.times(Operation.MANAGE)) == looks
