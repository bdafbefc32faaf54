"""Triggers over a topic: a gateway sends them, and its listeners react to them."""

import random
from collections.abc import AsyncIterator, Sequence

import attrs
import pytest
import trio

from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.events.gateway import Event
from gateway.domain.message import Message, ReceiveMode
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.announcements.events import TriggersDelayed, TriggersLost, TriggersRegained
from gateway.extensions.announcements.trigger_topic import TopicAnnouncer, TopicFeed
from gateway.extensions.announcements.wire import hint_rule, parse_hint
from gateway.forwarding_broker import ForwardingBroker
from gateway.frontends.admin.announcements import EVERYTHING, MOST, Announcements
from gateway.listening.triggers import Triggers
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock

ORDERS, BILLS = EntityPath("Orders"), EntityPath("bills")
TOPIC = EntityPath("pairgate-triggers")
WINDOW = 0.02
EVENTS = EntityPath("Events")  # a topic
READER = EntityPath("events/Subscriptions/reader")
WATCH = "watch"  # a subscription that gets all


@attrs.define(eq=False)
class Frail(ForwardingBroker):
    """A topic whose sends can be made to fail; the sends that arrived are kept."""

    inner: MemoryBroker
    is_down: bool = False
    sent: list[Sequence[Message]] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        if self.is_down:
            await trio.lowlevel.checkpoint()
            raise Unavailable("down")
        self.sent.append(messages)
        await self.inner.send(entity, messages)


