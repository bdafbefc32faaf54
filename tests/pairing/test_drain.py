"""Which backlog messages a syphon takes, which it parks, and which it leaves alone."""

import math
from datetime import timedelta

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.envelope_fields import ATTEMPT, MAC, OURS, PATH, SCHEDULED, SESSION, VERSION
from gateway.domain.errors import EntityDisabled, EntityNotFound, Unavailable
from gateway.domain.events import LeftUntouched, Parked, Syphoned, SyphonFailed, SyphonHeld
from gateway.domain.failover import State
from gateway.domain.message import DEAD_LETTER_REASON, Message
from gateway.pairing import drain as module
from gateway.pairing.hand import MAX_BATCHES, Batch, Hand
from gateway.pairing.transfer import Cargo, Progress
from gateway.testing import faults
from gateway.testing.clocks import VirtualClock
from gateway.testing.faults import FaultyReceiver, Hang, Operation, Refuse, busy
from tests.pairing.lab import (
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
OTHER_KEY = EnvelopeKey(id="2", key=b"another key")


async def put(lab, wrapped):
    await lab.secondary.store.send(QUEUE, [wrapped])


def wrap(lab, sent=None, **changes):
    made = envelope(**changes)
    return made.wrap(sent or message(), ORDERS, attempt=lab.new_id(), now=lab.clock())


def legacy(lab, **properties):
    """What the legacy client writes, and more properties."""
    kept = {k: v for k, v in wrap(lab).properties.items() if k not in OURS}
    return message(properties={**kept, **properties})


def without(wrapped, name):
    kept = {k: v for k, v in wrapped.properties.items() if k != name}
    return attrs.evolve(wrapped, properties=kept)


# Not ours


@pytest.mark.parametrize("what", ["unknown key", "another pair", "legacy", "unknown version"])
async def test_what_isnt_ours_stays_untouched_and_is_told(lab, what):
    messages = {
        "unknown key": wrap(lab, keys=(OTHER_KEY,)),
        "another pair": wrap(lab, pair="west"),
        "legacy": legacy(lab),
        "unknown version": attrs.evolve(
            wrap(lab), properties={**wrap(lab).properties, VERSION: "2"}
        ),
    }
    await put(lab, messages[what])
    await lab.syphon()

    await trio.sleep(30.0)

    assert await lab.secondary.messages(QUEUE) == [messages[what]]
    assert await lab.secondary.ids(QUEUE.dead_letter) == []
    assert lab.secondary.times(SETTLE) == []
    assert lab.primary.sends() == 0
    assert [(e.queue, e.messages) for e in lab.events.of(LeftUntouched)] == [(QUEUE, 1)]


async def test_what_isnt_ours_doesnt_stop_what_is(lab):
    await put(lab, wrap(lab, pair="west"))
    await put(lab, wrap(lab, message("ours")))
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.primary.ids() == ["ours"]


async def test_what_isnt_ours_is_there_for_who_knows_it(lab):
    await put(lab, wrap(lab, keys=(OTHER_KEY,)))
    await lab.syphon()
    await trio.sleep(10.0)

    await lab.syphon(envelope=envelope(keys=(KEY, OTHER_KEY)))
    await trio.sleep(200.0)  # when its lock has run out

    assert await lab.primary.ids() == ["m1"]


async def test_the_legacy_clients_messages_are_moved_where_that_is_wanted(lab):
    await put(lab, legacy(lab, **{SESSION: "s1", "own": 1}))
    await lab.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    moved = (await lab.primary.messages())[0]
    assert (moved.session_id, moved.properties) == ("s1", {"own": 1})


# Malformed


async def test_a_wrong_mac_is_held_for_the_grace_and_then_parked(lab):
    await put(lab, attrs.evolve(wrap(lab), body=b"changed"))
    await put(lab, wrap(lab, message("good")))
    await lab.syphon(gone_grace=600.0)

    await trio.sleep(590.0)
    before = await lab.secondary.messages(QUEUE.dead_letter)
    looks = len(lab.events.of(LeftUntouched))
    await trio.sleep(100.0)

    assert before == []
    assert 5 <= looks <= 20  # told again and again, once in a lock
    assert await lab.primary.ids() == ["good"]
    dead = await lab.secondary.messages(QUEUE.dead_letter)
    assert [each.properties[DEAD_LETTER_REASON] for each in dead] == ["EnvelopeMalformed"]
    assert lab.primary.sends() == 1
    assert len(lab.events.of(Parked)) == 1


async def test_a_syphon_with_the_right_secret_moves_what_another_holds(lab):
    other = EnvelopeKey(id=KEY.id, key=b"another secret of that id")
    await put(lab, wrap(lab, keys=(other,)))
    await lab.syphon()
    await trio.sleep(10.0)

    await lab.syphon(envelope=envelope(keys=(KEY, other)))
    await trio.sleep(200.0)

    assert await lab.primary.ids() == ["m1"]
    assert lab.events.of(Parked) == []


async def test_a_date_beyond_any_date_stops_no_syphon(lab):
    made = wrap(lab, message("bad"))
    date = f"Sat, 21 Nov {10**20} 12:00:00 GMT"
    await put(lab, attrs.evolve(made, properties={**made.properties, SCHEDULED: date}))
    await put(lab, wrap(lab, message("good")))
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.secondary.ids(QUEUE.dead_letter) == ["bad"]
    assert await lab.primary.ids() == ["good"]


@pytest.mark.parametrize("name", [MAC, ATTEMPT])
async def test_an_envelope_that_misses_a_part_is_parked(lab, name):
    await put(lab, without(wrap(lab), name))
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.secondary.ids(QUEUE.dead_letter) == ["m1"]


@pytest.mark.parametrize("path", ["", "a//b", "../up", 7])
async def test_a_path_that_names_no_entity_is_parked(lab, path):
    await put(lab, legacy(lab, **{PATH: path}))
    await lab.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert await lab.secondary.ids(QUEUE.dead_letter) == ["m1"]


async def test_many_settlements_that_hang_cost_one_time_out(lab):
    for number in range(20):
        await put(lab, without(wrap(lab, message(f"bad{number}")), MAC))
    await put(lab, wrap(lab, message("good")))
    lab.secondary.fail(Hang(), SETTLE, times=20)
    await lab.syphon(attempt_timeout=5.0)

    await trio.sleep(6.0)

    assert await lab.primary.ids() == ["good"]


# The failover's standings


async def test_a_failed_over_entity_isnt_sent_to_until_it_is_back(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=1)
    lab.primary.fail(Refuse(), SEND)
    lab.primary.fail(Refuse(), Operation.PROBE)
    await pair.broker.send(ORDERS, [message()])
    await lab.syphon(standings=pair.standings)
    await trio.sleep(100.0)
    before = lab.primary.sends()
    lab.primary.heal()

    await reaches(pair.standings, State.PRIMARY)
    await trio.sleep(1.0)  # given back at once: it needn't wait for its lock

    assert before == 1
    assert await lab.primary.ids() == ["m1"]


async def test_a_pinned_entitys_backlog_stays(lab):
    pair = await lab.pair()
    pair.standings.force_over(ORDERS)
    await pair.broker.send(ORDERS, [message()])
    await lab.syphon(standings=pair.standings)

    await trio.sleep(600.0)
    before = await lab.primary.ids()
    pair.standings.force_back(ORDERS)
    await trio.sleep(70.0)

    assert before == []
    assert await lab.primary.ids() == ["m1"]


async def test_a_backlog_message_may_be_the_trial_of_a_half_open_entity(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=2, ping_interval=1800.0)
    lab.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message("0")])
    await trio.sleep(0.1)
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN
    lab.primary.fail(Refuse(), Operation.PROBE)

    await lab.syphon(standings=pair.standings)
    await trio.sleep(0.5)

    assert pair.standings.state_of(ORDERS) is State.PRIMARY
    assert await lab.primary.ids() == ["0"]


