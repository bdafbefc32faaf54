"""A syphon takes some backlog messages, dead-letters others, and leaves the rest alone."""

import math
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.copies import CopyEvent, CopyState
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.envelope_fields import ATTEMPT, MAC, OURS, PATH, SCHEDULED, SESSION, VERSION
from gateway.domain.errors import EntityDisabled, EntityNotFound, Unavailable
from gateway.domain.events.gateway import (
    DeadLettered,
    LeftUntouched,
    SyphonBackedOff,
    Syphoned,
    SyphonFailed,
)
from gateway.domain.failover import State
from gateway.domain.message import DEAD_LETTER_REASON, Message
from gateway.domain.operators.control import Override
from gateway.pairing.syphon import drain as module
from gateway.pairing.syphon.backlog_message import BacklogMessage, BacklogQueueInfo
from gateway.pairing.syphon.batch_window import MAX_BATCHES, BatchWindow, ReceivedBatch
from gateway.pairing.syphon.pauses import Pauses
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyReceiver, Hang, Operation, Refuse, busy
from tests.pairing.harness import (
    BILLS,
    KEY,
    ORDERS,
    QUEUE,
    Slow,
    envelope,
    message,
    reaches,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

SEND, RECEIVE, SETTLE = Operation.SEND, Operation.RECEIVE, Operation.SETTLE
START = datetime(2027, 1, 1, tzinfo=UTC)
OTHER_KEY = EnvelopeKey(id="2", key=b"another key")


async def put(harness, wrapped):
    await harness.secondary.store.send(QUEUE, [wrapped])


def wrap(harness, sent=None, **changes):
    made = envelope(**changes)
    return made.wrap(sent or message(), ORDERS, attempt=harness.new_id(), now=harness.clock())


def legacy(harness, **properties):
    """Return a message as the legacy client writes it, with additional properties."""
    kept = {k: v for k, v in wrap(harness).properties.items() if k not in OURS}
    return message(properties={**kept, **properties})


def without(wrapped, name):
    kept = {k: v for k, v in wrapped.properties.items() if k != name}
    return attrs.evolve(wrapped, properties=kept)


# Not ours


@pytest.mark.parametrize("what", ["unknown key", "another pair", "legacy", "unknown version"])
async def test_a_message_that_isnt_ours_stays_untouched_and_is_told(harness, what):
    messages = {
        "unknown key": wrap(harness, keys=(OTHER_KEY,)),
        "another pair": wrap(harness, pair="west"),
        "legacy": legacy(harness),
        "unknown version": attrs.evolve(
            wrap(harness), properties={**wrap(harness).properties, VERSION: "2"}
        ),
    }
    await put(harness, messages[what])
    await harness.syphon()

    await trio.sleep(30.0)

    assert await harness.secondary.messages(QUEUE) == [messages[what]]
    assert await harness.secondary.ids(QUEUE.dead_letter) == []
    assert harness.secondary.times(SETTLE) == []
    assert harness.primary.sends() == 0
    assert [(e.queue, e.messages) for e in harness.events.of(LeftUntouched)] == [(QUEUE, 1)]


async def test_a_message_that_isnt_ours_doesnt_stop_one_that_is(harness):
    await put(harness, wrap(harness, pair="west"))
    await put(harness, wrap(harness, message("ours")))
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["ours"]


async def test_a_message_that_isnt_ours_is_there_for_its_owner(harness):
    await put(harness, wrap(harness, keys=(OTHER_KEY,)))
    await harness.syphon()
    await trio.sleep(10.0)

    await harness.syphon(envelope=envelope(keys=(KEY, OTHER_KEY)))
    await trio.sleep(200.0)  # when its lock has run out

    assert await harness.primary.ids() == ["m1"]


async def test_the_legacy_clients_messages_are_moved_where_that_is_wanted(harness):
    await put(harness, legacy(harness, **{SESSION: "s1", "own": 1}))
    await harness.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    moved = (await harness.primary.messages())[0]
    assert (moved.session_id, moved.properties) == ("s1", {"own": 1})


# Malformed


async def test_a_wrong_mac_is_suspended_for_the_grace_and_then_dead_lettered(harness):
    await put(harness, attrs.evolve(wrap(harness), body=b"changed"))
    await put(harness, wrap(harness, message("good")))
    await harness.syphon(gone_grace=600.0)

    await trio.sleep(590.0)
    before = await harness.secondary.messages(QUEUE.dead_letter)
    looks = len(harness.events.of(LeftUntouched))
    await trio.sleep(100.0)

    assert before == []
    assert 5 <= looks <= 20  # told again and again, once in a lock
    assert await harness.primary.ids() == ["good"]
    dead = await harness.secondary.messages(QUEUE.dead_letter)
    assert [each.properties[DEAD_LETTER_REASON] for each in dead] == ["EnvelopeMalformed"]
    assert harness.primary.sends() == 1
    assert len(harness.events.of(DeadLettered)) == 1


async def test_a_syphon_with_the_right_secret_moves_what_another_holds(harness):
    other = EnvelopeKey(id=KEY.id, key=b"another secret of that id")
    await put(harness, wrap(harness, keys=(other,)))
    await harness.syphon()
    await trio.sleep(10.0)

    await harness.syphon(envelope=envelope(keys=(KEY, other)))
    await trio.sleep(200.0)

    assert await harness.primary.ids() == ["m1"]
    assert harness.events.of(DeadLettered) == []


async def test_a_syphon_moves_what_is_encrypted_under_either_key_and_what_is_not(harness):
    """A rotation while a backlog is under way: first the old key, then both."""
    new = EnvelopeKey(id="2", key=b"the next key")
    steps = [(KEY, False), (KEY, True), (new, True)]
    for number, (key, encrypts) in enumerate(steps):
        sent = message(f"m{number}")
        await put(harness, wrap(harness, sent, keys=(key,), encrypts=encrypts))
    scope = await harness.syphon()
    await trio.sleep(10.0)
    before = await harness.primary.ids()
    scope.cancel()

    await harness.syphon(envelope=envelope(keys=(new, KEY)))
    await trio.sleep(60.0)

    assert before == ["m0", "m1"]
    assert sorted(await harness.primary.ids()) == ["m0", "m1", "m2"]
    assert harness.events.of(DeadLettered) == []


async def test_a_dead_letter_that_was_encrypted_is_reported_with_its_own_id(harness):
    sent = message(time_to_live=timedelta(seconds=1))
    await put(harness, wrap(harness, sent, encrypts=True))
    await trio.sleep(60.0)

    await harness.syphon()
    await trio.sleep(1.0)

    (event,) = harness.events.of(DeadLettered)
    assert event.message_id == "m1"


async def test_a_date_beyond_any_date_stops_no_syphon(harness):
    made = wrap(harness, message("bad"))
    date = f"Sat, 21 Nov {10**20} 12:00:00 GMT"
    await put(harness, attrs.evolve(made, properties={**made.properties, SCHEDULED: date}))
    await put(harness, wrap(harness, message("good")))
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.secondary.ids(QUEUE.dead_letter) == ["bad"]
    assert await harness.primary.ids() == ["good"]


@pytest.mark.parametrize("name", [MAC, ATTEMPT])
async def test_an_envelope_that_misses_a_part_is_dead_lettered(harness, name):
    await put(harness, without(wrap(harness), name))
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.secondary.ids(QUEUE.dead_letter) == ["m1"]


@pytest.mark.parametrize("path", ["", "a//b", "../up", 7])
async def test_a_path_that_names_no_entity_is_dead_lettered(harness, path):
    await put(harness, legacy(harness, **{PATH: path}))
    await harness.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert await harness.secondary.ids(QUEUE.dead_letter) == ["m1"]


async def test_many_settlements_that_hang_cost_one_time_out(harness):
    for number in range(20):
        await put(harness, without(wrap(harness, message(f"bad{number}")), MAC))
    await put(harness, wrap(harness, message("good")))
    harness.secondary.fail(Hang(), SETTLE, times=20)
    await harness.syphon(attempt_timeout=5.0)

    await trio.sleep(6.0)

    assert await harness.primary.ids() == ["good"]


# The failover's states


async def test_a_failed_over_entity_isnt_sent_to_until_it_is_back(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=1)
    harness.primary.fail(Refuse(), SEND)
    harness.primary.fail(Refuse(), Operation.PROBE)
    await pair.broker.send(ORDERS, [message()])
    await harness.syphon(states=pair.states)
    await trio.sleep(100.0)
    before = harness.primary.sends()
    harness.primary.heal()

    await reaches(pair.states, State.PRIMARY)
    await trio.sleep(1.0)  # given back at once: it needn't wait for its lock

    assert before == 1
    assert await harness.primary.ids() == ["m1"]


async def test_a_pinned_entitys_backlog_stays(harness):
    pair = await harness.pair()
    pair.states.force_over(ORDERS)
    await pair.broker.send(ORDERS, [message()])
    await harness.syphon(states=pair.states)

    await trio.sleep(600.0)
    before = await harness.primary.ids()
    pair.states.force_back(ORDERS)
    await trio.sleep(70.0)

    assert before == []
    assert await harness.primary.ids() == ["m1"]


async def test_a_backlog_message_may_be_the_trial_of_a_half_open_entity(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=2, ping_interval=1800.0)
    harness.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message("0")])
    await trio.sleep(0.1)
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN
    harness.primary.fail(Refuse(), Operation.PROBE)

    await harness.syphon(states=pair.states)
    await trio.sleep(0.5)

    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert await harness.primary.ids() == ["0"]