@attrs.define(eq=False)
class Place:
    """A namespace, the gateway that announces its new messages, and a listener's triggers."""

    nursery: trio.Nursery
    store: MemoryBroker
    keeper: Frail
    announcements: Announcements = attrs.field(factory=Announcements)
    triggers: Triggers = attrs.field(factory=Triggers)
    events: list[Event] = attrs.field(factory=list)
    gateway: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    listener: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def report(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def announce(self) -> None:
        announcer = TopicAnnouncer(
            broker=self.keeper,
            topic=TOPIC,
            announcements=self.announcements,
            window=WINDOW,
            time_to_live=60.0,
            observer=self,
            rng=random.Random(1),
        )

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with self.gateway:
                await announcer.run(task_status=task_status)

        await self.nursery.start(run)
        await trio.sleep(1.0)

    async def feed(self) -> None:
        feed = TopicFeed(
            broker=self.keeper,
            topic=TOPIC,
            queues=[ORDERS, READER],
            triggers=self.triggers,
            account="east",
            observer=self,
            rng=random.Random(2),
            new_id=Runtime().new_id,
        )

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with self.listener:
                await feed.run(task_status=task_status)

        await self.nursery.start(run)
        await trio.sleep(1.0)

    async def hints(self) -> list[tuple[EntityPath, int]]:
        """Receive and return the hints that were sent to the topic since the last call."""
        path = EntityPath(f"{TOPIC}/Subscriptions/{WATCH}")
        found = []
        async with self.store.open_receiver(path, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            with trio.move_on_after(1.0):
                while True:
                    for delivery in await receiver.receive(1000):
                        hint = parse_hint(delivery.message)
                        assert hint is not None
                        found.append(hint)
        return found


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with trio.open_nursery() as nursery:
        announcements = Announcements()
        hooks = LocalHooks(announce=announcements.publish)
        store = MemoryBroker(VirtualClock(), random.Random(1), hooks=hooks)
        for queue in (ORDERS, BILLS):
            await store.create_queue(queue, QueueProperties())
        await store.create_topic(TOPIC, TopicProperties())
        await store.create_subscription(TOPIC, WATCH, SubscriptionProperties())
        place = Place(nursery, store, Frail(store), announcements)
        yield place
        nursery.cancel_scope.cancel()


async def test_a_message_in_a_queue_wakes_its_listeners_and_no_others(place, autojump_clock):
    await place.announce()
    await place.feed()
    with place.triggers.subscribe("east", ORDERS) as notifier:
        seen = notifier.notifications
        await place.store.send(BILLS, [Message()])
        await trio.sleep(1.0)
        after_another = notifier.notifications
        await place.store.send(ORDERS, [Message()])
        await trio.sleep(1.0)

        assert (after_another, notifier.notifications) == (seen, seen + 1)
    assert place.triggers.is_connected


async def test_a_message_in_a_topic_wakes_the_listeners_of_its_subscriptions(place, autojump_clock):
    await place.announce()
    await place.feed()
    with (
        place.triggers.subscribe("east", READER) as notifier,
        place.triggers.subscribe("east", ORDERS) as other,
        place.announcements.subscribe([READER]) as stream,
    ):
        before = notifier.notifications, other.notifications
        place.announcements.publish(EVENTS, 5)
        await trio.sleep(1.0)
        notifications = notifier.notifications - before[0], other.notifications - before[1]

    assert notifications == (1, 0)
    assert dict(stream.pop_all()) == {EVENTS: 5}


async def test_messages_of_one_window_are_one_trigger(place, autojump_clock):
    await place.announce()
    await place.hints()
    place.announcements.publish(ORDERS, 10)
    await trio.sleep(WINDOW / 2)
    for _ in range(99):
        place.announcements.publish(ORDERS, 10)

    assert await place.hints() == [(ORDERS, 10), (ORDERS, 990)]


async def test_triggers_themselves_are_not_announced(place, autojump_clock):
    await place.announce()
    await place.hints()
    sent = len(place.keeper.sent)
    await place.store.send(ORDERS, [Message()])
    await trio.sleep(3600.0)

    assert len(place.keeper.sent) == sent + 1


async def test_too_many_queues_at_once_are_everything(place, autojump_clock):
    await place.announce()
    await place.hints()
    for number in range(MOST + 1):
        place.announcements.publish(EntityPath(f"queue-{number}"))

    assert await place.hints() == [(EVERYTHING, 0)]


async def test_a_trigger_that_the_topic_refuses_is_published_later(place, autojump_clock):
    await place.announce()
    await place.hints()
    place.keeper.is_down = True
    place.announcements.publish(ORDERS, 1)
    await trio.sleep(600.0)
    place.announcements.publish(ORDERS, 2)
    place.keeper.is_down = False

    await trio.sleep(60.0)
    assert await place.hints() == [(ORDERS, 3)]
    assert len(place.of(TriggersDelayed)) == 1


async def test_pending_triggers_are_published_at_the_end(place, autojump_clock):
    await place.announce()
    await place.hints()
    place.announcements.publish(ORDERS, 1)
    await trio.sleep(WINDOW / 2)
    place.announcements.publish(ORDERS, 2)
    place.gateway.cancel()

    assert await place.hints() == [(ORDERS, 1), (ORDERS, 2)]


async def test_a_gateway_that_starts_has_everybody_look_once(place, autojump_clock):
    await place.feed()
    with place.triggers.subscribe("east", ORDERS) as notifier:
        seen = notifier.notifications
        await place.announce()

        assert notifier.notifications == seen + 1
    assert await place.hints() == [(EVERYTHING, 0)]


async def test_a_listener_whose_topic_is_gone_polls_until_it_is_back(place, autojump_clock):
    await place.feed()
    connected = [place.triggers.is_connected]
    await place.store.delete_topic(TOPIC)
    await trio.sleep(600.0)
    connected.append(place.triggers.is_connected)
    await place.store.create_topic(TOPIC, TopicProperties())
    await trio.sleep(60.0)
    connected.append(place.triggers.is_connected)

    assert connected == [True, False, True]
    assert len(place.of(TriggersLost)) == 1
    assert len(place.of(TriggersRegained)) == 2


async def test_messages_that_came_while_the_channel_was_lost_are_looked_for_once_it_is_back(
    place, autojump_clock
):
    await place.feed()
    with place.triggers.subscribe("east", ORDERS) as notifier:
        await place.store.delete_topic(TOPIC)
        await trio.sleep(600.0)
        seen = notifier.notifications
        await place.store.create_topic(TOPIC, TopicProperties())
        await trio.sleep(60.0)

        assert notifier.notifications == seen + 1


async def test_a_message_of_somebody_else_on_the_topic_is_ignored(place, autojump_clock):
    await place.feed()
    with place.triggers.subscribe("east", ORDERS) as notifier:
        seen = notifier.notifications
        for body in (b"", b"no JSON", b'{"queue": 7}', b'{"queue": "orders", "size": -1}'):
            await place.store.send(TOPIC, [Message(subject=ORDERS.key, body=body)])
        await trio.sleep(1.0)

        assert notifier.notifications == seen
    assert place.triggers.is_connected


async def test_the_subscription_of_a_listener_goes_with_it(place, autojump_clock):
    await place.feed()
    during = await place.store.list_subscriptions(TOPIC)
    place.listener.cancel()
    await trio.sleep(1.0)
    after = await place.store.list_subscriptions(TOPIC)

    assert (len(during), len(after)) == (2, 1)


async def test_the_subscription_of_a_listener_that_waits_stays(place, autojump_clock):
    await place.feed()
    await trio.sleep(24 * 3600.0)
    with place.triggers.subscribe("east", ORDERS) as notifier:
        seen = notifier.notifications
        await place.announce()

        assert notifier.notifications == seen + 1
    assert len(place.of(TriggersLost)) == 0


async def test_a_rule_for_too_many_queues_lets_all_pass(place, autojump_clock):
    rule = hint_rule([EntityPath(f"queue-{number}") for number in range(1000)])
    await place.store.create_subscription(TOPIC, "many", SubscriptionProperties(), rule)
    await place.store.send(TOPIC, [Message(subject="queue-999")])

    assert (await place.store.inspect_subscription(TOPIC, "many")).active == 1


async def test_several_channels_are_connected_while_none_is_lost():
    triggers = Triggers()
    seen = []
    for step in (
        lambda: triggers.lose("a"),
        lambda: triggers.lose("b"),
        lambda: triggers.regain("a"),
        lambda: triggers.regain("b"),
    ):
        step()
        seen.append(triggers.is_connected)
    await trio.lowlevel.checkpoint()

    assert seen == [False, False, False, True]
