"""Links on which clients send, with two steps at the broker at once: the order and the answers."""

import attrs
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown
from gateway.domain.message import Message
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp import events as amqp


@attrs.define
class Held:
    """
    Takes batches at once and in order, and answers them when, and in the order that, the test
    allows.
    """

    inner: MemoryBroker
    calls: list[list[str]] = attrs.field(factory=list)
    told: list[trio.Event] = attrs.field(factory=list)
    fault: OutcomeUnknown | None = None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def send_many(self, entity, batches, *, fails_fast=False):
        self.calls.append([message.message_id for batch in batches for message in batch])
        self.told.append(trio.Event())
        may_tell = self.told[-1]
        verdicts = await self.inner.send_many(entity, batches)
        await may_tell.wait()
        if self.fault is not None:
            return [self.fault] * len(verdicts)
        return verdicts


async def two_steps(house, queue, first, second):
    """A link with two steps under way, their deliveries, and the broker that holds them."""
    await house.broker.create_queue(queue, QueueProperties(requires_session=True))
    held = Held(house.broker)
    house.frontend = attrs.evolve(house.frontend, broker=held)
    sdk = await house.client()
    link = await sdk.sender(queue.name)
    deliveries = [sdk.transfer(link, message) for message in first]
    await trio.testing.wait_all_tasks_blocked()
    deliveries += [sdk.transfer(link, message) for message in second]
    await trio.testing.wait_all_tasks_blocked()
    return sdk, link, deliveries, held


def in_session(*numbers, session="s"):
    return [Message(message_id=str(number), session_id=session) for number in numbers]


async def test_two_steps_under_way_keep_the_order_though_one_message_is_refused(
    house, autojump_clock
):
    queue = EntityPath("s")
    wrong = in_session(1, session=None)
    first = [*in_session(0), *wrong, *in_session(2)]
    sdk, _, deliveries, held = await two_steps(house, queue, first, in_session(3, 4))

    under_way = list(held.calls)
    held.told[1].set()
    later = [await sdk.outcome(delivery) for delivery in deliveries[3:]]
    held.told[0].set()
    earlier = [await sdk.outcome(delivery) for delivery in deliveries[:3]]

    assert under_way == [["0", "1", "2"], ["3", "4"]]
    assert later == [amqp.ACCEPTED] * 2
    assert [type(outcome) for outcome in earlier] == [amqp.Accepted, amqp.Rejected, amqp.Accepted]
    assert [each.message.message_id for each in await house.broker.peek(queue, limit=10)] == [
        "0",
        "2",
        "3",
        "4",
    ]


async def test_no_more_than_two_steps_are_under_way(house, autojump_clock):
    first, second = in_session(0), in_session(1)
    sdk, link, deliveries, held = await two_steps(house, EntityPath("s"), first, second)
    deliveries += [sdk.transfer(link, message) for message in in_session(2, 3)]
    await trio.testing.wait_all_tasks_blocked()

    under_way = list(held.calls)
    held.told[0].set()
    await trio.testing.wait_all_tasks_blocked()
    for event in held.told:
        event.set()
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]

    assert under_way == [["0"], ["1"]]
    assert held.calls == [["0"], ["1"], ["2", "3"]]
    assert outcomes == [amqp.ACCEPTED] * 4


async def test_beside_a_full_step_there_is_no_second_one(house, autojump_clock):
    house.change(max_group=2)
    *_, held = await two_steps(house, EntityPath("s"), in_session(0, 1), in_session(2))

    under_way = list(held.calls)
    held.told[0].set()
    await trio.testing.wait_all_tasks_blocked()

    assert under_way == [["0", "1"]]
    assert held.calls == [["0", "1"], ["2"]]


async def test_when_the_first_step_is_unknown_the_second_one_gets_no_answer(house, autojump_clock):
    first, second = in_session(0), in_session(1)
    sdk, link, _, held = await two_steps(house, EntityPath("s"), first, second)

    held.fault = OutcomeUnknown("nobody knows")
    held.told[0].set()
    detached = await sdk.until(amqp.LinkDetached)
    held.fault = None
    held.told[1].set()
    await trio.testing.wait_all_tasks_blocked()

    assert (detached.link, detached.error.condition) == (link, "com.microsoft:timeout")
    assert not [event for event in sdk.told if isinstance(event, amqp.DispositionReceived)]


async def test_beside_a_settled_message_that_is_refused_the_others_have_their_answers(
    house, autojump_clock
):
    queue = EntityPath("s")
    await house.broker.create_queue(queue, QueueProperties(requires_session=True))
    sdk = await house.client()
    link = await sdk.sender(queue.name)
    wrong = Message(message_id="1")

    deliveries = [sdk.transfer(link, *in_session(0))]
    sdk.transfer(link, wrong, settled=True)
    deliveries += [sdk.transfer(link, *in_session(2))]
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]
    detached = await sdk.until(amqp.LinkDetached)

    assert outcomes == [amqp.ACCEPTED] * 2
    assert detached.link == link
    assert detached.error is not None