async def test_a_trial_is_one_message_however_many_there_are(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9, ping_interval=1800.0)
    lab.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message("0")])
    await trio.sleep(0.1)
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN
    for number in range(1, 5):
        await lab.divert(message(f"{number}"))

    await lab.syphon(standings=pair.standings)
    await trio.sleep(0.1)

    sizes = [len(call.messages) for call in lab.primary.calls if call.operation is SEND]
    assert sizes == [1] * 6  # the first one failed
    assert pair.standings.state_of(ORDERS) is State.HALF_OPEN


async def test_a_suspect_entity_gets_one_message_at_once_until_it_takes_one(lab):
    pair = await lab.pair(failover_interval=60.0)
    lab.primary.fail(Refuse(), SEND, times=1)
    for number in range(20):
        await lab.divert(message(f"{number}"))
    await pair.broker.send(ORDERS, [message("20")])
    assert pair.standings.state_of(ORDERS) is State.SUSPECT

    await lab.syphon(standings=pair.standings)
    await trio.sleep(10.0)

    sizes = [len(call.messages) for call in lab.primary.calls if call.operation is SEND]
    assert sizes[1] == 1
    assert len(sizes) < 21
    assert pair.standings.state_of(ORDERS) is State.PRIMARY
    assert len(await lab.primary.ids()) == 21