async def test_a_trial_is_one_message_however_many_there_are(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9, ping_interval=1800.0)
    harness.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message("0")])
    await trio.sleep(0.1)
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN
    for number in range(1, 5):
        await harness.divert(message(f"{number}"))

    await harness.syphon(states=pair.states)
    await trio.sleep(0.1)

    sizes = [len(call.messages) for call in harness.primary.calls if call.operation is SEND]
    assert sizes == [1] * 6  # the first one failed
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN


async def test_a_suspect_entity_gets_one_message_at_once_until_it_takes_one(harness):
    pair = await harness.pair(failover_interval=60.0)
    harness.primary.fail(Refuse(), SEND, times=1)
    for number in range(20):
        await harness.divert(message(f"{number}"))
    await pair.broker.send(ORDERS, [message("20")])
    assert pair.states.state_of(ORDERS) is State.SUSPECT

    await harness.syphon(states=pair.states)
    await trio.sleep(10.0)

    sizes = [len(call.messages) for call in harness.primary.calls if call.operation is SEND]
    assert sizes[1] == 1
    assert len(sizes) < 21
    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert len(await harness.primary.ids()) == 21


async def test_after_an_outage_it_begins_gently(harness):
    pair = await harness.pair()
    pair.states.force_over(ORDERS)
    for number in range(20):
        await harness.divert(message(f"{number}"))
    await harness.syphon(states=pair.states)
    await trio.sleep(10.0)

    pair.states.force_back(ORDERS)
    await trio.sleep(100.0)

    sizes = [len(call.messages) for call in harness.primary.calls if call.operation is SEND]
    assert sizes[:3] == [1, 2, 4]
    assert sum(sizes) == 20


