"""A syphon moves from such a queue what no receiver has taken, and holds nothing in an outage."""

from datetime import timedelta

import pytest
import trio

from gateway.domain.envelope import EnvelopeKey
from gateway.domain.events.gateway import DeadLettered, LeftUntouched, SyphonFailed
from gateway.domain.message import Complete
from gateway.domain.operators.control import Operator, Override
from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.extensions.purge.purge import Purge
from gateway.pairing.syphon.pauses import Pauses
from tests.extensions.receive_in_outage.stand import AWAY, OWN, Stand, complete, take
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    Slow,
    envelope,
    message,
    virtual_time,
)

pytestmark = virtual_time

SEND, SETTLE, PROBE = Operation.SEND, Operation.SETTLE, Operation.PROBE


async def test_messages_that_nobody_received_come_home_as_they_were_sent(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    sent = [message(str(number), properties={"own": number}) for number in range(250)]
    await stand.send(*sent)
    harness.primary.heal()
    await harness.syphon()
    await trio.sleep(5.0)

    assert await harness.primary.messages() == sent
    assert await stand.backlog() == []


@pytest.mark.parametrize("inside", [True, False], ids=["in a gateway", "of its own"])
@pytest.mark.parametrize("fault", [AWAY, Hang()], ids=["refuses", "hangs"])
async def test_a_syphon_holds_nothing_while_the_primary_is_away(harness, inside, fault):
    stand = await Stand.make(harness)
    await harness.syphon(**({"states": stand.pair.states} if inside else {}))
    await trio.sleep(1.0)
    harness.primary.fail(fault)
    await stand.send(*[message(str(number)) for number in range(150)])
    await trio.sleep(60.0)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        found = await take(receiver, 150, seconds=1.0)

    assert len({each.message.message_id for each in found}) == 150


async def test_a_syphon_asks_the_primary_seldom_while_it_is_away(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    await harness.syphon()
    await trio.sleep(10.0)
    harness.primary.asked.clear()
    harness.secondary.asked.clear()
    await trio.sleep(600.0)

    assert harness.primary.times(SEND) == []
    assert len(harness.secondary.times(Operation.RECEIVE)) == 0


async def test_the_syphon_begins_when_the_primary_is_back(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    await harness.syphon()
    await trio.sleep(300.0)
    harness.primary.heal()
    await trio.sleep(60.0)

    assert await harness.primary.ids() == ["a"]
    assert await stand.backlog() == []


async def test_receivers_and_a_syphon_share_the_queue_and_each_message_has_one_owner(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(*[message(str(number)) for number in range(300)])
    got = list[str]()

    async def consume() -> None:
        async with stand.broker.open_receiver(ORDERS) as receiver:
            while True:
                for delivery in await receiver.receive(10):
                    await trio.sleep(0.01)
                    await receiver.settle(delivery, Complete())
                    got.append(delivery.message.message_id)

    harness.nursery.start_soon(consume)
    await trio.sleep(1.0)
    harness.primary.heal()
    await harness.syphon()
    await trio.sleep(120.0)

    assert sorted(got, key=int) == [str(number) for number in range(300)]
    assert await stand.backlog() == []
    assert await harness.primary.ids() == []


async def test_an_unknown_send_is_judged_before_its_message_is_given_back(harness):
    stand = await Stand.make(harness)
    await harness.divert(message("a"), queue=OWN)
    harness.primary.fail(Slow(8.0), SEND)
    await harness.syphon()
    await trio.sleep(5.0)
    async with stand.harness.secondary.store.open_receiver(OWN) as receiver:
        with trio.move_on_after(20.0) as waiting:
            await receiver.receive(1)

    assert waiting.cancelled_caught
    assert await harness.primary.ids() == ["a"]
    assert await stand.backlog() == []


async def test_a_send_that_failed_gives_its_messages_back_at_once(harness):
    stand = await Stand.make(harness)
    await harness.divert(message("a"), message("b"), queue=OWN)
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon()
    await trio.sleep(1.0)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert sorted(await complete(receiver, 2)) == ["a", "b"]


async def test_a_message_that_the_primary_has_is_only_completed(harness):
    stand = await Stand.make(harness)
    await harness.divert(message("a"), queue=OWN)
    harness.secondary.fail(LoseAnswer(), SETTLE, times=1)
    await harness.syphon()
    await trio.sleep(200.0)

    assert await harness.primary.ids() == ["a"]
    assert await stand.backlog() == []


async def test_messages_that_cant_be_moved_are_dead_lettered_or_left(harness):
    await Stand.make(harness)
    stranger = envelope(keys=(EnvelopeKey(id="2", key=b"another key"),))
    await harness.divert(message("theirs"), queue=OWN, envelope=stranger)
    await harness.divert(message("old", time_to_live=timedelta(seconds=1)), queue=OWN)
    await harness.secondary.store.send(OWN, [message("no envelope", properties={})])
    await harness.divert(message("elsewhere"), queue=OWN, entity=BILLS)
    await trio.sleep(2.0)
    await harness.syphon()
    await trio.sleep(2.0)

    assert await harness.primary.ids(BILLS) == ["elsewhere"]
    reasons = sorted(event.reason for event in harness.events.of(DeadLettered))
    assert reasons == ["EnvelopeMalformed", "TTLExpiredException"]
    assert sum(event.messages for event in harness.events.of(LeftUntouched)) == 1


async def test_a_pause_of_the_queue_or_of_its_entity_stops_the_drain(harness):
    stand = await Stand.make(harness)
    pauses = Pauses()
    await harness.syphon(pauses=pauses)
    for target in (OWN.key, ORDERS.key):
        override = Override(target=target, reason="", operator="ann", since=harness.clock())
        pauses.overrides.add([override])
        pauses.apply()
        await harness.divert(message(target), queue=OWN)
        await trio.sleep(5.0)
        assert await stand.backlog() == [target]
        pauses.overrides.remove([target])
        pauses.apply()
        await trio.sleep(5.0)
        assert await stand.backlog() == []


async def test_a_message_of_another_entity_that_cant_be_moved_waits_for_its_lock(harness):
    await Stand.make(harness)
    pauses = Pauses()
    pauses.overrides.add(
        [Override(target=BILLS.key, reason="", operator="ann", since=harness.clock())]
    )
    await harness.divert(message("elsewhere"), queue=OWN, entity=BILLS)
    await harness.syphon(pauses=pauses)
    await trio.sleep(300.0)

    own = [each for each in harness.secondary.asked if each.entity == OWN]
    assert len([each for each in own if each.operation is Operation.RECEIVE]) <= 20


async def test_a_queue_that_cant_be_read_is_tried_again(harness):
    stand = await Stand.make(harness)
    await harness.divert(message("a"), queue=OWN)
    harness.secondary.fail(Refuse(), Operation.RECEIVE, entity=OWN)
    await harness.syphon()
    await trio.sleep(5.0)
    assert harness.events.of(SyphonFailed)
    harness.secondary.heal()
    await trio.sleep(15.0)

    assert await harness.primary.ids() == ["a"]
    assert await stand.backlog() == []


async def test_the_own_queue_is_a_part_of_the_depth_and_can_be_purged(harness):
    stand = await Stand.make(harness)
    await harness.divert(message("a"), queue=OWN)
    depth = await stand.pair.depth.read(5.0, troubled=True)
    purge = Purge(
        source=harness.secondary.broker, label=LABEL, clock=harness.clock, observer=harness.events
    )
    answer = await purge.execute(
        PurgeOrder(queue=OWN.name), Operator(name="ann", peer="127.0.0.1:5000")
    )

    assert depth.pending == 1
    assert depth.queues[OWN.name].pending == 1
    assert answer == PurgeAnswer(queue=OWN.name, dead_letters=False, messages=1)
