"""
The contract of brokers whose sequence numbers are an entity's own: they begin with 1 and have no
gaps, as in Service Bus (Microsoft Learn, "Message sequencing and timestamps").
"""

from typing import Any

import pytest
import trio

from gateway.capabilities import Peeks, ReceivesDeferred, Schedules, Sessions, Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import MessageNotFound, MessageTooLarge
from gateway.domain.message import Complete, DeadLetter, Defer, Delivery, Message
from gateway.domain.topics.filters import Rule, SqlFilter, TrueFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.offering import required
from tests.brokers.contract import FAR, SOON, ids, make, now_there, numbered, take_all
from tests.brokers.kinds import Capability, needs, waits
from tests.harness.patience import PATIENCE

OWN_BITS = 53  # of a number; a sharded queue has the shard in those above


def own(number: int) -> int:
    return number % (1 << OWN_BITS)


def owns(deliveries: Any) -> list[int]:
    return [own(each.sequence_number) for each in deliveries]


async def settled(broker: Any, queue: EntityPath, wanted: int, how: Any = None) -> list[Delivery]:
    """Take that many messages, and settle each: by default, complete it."""
    async with broker.open_receiver(queue) as receiver:
        taken = await take_all(receiver, wanted)
        for each in taken:
            await receiver.settle(each, how or Complete())
    return taken


@needs(Capability.OWN_NUMBERS)
async def test_each_queue_numbers_its_messages_from_1_without_gaps(broker):
    one, two = await make(broker, "one"), await make(broker, "two")
    for number in range(3):
        await broker.send(one, numbered(number))
        await broker.send(two, numbered(number, -number))

    assert owns(await settled(broker, one, 3)) == [1, 2, 3]
    assert owns(await settled(broker, two, 6)) == [1, 2, 3, 4, 5, 6]


@needs(Capability.OWN_NUMBERS)
async def test_an_empty_queue_goes_on_and_one_that_is_created_again_begins_again(broker):
    queue = await make(broker)
    await broker.send(queue, numbered(1, 2))
    await settled(broker, queue, 2)
    await broker.send(queue, numbered(3))
    later = owns(await settled(broker, queue, 1))
    await broker.delete_queue(queue)
    await make(broker)
    await broker.send(queue, numbered(4))

    assert (later, owns(await settled(broker, queue, 1))) == ([3], [1])