async def test_after_an_outage_it_begins_gently(lab):
    pair = await lab.pair()
    pair.standings.force_over(ORDERS)
    for number in range(20):
        await lab.divert(message(f"{number}"))
    await lab.syphon(standings=pair.standings)
    await trio.sleep(10.0)

    pair.standings.force_back(ORDERS)
    await trio.sleep(100.0)

    sizes = [len(call.messages) for call in lab.primary.calls if call.operation is SEND]
    assert sizes[:3] == [1, 2, 4]
    assert sum(sizes) == 20


async def test_a_trial_that_is_cut_off_lets_the_next_one_try(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=9)
    lab.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message()])
    await trio.sleep(0.1)
    lab.primary.fail(Hang(), SEND)
    syphon = await lab.syphon(standings=pair.standings)
    await trio.sleep(0.5)
    assert pair.standings.begin_trial(ORDERS) is None

    syphon.cancel()
    await trio.sleep(0.1)

    assert pair.standings.begin_trial(ORDERS) is not None


async def test_a_busy_answer_to_a_trial_is_respected(lab):
    pair = await lab.pair(failover_interval=0.0, successes_to_return=99)
    lab.primary.fail(Refuse(), SEND, times=1)
    await pair.broker.send(ORDERS, [message()])
    await trio.sleep(0.1)
    lab.primary.fail(busy(30.0), SEND)
    await lab.syphon(standings=pair.standings)
    await trio.sleep(1.0)
    asked = lab.primary.sends()

    await lab.divert(message("more"))
    await trio.sleep(10.0)

    assert lab.primary.sends() == asked


# The queue itself


async def test_a_queue_that_cant_be_read_is_tried_again_later_and_later(lab):
    await lab.divert(message())
    lab.secondary.fail(Refuse(), RECEIVE)
    await lab.syphon(queue_retry=Backoff(first=1.0, cap=8.0, jitter=0.0))
    await trio.sleep(60.0)
    failures = len(lab.events.of(SyphonFailed))
    lab.secondary.heal()

    await trio.sleep(10.0)

    assert 8 <= failures <= 12
    assert await lab.primary.ids() == ["m1"]