async def test_a_trial_that_is_cut_off_lets_the_next_one_try(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9)
    harness.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message()])
    await trio.sleep(0.1)
    harness.primary.fail(Hang(), SEND)
    syphon = await harness.syphon(states=pair.states)
    await trio.sleep(0.5)
    assert pair.states.begin_trial(ORDERS) is None

    syphon.cancel()
    await trio.sleep(0.1)

    assert pair.states.begin_trial(ORDERS) is not None


async def test_a_busy_answer_to_a_trial_is_respected(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=99)
    harness.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message()])
    await trio.sleep(0.1)
    harness.primary.fail(busy(30.0), SEND)
    await harness.syphon(states=pair.states)
    await trio.sleep(1.0)
    asked = harness.primary.sends()

    await harness.divert(message("more"))
    await trio.sleep(10.0)

    assert harness.primary.sends() == asked


# The queue itself


async def test_a_queue_that_cant_be_read_is_tried_again_later_and_later(harness):
    await harness.divert(message())
    harness.secondary.fail(Refuse(), RECEIVE)
    await harness.syphon(queue_retry=Backoff(first=1.0, cap=8.0, jitter=0.0))
    await trio.sleep(60.0)
    failures = len(harness.events.of(SyphonFailed))
    harness.secondary.heal()

    await trio.sleep(10.0)

    assert 8 <= failures <= 12
    assert await harness.primary.ids() == ["m1"]


