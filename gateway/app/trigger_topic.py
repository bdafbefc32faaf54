"""
What a gateway announces, over a topic of a namespace: who listens needs no way to the gateway.

    gateway    Announcements -> TopicAnnouncer   a message for each queue and window  ->  topic
    listener   Triggers      <- TopicFeed        a subscription of its own            <-  topic

A trigger is a hint. The gateway keeps what the topic doesn't take, one for each queue, and says
`EVERYTHING` when it starts: so what a killed one has left unsaid is found then.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Final

import attrs
import trio

from gateway.capabilities import Polls, Topology
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.events import TriggersHeldUp, TriggersLost, TriggersRegained
from gateway.domain.message import Delivery, ReceiveMode
from gateway.domain.topology import SubscriptionProperties
from gateway.frontends.announcements import Announcements, Stream
from gateway.listener.triggers import Trigger, Triggers
from gateway.ports import Broker, NewId, Observer, Receiver
from gateway.wire.announcements import EVERYTHING, build_hint, hint_rule, parse_hint

ANSWER_SECONDS: Final = 10.0  # of the namespace, for all but receiving
LAST_WORDS: Final = 2.0  # seconds
WORKING_SECONDS: Final = 60.0  # a channel that held so long was no failure
RETRY: Final = Backoff(first=0.5, cap=30.0)
SHORTEST_POLL: Final = 1.0  # seconds between two requests that find nothing
BATCH: Final = 100
LOCK: Final = timedelta(seconds=30)
ABANDONED: Final = timedelta(minutes=5)  # a subscription of a killed listener; none may be less


@attrs.define(eq=False, kw_only=True)
class TopicAnnouncer:
    """
    Sends a trigger for each queue that something has come to: the first at once, those of one
    `window` (in seconds) after it as one.
    """

    broker: Broker  # that keeps the topic; nobody diverts what is sent to it
    topic: EntityPath
    announcements: Announcements
    window: float
    time_to_live: float  # seconds
    observer: Observer
    rng: random.Random
    _failures: int = attrs.field(default=0, init=False)  # in a row

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; what isn't said by then is tried once more."""
        with self.announcements.subscribe() as stream:
            stream.note(EVERYTHING, 0)
            task_status.started()
            try:
                while True:
                    await self._announce(stream, await stream.next())
            finally:
                with trio.move_on_after(LAST_WORDS, shield=True), suppress(BrokerError):
                    await self._send(stream.take())

    async def _announce(self, stream: Stream, came: Mapping[EntityPath, int]) -> None:
        """Send, and let the window pass; keep what can't be sent, and rest."""
        try:
            is_sent = await self._send(came)
        except BrokerError as error:
            for queue, size in came.items():
                stream.note(queue, size)
            self._failures += 1
            if self._failures == 1:
                self.observer.report(TriggersHeldUp(topic=self.topic.name, reason=str(error)))
            await trio.sleep(RETRY.delay(self._failures, self.rng))
        except trio.Cancelled:
            for queue, size in came.items():
                stream.note(queue, size)
            raise
        else:
            if is_sent:
                self._failures = 0
                await trio.sleep(self.window)

    async def _send(self, came: Mapping[EntityPath, int]) -> bool:
        """
        Return whether there was anything to say.

        Raises:
            BrokerError: `OutcomeUnknown` when nobody answered in time.
        """
        span = timedelta(seconds=self.time_to_live)
        hints = [build_hint(*each, span) for each in came.items() if not self._is_own(each[0])]
        if not hints:
            await trio.lowlevel.checkpoint()
            return False
        with trio.move_on_after(ANSWER_SECONDS):
            await self.broker.send(self.topic, hints)
            return True
        raise OutcomeUnknown(f"{self.topic}: no answer within {ANSWER_SECONDS:g} s")

    def _is_own(self, queue: EntityPath) -> bool:
        """What we send would be announced in turn, and never come to an end."""
        return queue.topic == self.topic