async def test_a_connection_that_breaks_gives_back_what_was_in_hand(lab):
    await lab.divert(message("1"))
    lab.primary.fail(Hang(), SEND, times=1)
    await lab.syphon(attempt_timeout=10.0)
    await trio.sleep(5.0)
    lab.secondary.fail(Refuse(), RECEIVE, times=1)  # met when the next batch is awaited

    await trio.sleep(30.0)

    assert await lab.primary.ids() == ["1"]
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_queue_that_hangs_when_it_is_opened_is_given_up(lab):
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
    drain = lab.make_syphon()._drain(QUEUE, Progress(None))
    drain.source = source

    error = await drain.run()

    assert isinstance(error, Unavailable)
    assert source.opened == 1


async def test_it_ends_with_why_the_queue_cant_be_read(lab):
    drain = lab.make_syphon()._drain(QUEUE, Progress(None))
    lab.secondary.fail(refuse(EntityDisabled, "closed for today"), RECEIVE)

    error = await drain.run()

    assert isinstance(error, EntityDisabled)


async def test_it_ends_with_why_the_queue_cant_be_opened(lab):
    await lab.secondary.store.delete_queue(QUEUE)

    error = await lab.make_syphon()._drain(QUEUE, Progress(None)).run()

    assert isinstance(error, EntityNotFound)


@pytest.mark.parametrize(("seconds", "error"), [(5.0, EntityDisabled), (math.inf, Unavailable)])
async def test_a_queue_that_takes_its_time_to_be_left_is_left_or_given_up(lab, seconds, error):
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
            await trio.sleep(seconds)  # noqa: ASYNC102 that is what it does wrong

    drain = lab.make_syphon()._drain(QUEUE, Progress(None))
    drain.source = SlowToLeave()

    assert isinstance(await drain.run(), error)


async def test_a_broken_queue_doesnt_wait_for_those_that_rest(lab):
    await lab.divert(message("1"))
    lab.primary.fail(Refuse(), SEND, entity=ORDERS)
    await lab.syphon(retry=Backoff(first=1000.0, cap=1000.0, jitter=0.0), batch=1)
    await trio.sleep(5.0)
    lab.secondary.fail(Refuse(), RECEIVE, times=1)
    await lab.divert(message("2"), entity=BILLS)

    await trio.sleep(30.0)
    await lab.divert(message("3"), entity=BILLS)
    await trio.sleep(30.0)

    assert await lab.primary.ids(BILLS) == ["2", "3"]


async def test_what_rests_after_a_break_is_given_back_as_before_it(lab):
    await lab.divert(message("1"))
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(
        retry=Backoff(first=20.0, cap=20.0, jitter=0.0),
        queue_retry=Backoff(first=1.0, cap=1.0, jitter=0.0),
    )
    await trio.sleep(5.0)
    lab.secondary.fail(Refuse(), RECEIVE, times=1)
    await lab.divert(message("2"))
    await trio.sleep(5.0)
    lab.primary.heal()

    await trio.sleep(20.0)  # less than a lock

    assert sorted(await lab.primary.ids()) == ["1", "2"]


async def test_a_message_without_an_attempt_of_its_own_is_told_by_its_id(lab):
    drain = lab.make_syphon(envelope=envelope(accept_legacy=True))._drain(QUEUE, Progress(None))
    await put(lab, wrap(lab))
    await put(lab, legacy(lab))
    ours, theirs = await lab.secondary.deliveries(QUEUE)

    copies = [drain._copy(each, drain._open(each)) for each in (ours, theirs)]

    attempt = drain._open(ours).attempt
    assert copies == [
        (QUEUE.key, ours.sequence_number, attempt),
        (QUEUE.key, theirs.sequence_number, "m1"),
    ]


async def test_a_completion_that_fails_lets_no_other_message_pass_for_moved(lab):
    await lab.divert(message("1"))
    lab.secondary.fail(Refuse(), SETTLE, times=1)
    await lab.syphon()
    await trio.sleep(1.0)

    await lab.divert(message("2"))
    await trio.sleep(100.0)

    assert await lab.primary.ids() == ["1", "2"]