async def test_a_connection_that_breaks_gives_back_what_was_claimed(harness):
    await harness.divert(message("1"))
    harness.primary.fail(Hang(), SEND, times=1)
    await harness.syphon(attempt_timeout=10.0)
    await trio.sleep(5.0)
    harness.secondary.fail(Refuse(), RECEIVE, times=1)  # met when the next batch is awaited

    await trio.sleep(30.0)

    assert await harness.primary.ids() == ["1"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_queue_that_hangs_when_it_is_opened_is_given_up(harness):
    class HangsOpen:
        def __init__(self):
            self.opened = 0

        def open_receiver(self, *_):
            self.opened += 1
            return self

        async def __aenter__(self):
            await trio.sleep_forever()

        async def __aexit__(self, *_):
            await trio.lowlevel.checkpoint()  # noqa: ASYNC102 it never gets here

    source = HangsOpen()
    drain = harness.make_drain()
    drain.at.source = source

    error = await drain.run()

    assert isinstance(error, Unavailable)
    assert source.opened == 1


async def test_a_drain_ends_with_the_error_of_a_queue_that_cant_be_read(harness):
    drain = harness.make_drain()
    harness.secondary.fail(refuse(EntityDisabled, "closed for today"), RECEIVE)

    error = await drain.run()

    assert isinstance(error, EntityDisabled)


async def test_a_drain_ends_with_the_error_of_a_queue_that_cant_be_opened(harness):
    await harness.secondary.store.delete_queue(QUEUE)

    error = await harness.make_drain().run()

    assert isinstance(error, EntityNotFound)


@pytest.mark.parametrize(("seconds", "error"), [(5.0, EntityDisabled), (math.inf, Unavailable)])
async def test_a_queue_that_takes_its_time_to_be_left_is_left_or_given_up(harness, seconds, error):
    class SlowToLeave:
        def open_receiver(self, *_):
            return self

        async def receive(self, *_):
            await trio.lowlevel.checkpoint()
            raise EntityDisabled("closed for today")

        async def __aenter__(self):
            await trio.lowlevel.checkpoint()
            return self

        async def __aexit__(self, *_):
            await trio.sleep(seconds)  # noqa: ASYNC102 the planted mistake

    drain = harness.make_drain()
    drain.at.source = SlowToLeave()

    assert isinstance(await drain.run(), error)


async def test_a_broken_queue_doesnt_wait_for_those_that_rest(harness):
    await harness.divert(message("1"))
    harness.primary.fail(Refuse(), SEND, entity=ORDERS)
    await harness.syphon(retry=Backoff(first=1000.0, cap=1000.0, jitter=0.0), batch=1)
    await trio.sleep(5.0)
    harness.secondary.fail(Refuse(), RECEIVE, times=1)
    await harness.divert(message("2"), entity=BILLS)

    await trio.sleep(30.0)
    await harness.divert(message("3"), entity=BILLS)
    await trio.sleep(30.0)

    assert await harness.primary.ids(BILLS) == ["2", "3"]


async def test_a_message_suspended_after_a_break_is_given_back_as_before_it(harness):
    await harness.divert(message("1"))
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(
        retry=Backoff(first=20.0, cap=20.0, jitter=0.0),
        queue_retry=Backoff(first=1.0, cap=1.0, jitter=0.0),
    )
    await trio.sleep(5.0)
    harness.secondary.fail(Refuse(), RECEIVE, times=1)
    await harness.divert(message("2"))
    await trio.sleep(5.0)
    harness.primary.heal()

    await trio.sleep(20.0)  # less than a lock

    assert sorted(await harness.primary.ids()) == ["1", "2"]


async def test_a_message_without_an_attempt_of_its_own_is_told_by_its_id(harness):
    drain = harness.make_drain(envelope=envelope(accept_legacy=True))
    await put(harness, wrap(harness))
    await put(harness, legacy(harness))
    ours, theirs = await harness.secondary.deliveries(QUEUE)

    first, second = opened(drain, ours), opened(drain, theirs)

    attempt = first.unwrapped.attempt
    assert [first.copy, second.copy] == [
        (QUEUE.key, ours.sequence_number, attempt),
        (QUEUE.key, theirs.sequence_number, "m1"),
    ]


async def test_a_completion_that_fails_lets_no_other_message_pass_for_moved(harness):
    await harness.divert(message("1"))
    harness.secondary.fail(Refuse(), SETTLE, times=1)
    await harness.syphon()
    await trio.sleep(1.0)

    await harness.divert(message("2"))
    await trio.sleep(100.0)

    assert await harness.primary.ids() == ["1", "2"]


async def test_a_legacy_messages_life_begins_at_its_date(harness):
    diverted = wrap(
        harness, message(scheduled=harness.after(100.0), time_to_live=timedelta(seconds=50))
    )
    kept = {k: v for k, v in diverted.properties.items() if k not in OURS}
    await put(harness, message(properties=kept))
    await trio.sleep(60.0)
    await harness.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert [each.time_to_live for each in await harness.primary.messages()] == [
        timedelta(seconds=50)
    ]


async def test_a_legacy_message_of_unknown_age_keeps_its_time_to_live(harness):
    drain = harness.make_drain(envelope=envelope(accept_legacy=True))
    kept = {
        k: v
        for k, v in wrap(harness, message(time_to_live=timedelta(seconds=50))).properties.items()
        if k not in OURS
    }
    await put(harness, message(properties=kept))
    [delivery] = await harness.secondary.deliveries(QUEUE)

    unwrapped = opened(drain, attrs.evolve(delivery, enqueued=None)).unwrapped

    assert (unwrapped.time_to_live, unwrapped.expires) == (timedelta(seconds=50), None)


async def test_a_dead_lettered_message_makes_no_pause(harness):
    for number in range(5):
        await put(harness, without(wrap(harness, message(f"{number}")), MAC))
    await put(harness, wrap(harness, message("good")))
    await harness.syphon(batch=1)

    await trio.sleep(module.SCAN_PAUSE / 2)

    assert await harness.primary.ids() == ["good"]


async def test_a_queue_that_may_not_be_read_waits_until_it_may(harness):
    await harness.secondary.store.delete_queue(QUEUE)
    closed = attrs.evolve(backlog.QUEUE_PROPERTIES, status=EntityStatus.RECEIVE_DISABLED)
    await harness.secondary.store.create_queue(QUEUE, closed)
    await harness.syphon()

    await trio.sleep(10.0)

    assert len(harness.events.of(SyphonFailed)) >= 2


async def test_handles_of_suspended_messages_are_bounded(harness):
    for number in range(10):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0), max_suspended=3)

    await trio.sleep(6.0)
    soon = len(await harness.primary.ids())
    await trio.sleep(120.0)

    assert soon == 3  # the others come back with their locks
    assert len(await harness.primary.ids()) == 10


LONG = Backoff(first=1000.0, cap=1000.0, jitter=0.0)


