"""Which backlog messages a syphon takes, which it parks, and which it leaves alone."""

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityStatus
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.envelope_fields import MAC, OURS, PATH, SESSION, VERSION
from gateway.domain.errors import Unavailable
from gateway.domain.events import LeftUntouched, Parked, Syphoned, SyphonFailed, SyphonHeld
from gateway.domain.failover import State
from gateway.domain.message import DEAD_LETTER_REASON
from gateway.pairing import drain as module
from gateway.pairing.hand import MAX_BATCHES
from gateway.pairing.transfer import Progress
from gateway.testing.faults import Hang, Operation, Refuse, busy
from tests.pairing.lab import KEY, ORDERS, QUEUE, Slow, envelope, message, reaches, virtual_time

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


async def test_a_message_that_was_changed_is_parked(lab):
    await put(lab, attrs.evolve(wrap(lab), body=b"changed"))
    await lab.syphon()

    await trio.sleep(1.0)

    dead = await lab.secondary.messages(QUEUE.dead_letter)
    assert [each.properties[DEAD_LETTER_REASON] for each in dead] == ["EnvelopeMalformed"]
    assert lab.primary.sends() == 0
    assert len(lab.events.of(Parked)) == 1


@pytest.mark.parametrize("name", [MAC, PATH])
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
        await put(lab, attrs.evolve(wrap(lab, message(f"bad{number}")), body=b"changed"))
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