async def test_a_legacy_messages_life_begins_at_its_date(lab):
    diverted = wrap(lab, message(scheduled=lab.after(100.0), time_to_live=timedelta(seconds=50)))
    kept = {k: v for k, v in diverted.properties.items() if k not in OURS}
    await put(lab, message(properties=kept))
    await trio.sleep(60.0)
    await lab.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert [each.time_to_live for each in await lab.primary.messages()] == [timedelta(seconds=50)]


async def test_a_legacy_message_of_unknown_age_keeps_its_time_to_live(lab):
    drain = lab.make_syphon(envelope=envelope(accept_legacy=True))._drain(QUEUE, Progress(None))
    kept = {
        k: v
        for k, v in wrap(lab, message(time_to_live=timedelta(seconds=50))).properties.items()
        if k not in OURS
    }
    await put(lab, message(properties=kept))
    [delivery] = await lab.secondary.deliveries(QUEUE)

    opened = drain._open(attrs.evolve(delivery, enqueued=None))

    assert (opened.time_to_live, opened.expires) == (timedelta(seconds=50), None)


async def test_what_is_parked_makes_no_pause(lab):
    for number in range(5):
        await put(lab, without(wrap(lab, message(f"{number}")), MAC))
    await put(lab, wrap(lab, message("good")))
    await lab.syphon(batch=1)

    await trio.sleep(module.SCAN_PAUSE / 2)

    assert await lab.primary.ids() == ["good"]


async def test_a_queue_that_may_not_be_read_waits_until_it_may(lab):
    await lab.secondary.store.delete_queue(QUEUE)
    closed = attrs.evolve(backlog.QUEUE_PROPERTIES, status=EntityStatus.RECEIVE_DISABLED)
    await lab.secondary.store.create_queue(QUEUE, closed)
    await lab.syphon()

    await trio.sleep(10.0)

    assert len(lab.events.of(SyphonFailed)) >= 2


async def test_handles_of_resting_messages_are_bounded(lab, monkeypatch):
    monkeypatch.setattr(module, "MAX_RESTING", 3)
    for number in range(10):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    await trio.sleep(6.0)
    soon = len(await lab.primary.ids())
    await trio.sleep(120.0)

    assert soon == 3  # the others come back with their locks
    assert len(await lab.primary.ids()) == 10


HELD = Backoff(first=1000.0, cap=1000.0, jitter=0.0)


@pytest.fixture
async def held(lab, monkeypatch):
    """A drain of two entities that are held, and its receiver; it keeps three handles."""
    monkeypatch.setattr(module, "MAX_RESTING", 3)
    drain = lab.make_syphon()._drain(QUEUE, Progress(None))
    for entity in (ORDERS, BILLS):
        drain.holds.hold(entity, HELD, "out")
    async with lab.secondary.broker.open_receiver(QUEUE) as receiver:
        yield drain, receiver


async def receive(lab, drain, receiver, entity, count):
    await lab.divert(*(message(f"{number}") for number in range(count)), entity=entity)
    opened = []
    for delivery in await receiver.receive(count):
        unwrapped = drain._open(delivery)
        copy = drain._copy(delivery, unwrapped)
        opened.append(Cargo(copy=copy, delivery=delivery, unwrapped=unwrapped))
    return opened


def resting(drain):
    return [len(drain._resting.get(entity.key, [])) for entity in (ORDERS, BILLS)]


async def test_handles_of_all_entities_share_the_bound(lab, held):
    drain, receiver = held
    async with trio.open_nursery() as nursery:
        for entity in (ORDERS, BILLS):
            cargo = await receive(lab, drain, receiver, entity, 2)
            drain._rest(entity, cargo, drain._mover(receiver), nursery)
        nursery.cancel_scope.cancel()

    assert resting(drain) == [2, 1]