@pytest.fixture
async def suspended(harness):
    """A drain with two suspended entities, and its receiver; it keeps three handles."""
    drain = harness.make_drain(max_suspended=3)
    for entity in (ORDERS, BILLS):
        drain.at.backoffs.back_off(entity, LONG, "out")
    async with harness.secondary.broker.open_receiver(QUEUE) as receiver:
        yield drain, receiver


async def receive(harness, drain, receiver, entity, count):
    await harness.divert(*(message(f"{number}") for number in range(count)), entity=entity)
    return [opened(drain, delivery) for delivery in await receiver.receive(count)]


def opened(drain, delivery):
    return BacklogMessage.of(drain.at.queue, delivery, drain.at.open(delivery), trio.current_time())


def suspend(harness, drain, receiver, messages, nursery):
    """Suspend the messages of one entity, as after a failed move."""
    entity = messages[0].unwrapped.entity
    drain._suspend(entity, messages, harness.make_mover(drain, receiver), nursery)


def kept(drain, entity=ORDERS):
    """The handles of that entity's messages; a test may change the list."""
    return drain._suspended.get(entity.key, [])


def handles(drain):
    return [len(kept(drain, entity)) for entity in (ORDERS, BILLS)]


async def test_handles_of_all_entities_share_the_bound(harness, suspended):
    drain, receiver = suspended
    async with trio.open_nursery() as nursery:
        for entity in (ORDERS, BILLS):
            backlog_messages = await receive(harness, drain, receiver, entity, 2)
            suspend(harness, drain, receiver, backlog_messages, nursery)
        nursery.cancel_scope.cancel()

    assert handles(drain) == [2, 1]


async def test_a_handle_whose_lock_is_over_makes_room(harness, suspended):
    drain, receiver = suspended
    async with trio.open_nursery() as nursery:
        orders = await receive(harness, drain, receiver, ORDERS, 3)
        suspend(harness, drain, receiver, orders, nursery)
        bills = await receive(harness, drain, receiver, BILLS, 2)
        suspend(harness, drain, receiver, bills, nursery)
        before = handles(drain)
        ended = trio.current_time()
        kept(drain)[:2] = [attrs.evolve(each, until=ended) for each in kept(drain)[:2]]
        suspend(harness, drain, receiver, bills, nursery)
        nursery.cancel_scope.cancel()

    assert before == [3, 0]
    assert handles(drain) == [1, 2]


@pytest.mark.parametrize(
    ("depth", "limit", "seconds"),
    [(None, 10, 0.6), (0, 10, 5.0), (15, 2, 2.0), (100, 10, 1.5), (1000, 10, 0.6)],
)
async def test_a_queue_is_looked_through_in_a_quarter_of_a_lock(depth, limit, seconds):
    info = BacklogQueueInfo(depth=depth, lock_duration=timedelta(seconds=60))

    assert module.scan_pause(info, suspended=0, limit=limit, stuck=100) == seconds


async def test_the_first_looks_at_a_queue_are_quick():
    info = BacklogQueueInfo(depth=0, lock_duration=timedelta(seconds=15))

    pauses = [module.scan_pause(info, suspended=0, limit=10, stuck=stuck) for stuck in range(1, 6)]

    assert pauses == [0.6, 1.2, 2.4, 3.75, 3.75]


async def test_a_suspended_message_is_counted_where_the_depth_was_told_before():
    info = BacklogQueueInfo(depth=1, lock_duration=timedelta(seconds=15))

    assert module.scan_pause(info, suspended=3, limit=1, stuck=100) == 1.25


async def test_a_handle_is_believed_as_long_as_a_lock_of_its_queue_holds(harness, suspended):
    drain, receiver = suspended
    drain.at.update(BacklogQueueInfo(lock_duration=timedelta(seconds=15)))
    async with trio.open_nursery() as nursery:
        backlog_messages = await receive(harness, drain, receiver, ORDERS, 1)
        backlog_messages[0].delivery = attrs.evolve(
            backlog_messages[0].delivery, locked_until=harness.after(-7200.0)
        )
        suspend(harness, drain, receiver, backlog_messages, nursery)
        nursery.cancel_scope.cancel()

    [one] = kept(drain)
    assert one.until == trio.current_time() + 15.0


async def test_a_handle_keeps_no_message(harness, suspended):
    drain, receiver = suspended
    async with trio.open_nursery() as nursery:
        backlog_messages = await receive(harness, drain, receiver, ORDERS, 1)
        suspend(harness, drain, receiver, backlog_messages, nursery)
        nursery.cancel_scope.cancel()

    [one] = kept(drain)
    assert one.handle == attrs.evolve(backlog_messages[0].delivery, message=Message())