@attrs.define(eq=False, kw_only=True)
class TopicFeed:
    """
    Brings the triggers of a topic to the listeners of this process, by a subscription of its own.
    While that can't be made or read they poll. It needs the right to manage the topic.

    `silence`: seconds without an answer after which a namespace that must be asked is given up.
    """

    broker: Broker
    topic: EntityPath
    queues: Sequence[EntityPath]
    triggers: Triggers
    account: str
    observer: Observer
    rng: random.Random
    new_id: NewId
    silence: float = 120.0
    _failures: int = attrs.field(default=0, init=False)  # in a row
    _open_since: float | None = attrs.field(default=None, init=False)

    @property
    def channel(self) -> str:
        return f"topic {self.topic}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled, subscribe again whenever that breaks; unsubscribe at the end."""
        name = f"pairgate-{self.new_id().replace('-', '')}"
        self.triggers.lose(self.channel)
        task_status.started()
        try:
            while True:
                try:
                    await self._subscribe(name)
                    await self._follow(name)
                except BrokerError as error:
                    self._note_loss(error)
                await trio.sleep(RETRY.delay(self._failures, self.rng))
        finally:
            with trio.move_on_after(LAST_WORDS, shield=True), suppress(BrokerError):
                await self._topology().delete_subscription(self.topic, name)

    async def _subscribe(self, name: str) -> None:
        """
        Return when the subscription is there: from now on nothing is missed.

        Raises:
            BrokerError: it can't be made. `EntityNotFound`: there is no such topic.
        """
        properties = SubscriptionProperties(
            lock_duration=LOCK,
            auto_delete_on_idle=ABANDONED,
            dead_lettering_on_filter_error=False,
        )
        rule = hint_rule(self.queues)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(ANSWER_SECONDS) as scope:
            with suppress(EntityExists):
                await self._topology().create_subscription(self.topic, name, properties, rule)
        if scope.cancelled_caught:
            raise Unavailable(f"{self.topic}: no answer within {ANSWER_SECONDS:g} s")

    async def _follow(self, name: str) -> None:
        """Publish what comes. Only an error ends it."""
        path = EntityPath(f"{self.topic}/Subscriptions/{name}")
        async with self.broker.open_receiver(path, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            self._open_since = trio.current_time()
            self.triggers.regain(self.channel)
            self.observer.report(TriggersRegained(gateway=self.channel))
            while True:
                began = trio.current_time()
                deliveries = await self._receive(receiver)
                for delivery in deliveries:
                    self._publish(delivery)
                if not deliveries:
                    await trio.sleep_until(began + SHORTEST_POLL)

    async def _receive(self, receiver: Receiver) -> Sequence[Delivery]:
        """
        Raises:
            BrokerError: `Unavailable` when a namespace that must be asked is silent.
        """
        if not isinstance(receiver, Polls):
            return await receiver.receive(BATCH)
        with trio.move_on_after(self.silence):
            return await receiver.poll(BATCH)
        raise Unavailable(f"{self.topic}: no answer within {self.silence:g} s")

    def _publish(self, delivery: Delivery) -> None:
        hint = parse_hint(delivery.message)
        if hint is None:
            return  # of somebody else
        queue, size = hint
        if queue == EVERYTHING:
            self.triggers.publish_all()
        else:
            self.triggers.publish(Trigger(account=self.account, queue=queue, size=size))

    def _note_loss(self, error: BrokerError) -> None:
        """The first of a row of failures is told."""
        since = inf if self._open_since is None else self._open_since
        if trio.current_time() - since >= WORKING_SECONDS:
            self._failures = 0
        self._failures += 1
        was_open, self._open_since = self._open_since is not None, None
        if was_open:
            self.triggers.lose(self.channel)
        if was_open or self._failures == 1:
            self.observer.report(TriggersLost(gateway=self.channel, reason=str(error)))

    def _topology(self) -> Topology:
        if not isinstance(self.broker, Topology):
            raise NotSupported("this kind of namespace has no topics")
        return self.broker