async def test_a_handle_whose_lock_is_over_makes_room(lab, held):
    drain, receiver = held
    async with trio.open_nursery() as nursery:
        orders = await receive(lab, drain, receiver, ORDERS, 3)
        drain._rest(ORDERS, orders, drain._mover(receiver), nursery)
        bills = await receive(lab, drain, receiver, BILLS, 2)
        drain._rest(BILLS, bills, drain._mover(receiver), nursery)
        before = resting(drain)
        ended = trio.current_time()
        drain._resting[ORDERS.key][:2] = [
            attrs.evolve(each, until=ended) for each in drain._resting[ORDERS.key][:2]
        ]
        drain._rest(BILLS, bills, drain._mover(receiver), nursery)
        nursery.cancel_scope.cancel()

    assert before == [3, 0]
    assert resting(drain) == [1, 2]


@pytest.mark.parametrize(
    ("depth", "limit", "seconds"),
    [(None, 10, 0.6), (0, 10, 5.0), (15, 2, 2.0), (100, 10, 1.5), (1000, 10, 0.6)],
)
async def test_a_queue_is_looked_through_in_a_quarter_of_a_lock(held, depth, limit, seconds):
    drain, _ = held
    drain.depth = depth

    assert drain._scan_pause(limit) == seconds


async def test_a_handle_keeps_no_message(lab, held):
    drain, receiver = held
    async with trio.open_nursery() as nursery:
        cargo = await receive(lab, drain, receiver, ORDERS, 1)
        drain._rest(ORDERS, cargo, drain._mover(receiver), nursery)
        nursery.cancel_scope.cancel()

    [kept] = drain._resting[ORDERS.key]
    assert kept.handle == attrs.evolve(cargo[0].delivery, message=Message())


async def test_what_is_parked_and_what_the_primary_has_counts_as_moved(lab, held):
    drain, receiver = held
    broken = [without(wrap(lab, message(f"{n}")), MAC) for n in range(2)]
    known = [wrap(lab, message(f"known {n}")) for n in range(3)]
    await lab.secondary.store.send(QUEUE, [*broken, *known, wrap(lab, message("new"))])
    deliveries = await receiver.receive(6)
    for delivery in deliveries[2:5]:
        drain.transferred.remember(drain._copy(delivery, drain._open(delivery)))
    batch = Batch(deliveries=6, weight=0, began=trio.current_time())

    groups = await drain._open_all(deliveries, batch, drain._mover(receiver))

    assert [[one.unwrapped.message.message_id for one in group] for group in groups] == [["new"]]
    assert batch.moved == 5
    assert len(await lab.secondary.ids(QUEUE)) == 1


async def test_a_receiver_that_keeps_messages_forgets_those_that_only_stay_locked(lab, monkeypatch):
    forgotten = []

    class Keeping(FaultyReceiver):
        def forget_message(self, delivery):
            forgotten.append(delivery.message.message_id)

    monkeypatch.setattr(faults, "FaultyReceiver", Keeping)
    monkeypatch.setattr(faults, "FaultyManyReceiver", Keeping)
    await lab.divert(message("1"), message("2"))
    await lab.divert(message("not ours"), envelope=envelope(pair="west"))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    await trio.sleep(1.0)
    at_rest = sorted(forgotten)
    await trio.sleep(10.0)

    assert at_rest == ["1", "2", "not ours"]
    assert sorted(await lab.primary.ids()) == ["1", "2"]


async def test_held_messages_are_looked_through_with_pauses(lab):
    for number in range(20):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Refuse(), SEND)
    started = trio.current_time()
    await lab.syphon(batch=1, retry=HELD)

    await trio.sleep(4.0)

    looks = sorted({at - started for at in lab.secondary.times(RECEIVE)})
    assert looks == pytest.approx([0.0, 0.75, 1.5, 2.25, 3.0, 3.75])