async def test_a_dead_letter_and_a_message_that_the_primary_has_count_as_moved(harness, suspended):
    drain, receiver = suspended
    broken = [without(wrap(harness, message(f"{n}")), MAC) for n in range(2)]
    known = [wrap(harness, message(f"known {n}")) for n in range(3)]
    await harness.secondary.store.send(QUEUE, [*broken, *known, wrap(harness, message("new"))])
    deliveries = await receiver.receive(6)
    for delivery in deliveries[2:5]:
        copy = opened(drain, delivery).copy
        for event in (CopyEvent.DELIVERED, CopyEvent.HANDED_OVER, CopyEvent.ACCEPTED):
            drain.at.copies.advance(event, (copy,))
    batch = ReceivedBatch(deliveries=6, weight=0, began=trio.current_time())

    groups = await drain._open_all(deliveries, batch, harness.make_mover(drain, receiver))

    assert [[one.unwrapped.message.message_id for one in group] for group in groups] == [["new"]]
    assert batch.moved == 5
    assert len(await harness.secondary.ids(QUEUE)) == 1


async def test_a_receiver_that_keeps_messages_forgets_those_that_only_stay_locked(harness):
    forgotten = []

    class Keeping(FaultyReceiver):
        def forget_message(self, delivery):
            forgotten.append(delivery.message.message_id)

    harness.secondary.broker.receiver = Keeping
    await harness.divert(message("1"), message("2"))
    await harness.divert(message("not ours"), envelope=envelope(pair="west"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    await trio.sleep(1.0)
    at_rest = sorted(forgotten)
    await trio.sleep(10.0)

    assert at_rest == ["1", "2", "not ours"]
    assert sorted(await harness.primary.ids()) == ["1", "2"]


async def test_suspended_messages_are_looked_through_with_pauses(harness):
    for number in range(20):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Refuse(), SEND)
    started = trio.current_time()
    await harness.syphon(batch=1, retry=LONG)

    await trio.sleep(4.0)

    looks = sorted({at - started for at in harness.secondary.times(RECEIVE)})
    assert looks == pytest.approx([0.0, 0.6, 1.35, 2.1, 2.85, 3.6])


async def test_a_pause_ends_when_messages_are_given_back(harness):
    for number in range(6):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(batch=1, retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    # The drain has looked at 0, 0.6, 1.8 and 4.2 s, and would pause until 6.7 s.
    await trio.sleep(5.1)

    assert "0" in await harness.primary.ids()


async def test_after_messages_were_given_back_there_are_pauses_again(harness):
    for number in range(20):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(batch=1, retry=Backoff(first=2.0, cap=2.0, jitter=0.0))

    await trio.sleep(3.9)

    looks = [call for call in harness.secondary.calls if call.operation is RECEIVE]
    assert 3.9 / 0.75 < len(looks) <= 3.9 / 0.75 + 2  # after each pause, and when the backoff ends


@pytest.mark.parametrize(("seconds", "moved"), [(15.5, []), (15.7, ["b"])])
async def test_a_batch_that_hangs_is_waited_for_one_and_a_half_attempt_time_outs_and_a_look(
    harness, seconds, moved
):
    await harness.divert(message("o"))
    harness.primary.fail(Hang(), SEND, entity=ORDERS)
    await harness.syphon(attempt_timeout=10.0)
    await trio.sleep(1.0)
    await harness.divert(message("b"), entity=BILLS)

    await trio.sleep(seconds - 1.0)

    assert await harness.primary.ids(BILLS) == moved


async def test_one_message_tries_an_entity_and_the_others_rest_until_it_is_taken(harness):
    await harness.divert(message("1"), message("2"), message("3"))
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(retry=Backoff(first=2.0, cap=2.0, jitter=0.0))

    await trio.sleep(5.0)
    assert [len(call.messages) for call in harness.primary.calls if call.operation is SEND] == [
        3,
        1,
        1,
    ]
    assert len(harness.secondary.times(SETTLE)) == 2

    harness.primary.heal()
    await trio.sleep(2.0)
    assert await harness.primary.ids() == ["1", "2", "3"]


@pytest.mark.parametrize(("seconds", "back"), [(14.9, 1), (15.1, 3)])
async def test_the_others_come_back_too_where_nothing_is_heard_of_the_first(
    seconds, back, harness, suspended
):
    drain, receiver = suspended
    async with trio.open_nursery() as nursery:
        backlog_messages = await receive(harness, drain, receiver, ORDERS, 3)
        drain.at.backoffs.back_off(ORDERS, LONG, "out")
        suspend(harness, drain, receiver, backlog_messages, nursery)
        drain.at.backoffs._backoffs[ORDERS.key].until = trio.current_time()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()

    assert len(harness.secondary.times(SETTLE)) == back


async def test_a_delivery_that_cant_be_given_back_keeps_no_other_from_it(harness):
    await harness.divert(message("1"), message("2"), message("3"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))
    await trio.sleep(1.0)
    harness.secondary.fail(Refuse(), SETTLE, times=1)

    await trio.sleep(5.0)
    soon = await harness.primary.ids()
    await trio.sleep(60.0)

    assert len(soon) == 2
    assert sorted(await harness.primary.ids()) == ["1", "2", "3"]


async def test_a_message_that_isnt_locked_any_more_keeps_no_other_from_being_given_back(
    harness, suspended
):
    drain, receiver = suspended
    async with trio.open_nursery() as nursery:
        backlog_messages = await receive(harness, drain, receiver, ORDERS, 3)
        backlog_messages[1].delivery = attrs.evolve(backlog_messages[1].delivery, locked_until=None)
        backlog_messages[2].delivery = attrs.evolve(
            backlog_messages[2].delivery, locked_until=harness.after(61.0)
        )
        suspend(harness, drain, receiver, backlog_messages, nursery)
        await trio.sleep(60.0)
        drain.at.backoffs.confirm(ORDERS)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    given_back = [call.copy for call in harness.secondary.calls if call.operation is SETTLE]
    assert given_back == [str(one.delivery.sequence_number) for one in backlog_messages[1:]]
    assert handles(drain) == [0, 0]


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
@pytest.mark.parametrize("when", [0.0, 1.0], ids=["all the time", "while it is suspended"])
async def test_a_suspended_message_is_given_back_whatever_the_clock_says(harness, ahead, when):
    await harness.divert(message("1"))
    harness.primary.fail(Refuse(), SEND, times=1)
    syphon = harness.make_syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))
    syphon.clock = clock = VirtualClock()
    await harness.nursery.start(syphon.run)
    await trio.sleep(when)
    clock.skew = timedelta(seconds=ahead)

    await trio.sleep(6.0 - when)

    assert await harness.primary.ids() == ["1"]