@needs(Capability.OWN_NUMBERS)
async def test_a_message_keeps_its_number_until_it_is_settled(broker, orders):
    await broker.send(orders, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        before = await take_all(receiver, 2)
    async with broker.open_receiver(orders) as receiver:
        after = await take_all(receiver, 2)

    assert sorted(owns(before)) == sorted(owns(after)) == [1, 2]


@needs(Capability.OWN_NUMBERS | Capability.PEEK)
async def test_a_peek_begins_with_that_number_of_that_queue(broker, orders):
    other = await make(broker, "other")
    await broker.send(other, numbered("x", "y"))
    await broker.send(orders, numbered(*range(1, 6)))
    await broker.send(other, numbered("z"))
    peek = required(broker, Peeks).peek
    shown = await peek(orders, limit=9)
    numbers = [each.sequence_number for each in shown]

    assert owns(shown) == [1, 2, 3, 4, 5]
    assert ids(await peek(orders, from_sequence=numbers[2], limit=9)) == ["3", "4", "5"]
    assert ids(await peek(orders, from_sequence=numbers[4] + 1, limit=9)) == []
    last = (await peek(other, limit=9))[-1].sequence_number
    assert ids(await peek(other, from_sequence=last, limit=9)) == ["z"]


@needs(Capability.OWN_NUMBERS | Capability.PEEK)
async def test_a_peek_from_a_number_that_is_gone_begins_with_the_next(broker, orders):
    await broker.send(orders, numbered(1, 2, 3))
    numbers = [each.sequence_number for each in await settled(broker, orders, 2)]
    await broker.send(orders, numbered(4))

    found = await required(broker, Peeks).peek(orders, from_sequence=numbers[0], limit=9)
    assert (ids(found), owns(found)) == (["3", "4"], [3, 4])


@needs(Capability.OWN_NUMBERS | Capability.DEAD_LETTER | Capability.PEEK)
async def test_dead_letters_have_numbers_of_their_own(broker, orders):
    await broker.send(orders, numbered(1, 2, 3))
    why = DeadLetter(reason="bad", description="worse")
    await settled(broker, orders, 2, why)
    await broker.send(orders, numbered(4))
    peek = required(broker, Peeks).peek
    dead = await peek(orders.dead_letter, limit=9)

    assert owns(dead) == [1, 2]
    assert ids(await peek(orders.dead_letter, from_sequence=dead[1].sequence_number)) == ["2"]
    assert owns(await settled(broker, orders.dead_letter, 2)) == [1, 2]
    assert owns(await peek(orders, limit=9)) == [3, 4]


@needs(Capability.OWN_NUMBERS | Capability.DEFERRAL)
async def test_a_deferred_message_is_received_by_the_number_in_its_queue(broker, orders):
    other = await make(broker, "other")
    for queue, name in ((orders, "here"), (other, "there")):
        await broker.send(queue, numbered(name))
        await settled(broker, queue, 1, Defer())
    for queue, name in ((orders, "here"), (other, "there")):
        [number] = [each.sequence_number for each in await required(broker, Peeks).peek(queue)]
        assert own(number) == 1
        async with broker.open_receiver(queue) as receiver:
            deferred = required(receiver, ReceivesDeferred)
            [taken] = await deferred.receive_deferred([number])
            await receiver.settle(taken, Complete())
            with pytest.raises(MessageNotFound):
                await deferred.receive_deferred([number + 1])

        assert (ids([taken]), owns([taken])) == ([name], [1])


@needs(Capability.OWN_NUMBERS | Capability.NUMBERED_SCHEDULE | Capability.PEEK)
async def test_a_schedule_is_cancelled_by_the_number_in_its_queue(broker, orders):
    other = await make(broker, "other")
    due = await now_there(broker, orders) + FAR
    schedules = required(broker, Schedules)
    here = await schedules.schedule(orders, [Message(message_id=n, scheduled=due) for n in "ab"])
    there = await schedules.schedule(other, [Message(message_id="c", scheduled=due)])
    await schedules.cancel_scheduled(orders, here[:1])
    peek = required(broker, Peeks).peek

    assert ([own(each) for each in here], [own(each) for each in there]) == ([2, 3], [1])
    assert (ids(await peek(orders, limit=9)), ids(await peek(other, limit=9))) == (["b"], ["c"])


@needs(Capability.OWN_NUMBERS | Capability.NUMBERED_SCHEDULE | Capability.DATES)
@waits
async def test_a_schedule_that_becomes_due_gets_the_next_number(broker: Any) -> None:
    queue = await make(broker, "soon")
    due = await now_there(broker, queue) + SOON
    scheduled = await required(broker, Schedules).schedule(queue, [Message(scheduled=due)])
    await broker.send(queue, numbered("now"))
    taken = await settled(broker, queue, 2)

    assert [own(each) for each in scheduled] == [2]
    assert owns(taken) == [3, 4]
    assert [own(each.enqueued_sequence_number or 0) for each in taken] == [0, 2]


@needs(Capability.OWN_NUMBERS | Capability.TOPICS | Capability.PEEK)
async def test_each_subscription_numbers_its_own_copies(broker):
    topic = EntityPath("news")
    topology = required(broker, Topology)
    await topology.create_topic(topic, TopicProperties())
    for name, chosen in (("all", TrueFilter()), ("high", SqlFilter(expression="high = 1"))):
        rule = Rule(name="only", filter=chosen)
        await topology.create_subscription(topic, name, SubscriptionProperties(), rule)
    for name, high in ((1, 0), (2, 1), (3, 0), (4, 1)):
        await broker.send(topic, [Message(message_id=str(name), properties={"high": high})])
    peek = required(broker, Peeks).peek
    found = {
        name: await peek(EntityPath(f"news/subscriptions/{name}"), limit=9)
        for name in ("all", "high")
    }

    assert owns(found["all"]) == [1, 2, 3, 4]
    assert (ids(found["high"]), owns(found["high"])) == (["2", "4"], [1, 2])
    assert [each.enqueued_sequence_number for each in found["high"]] == [2, 4]


@needs(Capability.OWN_NUMBERS | Capability.FORWARDING)
async def test_a_forwarded_message_gets_the_next_number_of_its_target(broker, orders):
    source = await make(broker, "source", forward_to="orders")
    await broker.send(orders, numbered("first"))
    await broker.send(source, numbered("second", "third"))
    taken = await settled(broker, orders, 3)

    assert owns(taken) == [1, 2, 3]
    assert [each.enqueued_sequence_number for each in taken] == [None, 1, 2]


@needs(Capability.OWN_NUMBERS | Capability.SESSIONS)
async def test_sessions_share_the_numbers_of_their_queue(broker):
    queue = await make(broker, "sessions", requires_session=True)
    for session in ("a", "b", "a", "b"):
        await broker.send(queue, [Message(session_id=session, body=b"x")])
    found = []
    for session in ("a", "b"):
        async with required(broker, Sessions).open_session(queue, session) as receiver:
            with trio.fail_after(PATIENCE):
                found.append(owns(await take_all(receiver, 2)))

    assert found == [[1, 3], [2, 4]]


@needs(Capability.OWN_NUMBERS | Capability.SIZES)
async def test_a_refused_send_takes_no_number(broker):
    queue = await make(broker, "small", max_message_size=1024)
    with pytest.raises(MessageTooLarge):
        await broker.send(queue, [Message(body=b"x"), Message(body=b"x" * 5000)])
    await broker.send(queue, numbered(1))

    assert owns(await settled(broker, queue, 1)) == [1]