async def test_a_pause_ends_when_messages_are_given_back(lab):
    await lab.divert(message())
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=2.0, cap=2.0, jitter=0.0))

    await trio.sleep(2.1)  # it would pause for five seconds

    assert await lab.primary.ids() == ["m1"]


async def test_after_messages_were_given_back_there_are_pauses_again(lab):
    for number in range(20):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(batch=1, retry=Backoff(first=2.0, cap=2.0, jitter=0.0))

    await trio.sleep(3.9)

    looks = [call for call in lab.secondary.calls if call.operation is RECEIVE]
    assert 3.9 / 0.75 < len(looks) <= 3.9 / 0.75 + 2  # after each pause, and when the hold ends


@pytest.mark.parametrize(("seconds", "moved"), [(19.9, []), (20.1, ["b"])])
async def test_a_batch_that_hangs_is_waited_for_one_and_a_half_attempt_time_outs_and_a_pause(
    lab, seconds, moved
):
    await lab.divert(message("o"))
    lab.primary.fail(Hang(), SEND, entity=ORDERS)
    await lab.syphon(attempt_timeout=10.0)
    await trio.sleep(1.0)
    await lab.divert(message("b"), entity=BILLS)

    await trio.sleep(seconds - 1.0)

    assert await lab.primary.ids(BILLS) == moved


async def test_one_message_tries_an_entity_and_the_others_rest_until_it_is_taken(lab):
    await lab.divert(message("1"), message("2"), message("3"))
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(retry=Backoff(first=2.0, cap=2.0, jitter=0.0))

    await trio.sleep(5.0)
    assert [len(call.messages) for call in lab.primary.calls if call.operation is SEND] == [3, 1, 1]
    assert len(lab.secondary.times(SETTLE)) == 2

    lab.primary.heal()
    await trio.sleep(2.0)
    assert await lab.primary.ids() == ["1", "2", "3"]


@pytest.mark.parametrize(("seconds", "back"), [(14.9, 1), (15.1, 3)])
async def test_the_others_come_back_too_where_nothing_is_heard_of_the_first(
    seconds, back, lab, held
):
    drain, receiver = held
    async with trio.open_nursery() as nursery:
        cargo = await receive(lab, drain, receiver, ORDERS, 3)
        drain.holds.hold(ORDERS, HELD, "out")
        drain._rest(ORDERS, cargo, drain._mover(receiver), nursery)
        drain.holds._holds[ORDERS.key].until = trio.current_time()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()

    assert len(lab.secondary.times(SETTLE)) == back


async def test_what_cant_be_given_back_keeps_no_other_from_it(lab):
    await lab.divert(message("1"), message("2"), message("3"))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))
    await trio.sleep(1.0)
    lab.secondary.fail(Refuse(), SETTLE, times=1)

    await trio.sleep(5.0)
    soon = await lab.primary.ids()
    await trio.sleep(60.0)

    assert len(soon) == 2
    assert sorted(await lab.primary.ids()) == ["1", "2", "3"]


async def test_what_isnt_locked_any_more_keeps_no_other_from_being_given_back(lab, held):
    drain, receiver = held
    async with trio.open_nursery() as nursery:
        cargo = await receive(lab, drain, receiver, ORDERS, 3)
        cargo[1].delivery = attrs.evolve(cargo[1].delivery, locked_until=None)
        cargo[2].delivery = attrs.evolve(cargo[2].delivery, locked_until=lab.after(61.0))
        drain._rest(ORDERS, cargo, drain._mover(receiver), nursery)
        await trio.sleep(60.0)
        drain.holds.confirm(ORDERS)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    given_back = [call.copy for call in lab.secondary.calls if call.operation is SETTLE]
    assert given_back == [str(one.delivery.sequence_number) for one in cargo[1:]]
    assert resting(drain) == [0, 0]


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
@pytest.mark.parametrize("when", [0.0, 1.0], ids=["all the time", "while it rests"])
async def test_what_rests_is_given_back_whatever_the_clock_says(lab, ahead, when):
    await lab.divert(message("1"))
    lab.primary.fail(Refuse(), SEND, times=1)
    syphon = lab.make_syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))
    syphon.clock = clock = VirtualClock()
    await lab.nursery.start(syphon.run)
    await trio.sleep(when)
    clock.skew = timedelta(seconds=ahead)

    await trio.sleep(6.0 - when)

    assert await lab.primary.ids() == ["1"]