@pytest.mark.parametrize("back", [True, False])
async def test_a_move_to_an_entity_that_has_just_come_back_goes_gently(harness, suspended, back):
    drain, receiver = suspended
    entity = ORDERS if back else EntityPath("elsewhere")
    await harness.primary.store.create_queue(EntityPath("elsewhere"), QueueProperties())
    await drain.at.backoffs.wait_until_resumed(entity)
    await harness.divert(message("1"), message("2"), entity=entity)
    deliveries = await receiver.receive(2)
    batches = BatchWindow(largest=100, patience=15.0)
    batch = batches.begin(deliveries)

    async with trio.open_nursery() as nursery:
        await drain._handle(
            batch, deliveries, batches, harness.make_mover(drain, receiver), nursery
        )

    assert (batch.moved, batch.gently) == (2, back)


async def test_a_slow_primary_gets_smaller_batches(harness):
    for number in range(200):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(12.0), SEND)
    await harness.syphon(attempt_timeout=20.0)

    await trio.sleep(200.0)

    sizes = [event.messages for event in harness.events.of(Syphoned)]
    assert sizes[:3] == [100, 50, 25]


async def test_a_quick_primary_gets_larger_batches(harness):
    for number in range(1000):
        await harness.divert(message(f"{number}"))
    await harness.syphon()

    await trio.sleep(100.0)

    sizes = [event.messages for event in harness.events.of(Syphoned)]
    assert (sizes[0], max(sizes), sum(sizes)) == (100, 300, 1000)
    assert len(await harness.primary.ids()) == 1000


# Several batches at once


async def test_the_next_batch_is_taken_while_the_last_one_is_moved(harness):
    for number in range(400):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(1.0), SEND)
    started = trio.current_time()
    await harness.syphon(batch=20)
    at_once = 0

    while len(await harness.primary.ids()) < 400:
        await trio.sleep(0.1)
        at_once = max(at_once, harness.primary.broker.under_way(SEND))

    assert at_once == MAX_BATCHES
    assert trio.current_time() - started < 10.0  # one after the other, the settlements take twenty


async def test_a_syphon_that_is_killed_sends_no_more_twice_than_it_had_claimed(harness):
    for number in range(400):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(1.0), SEND)
    first = await harness.syphon(batch=20)
    await trio.sleep(4.5)  # at full speed
    first.cancel()
    await harness.syphon(batch=20)

    await trio.sleep(100.0)

    ids = await harness.primary.ids()
    twice = len(ids) - len(set(ids))
    assert len(set(ids)) == 400
    assert 20 < twice <= MAX_BATCHES * 20


async def test_a_message_that_was_on_its_way_when_the_backlog_broke_isnt_sent_again(harness):
    for number in range(40):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(1.0), SEND)
    await harness.syphon(batch=20)
    await trio.sleep(1.5)
    assert harness.primary.broker.under_way(SEND) == 1  # the second batch, while a third is awaited
    harness.secondary.fail(Refuse(), RECEIVE, times=1)
    await harness.divert(message("40"))

    await trio.sleep(100.0)

    assert len(harness.events.of(SyphonFailed)) == 1
    assert sorted(await harness.primary.ids(), key=int) == [f"{number}" for number in range(41)]