@pytest.mark.parametrize("back", [True, False])
async def test_what_goes_to_an_entity_that_has_just_come_back_goes_gently(lab, held, back):
    drain, receiver = held
    entity = ORDERS if back else EntityPath("elsewhere")
    await lab.primary.store.create_queue(EntityPath("elsewhere"), QueueProperties())
    await drain.holds.wait_release(entity)
    await lab.divert(message("1"), message("2"), entity=entity)
    deliveries = await receiver.receive(2)
    hand = Hand(largest=100, patience=15.0)
    batch = hand.take(deliveries)

    async with trio.open_nursery() as nursery:
        await drain._handle(batch, deliveries, hand, drain._mover(receiver), nursery)

    assert (batch.moved, batch.gently) == (2, back)


async def test_a_slow_primary_gets_smaller_batches(lab):
    for number in range(200):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(12.0), SEND)
    await lab.syphon(attempt_timeout=20.0)

    await trio.sleep(200.0)

    sizes = [event.messages for event in lab.events.of(Syphoned)]
    assert sizes[:3] == [100, 50, 25]


# Several batches in hand


async def test_the_next_batch_is_taken_while_the_last_one_is_moved(lab):
    for number in range(400):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(1.0), SEND)
    started = trio.current_time()
    await lab.syphon(batch=20)
    at_once = 0

    while len(await lab.primary.ids()) < 400:
        await trio.sleep(0.1)
        at_once = max(at_once, lab.primary.broker.under_way(SEND))

    assert at_once == MAX_BATCHES
    assert trio.current_time() - started < 10.0  # one after the other they take twenty


async def test_a_syphon_that_is_killed_sends_no_more_twice_than_it_had_in_hand(lab):
    for number in range(400):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(1.0), SEND)
    first = await lab.syphon(batch=20)
    await trio.sleep(4.5)  # at full speed
    first.cancel()
    await lab.syphon(batch=20)

    await trio.sleep(100.0)

    ids = await lab.primary.ids()
    twice = len(ids) - len(set(ids))
    assert len(set(ids)) == 400
    assert 20 < twice <= MAX_BATCHES * 20


async def test_what_was_on_its_way_when_the_backlog_broke_isnt_sent_again(lab):
    for number in range(40):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(1.0), SEND)
    await lab.syphon(batch=20)
    await trio.sleep(1.5)
    assert lab.primary.broker.under_way(SEND) == 1  # the second batch, while a third is awaited
    lab.secondary.fail(Refuse(), RECEIVE, times=1)
    await lab.divert(message("40"))

    await trio.sleep(100.0)

    assert len(lab.events.of(SyphonFailed)) == 1
    assert sorted(await lab.primary.ids(), key=int) == [f"{number}" for number in range(41)]


async def test_after_a_failure_there_is_one_batch_in_hand_again(lab):
    for number in range(400):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Slow(1.0), SEND)
    await lab.syphon(batch=20, retry=Backoff(first=1.0, cap=1.0, jitter=0.0))
    await trio.sleep(4.5)
    lab.primary.heal()
    lab.primary.fail(Refuse(), SEND, times=MAX_BATCHES)
    lab.primary.fail(Slow(1.0), SEND)
    await lab.events.first(SyphonHeld)
    await trio.sleep(1.0)  # what was on its way by then has its answer

    at_once = 0
    for _ in range(40):
        await trio.sleep(0.1)
        at_once = max(at_once, lab.primary.broker.under_way(SEND))

    assert at_once == 1