async def test_after_a_failure_there_is_one_batch_in_progress_again(harness):
    for number in range(400):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Slow(1.0), SEND)
    await harness.syphon(batch=20, retry=Backoff(first=1.0, cap=1.0, jitter=0.0))
    await trio.sleep(4.5)
    harness.primary.heal()
    harness.primary.fail(Refuse(), SEND, times=MAX_BATCHES)
    harness.primary.fail(Slow(1.0), SEND)
    await harness.events.first(SyphonBackedOff)
    await trio.sleep(1.0)  # the sends in progress have their answers by then

    at_once = 0
    for _ in range(40):
        await trio.sleep(0.1)
        at_once = max(at_once, harness.primary.broker.under_way(SEND))

    assert at_once == 1


async def test_the_batches_of_a_drain_have_their_share_of_the_rate_while_it_runs(harness, nursery):
    drain = harness.make_drain()
    nursery.start_soon(drain.run)
    await wait_all_tasks_blocked()
    during = drain.at.progress.batches

    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await wait_all_tasks_blocked()

    assert (during, drain.at.progress.batches) == (MAX_BATCHES, 0)


# A drain's memory and its reports


async def test_copies_are_suspended_as_long_as_their_handles_are_kept(harness, suspended):
    drain, receiver = suspended
    mover, counts = harness.make_mover(drain, receiver), []
    async with trio.open_nursery() as nursery:
        for entity, count in ((ORDERS, 3), (BILLS, 4)):
            messages = await receive(harness, drain, receiver, entity, count)
            for each in messages:
                mover.claim(each)
            suspend(harness, drain, receiver, await mover.move(entity, messages), nursery)
            counts.append(drain.at.copies.counts()[CopyState.SUSPENDED])
            ended = trio.current_time()
            kept(drain)[:2] = [attrs.evolve(each, until=ended) for each in kept(drain)[:2]]
        nursery.cancel_scope.cancel()

    assert handles(drain) == [1, 2]
    assert counts == [3, 3]


async def test_a_copy_that_is_given_back_isnt_suspended_any_more(harness):
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Hang(), SETTLE)
    syphon = harness.make_syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))
    await harness.nursery.start(syphon.run)

    await trio.sleep(4.0)
    before = syphon.copies[CopyState.SUSPENDED]
    await trio.sleep(2.0)

    assert (before, syphon.copies[CopyState.SUSPENDED]) == (1, 0)


async def test_a_drain_that_receives_has_received(harness, nursery):
    drain = harness.make_drain()
    drain.at.progress.record_waiting()
    before = drain.at.progress.has_received
    nursery.start_soon(drain.run)
    await harness.divert(message())
    await trio.sleep(1.0)

    assert (before, drain.at.progress.has_received) == (False, True)


async def test_a_paused_queue_is_received_from_again_once_it_is_resumed(harness):
    pauses = Pauses()
    syphon = harness.make_syphon(pauses=pauses)
    await harness.nursery.start(syphon.run)
    await trio.sleep(1.0)
    pauses.overrides.add([Override(target="*", reason="", operator="ann", since=harness.clock())])
    pauses.apply()
    await harness.divert(message())
    await trio.sleep(100.0)
    while_paused = await harness.primary.ids()
    pauses.overrides.remove(["*"])
    pauses.apply()

    await trio.sleep(1.0)

    assert (while_paused, await harness.primary.ids()) == ([], ["m1"])


async def test_a_batch_from_before_the_return_of_one_of_its_entities_is_waited_for_no_longer(
    harness,
):
    await harness.divert(message("o1"))
    await harness.divert(message("b1"), entity=BILLS)
    harness.primary.fail(Hang(), entity=ORDERS)
    await harness.syphon(attempt_timeout=100.0)
    await trio.sleep(2.0)
    await harness.divert(message("b2"), entity=BILLS)
    await trio.sleep(2.0)
    before = await harness.primary.ids(BILLS)
    harness.primary.heal()

    await trio.sleep(10.0)

    assert (before, await harness.primary.ids(BILLS)) == (["b1"], ["b1", "b2"])


@pytest.mark.parametrize(
    ("life", "scheduled", "enqueued", "expires"),
    [
        (None, None, 100.0, None),
        (60.0, None, 100.0, 160.0),
        (60.0, 200.0, 100.0, 260.0),
        (60.0, 50.0, 100.0, 160.0),
        (60.0, 50.0, None, None),
        (1e12, None, 100.0, None),  # past the year 9999
    ],
)
async def test_a_legacy_message_expires_its_time_to_live_after_it_was_diverted_or_due(
    harness, life, scheduled, enqueued, expires
):
    def date(seconds):
        return None if seconds is None else START + timedelta(seconds=seconds)

    sent = message(
        time_to_live=None if life is None else timedelta(microseconds=life * 1e6),
        scheduled=date(scheduled),
    )
    wrapped = wrap(harness, sent)
    kept = {k: v for k, v in wrapped.properties.items() if k not in OURS}
    await put(harness, attrs.evolve(wrapped, properties=kept))
    [delivery] = await harness.secondary.deliveries(QUEUE)
    drain = harness.make_drain(envelope=envelope(accept_legacy=True))

    found = drain.at.open(attrs.evolve(delivery, enqueued=date(enqueued)))

    assert found.expires == date(expires)
