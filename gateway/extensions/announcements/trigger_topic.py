"""
Brings a gateway's announcements to listeners through a topic, so that listeners need no connection
to the gateway.

    gateway    Announcements -> TopicAnnouncer   a message for each queue and window  ->  topic
    listener   Triggers      <- TopicFeed        a subscription of its own            <-  topic

A trigger is a hint. The gateway keeps the announcements that it couldn't send, one per queue, and
announces `EVERYTHING` when it starts: so messages that a killed gateway hasn't announced are found
then.
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
from gateway.deadlines import answered_within
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    Unavailable,
)
from gateway.domain.message import Delivery, ReceiveMode
from gateway.domain.topics.topology import SubscriptionProperties
from gateway.extensions.announcements.events import TriggersDelayed, TriggersLost, TriggersRegained
from gateway.extensions.announcements.wire import build_hint, hint_rule, parse_hint
from gateway.frontends.admin.announcements import EVERYTHING, Announcements, Stream
from gateway.listening.triggers import Trigger, Triggers
from gateway.offering import offered, required
from gateway.ports import Broker, NewId, Observer, Receiver

ANSWER_SECONDS: Final = 10.0  # timeout of all operations but receive
# Seconds for a last send or deletion; a subscription that stays expires by itself.
LAST_WORDS: Final = 2.0
WORKING_SECONDS: Final = 60.0  # a channel that worked for so long hasn't failed
RETRY: Final = Backoff(first=0.5, cap=30.0)
SHORTEST_POLL: Final = 1.0  # seconds between two receives without a result
BATCH: Final = 100  # triggers, of some bytes each
LOCK: Final = timedelta(seconds=30)
# idle time after which the subscription of a killed listener is deleted; the shortest allowed
ABANDONED: Final = timedelta(minutes=5)


@attrs.define(eq=False, kw_only=True)
class TopicAnnouncer:
    """
    Sends a trigger for each queue that has new messages: the first at once, then one for all
    messages of a `window` (in seconds).
    """

    broker: Broker  # the namespace with the topic; not a pair, since triggers are never diverted
    topic: EntityPath
    announcements: Announcements
    window: float
    time_to_live: float  # seconds
    observer: Observer
    rng: random.Random
    _failures: int = attrs.field(default=0, init=False)  # in a row

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; then try once more to send the pending announcements."""
        with self.announcements.subscribe() as stream:
            stream.publish(EVERYTHING, 0)
            task_status.started()
            try:
                while True:
                    await self._announce(stream, await stream.next())
            finally:
                with trio.move_on_after(LAST_WORDS, shield=True), suppress(BrokerError):
                    await self._send(stream.pop_all())

    async def _announce(self, stream: Stream, came: Mapping[EntityPath, int]) -> None:
        """
        Send the announcements, and wait until the window has passed; after a failure keep them and
        back off.
        """
        try:
            is_sent = await self._send(came)
        except BrokerError as error:
            for queue, size in came.items():
                stream.publish(queue, size)
            self._failures += 1
            if self._failures == 1:
                self.observer.report(TriggersDelayed(topic=self.topic.name, reason=str(error)))
            await trio.sleep(RETRY.delay(self._failures, self.rng))
        except trio.Cancelled:
            for queue, size in came.items():
                stream.publish(queue, size)
            raise
        else:
            if is_sent:
                self._failures = 0
                await trio.sleep(self.window)

    async def _send(self, came: Mapping[EntityPath, int]) -> bool:
        """
        Send the pending announcements; return False if there were none.

        Raises:
            BrokerError: the send failed; `OutcomeUnknown` after a timeout.
        """
        span = timedelta(seconds=self.time_to_live)
        hints = [build_hint(*each, span) for each in came.items() if not self._is_own(each[0])]
        if not hints:
            return False
        with answered_within(ANSWER_SECONDS, f"from {self.topic}"):
            await self.broker.send(self.topic, hints)
        return True

    def _is_own(self, queue: EntityPath) -> bool:
        """
        True if the queue is the topic itself: its triggers would be announced in turn, without end.
        """
        return queue.topic == self.topic


@attrs.define(eq=False, kw_only=True)
class TopicFeed:
    """
    Brings the triggers of a topic to the listeners of this process, through a subscription of its
    own. While the subscription can't be created or read, the listeners poll. The feed needs the
    right to manage the topic.

    `silence`: seconds without an answer after which a polled namespace counts as failed.
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
        """
        Run until cancelled, and subscribe again after each failure; delete the subscription at the
        end.
        """
        name = f"pairgate-{self.new_id().replace('-', '')}"
        self.triggers.lose(self.channel)
        task_status.started()
        try:
            while True:
                try:
                    await self._subscribe(name)
                    await self._follow(name)
                except BrokerError as error:
                    self._record_loss(error)
                await trio.sleep(RETRY.delay(self._failures, self.rng))
        finally:
            with trio.move_on_after(LAST_WORDS, shield=True), suppress(BrokerError):
                await required(self.broker, Topology).delete_subscription(self.topic, name)

    async def _subscribe(self, name: str) -> None:
        """
        Return when the subscription exists: no trigger is missed from now on.

        Raises:
            BrokerError: the subscription can't be created. `EntityNotFound`: the topic is missing.
        """
        properties = SubscriptionProperties(
            lock_duration=LOCK,
            auto_delete_on_idle=ABANDONED,
            dead_lettering_on_filter_error=False,
        )
        rule = hint_rule(self.queues)
        within = answered_within(ANSWER_SECONDS, f"from {self.topic}", error=Unavailable)
        with within, suppress(EntityExists):
            await required(self.broker, Topology).create_subscription(
                self.topic, name, properties, rule
            )

    async def _follow(self, name: str) -> None:
        """Publish the triggers; ends only with an error."""
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
        As `Receiver.receive`.

        Raises:
            BrokerError: the receive failed; `Unavailable` if a polled namespace doesn't answer.
        """
        polls = offered(receiver, Polls)
        if polls is None:
            return await receiver.receive(BATCH)
        with answered_within(self.silence, f"from {self.topic}", error=Unavailable):
            return await polls.poll(BATCH)

    def _publish(self, delivery: Delivery) -> None:
        hint = parse_hint(delivery.message)
        if hint is None:
            return  # not a trigger of a gateway
        queue, size = hint
        if queue == EVERYTHING:
            self.triggers.publish_all()
        else:
            self.triggers.publish(Trigger(account=self.account, queue=queue, size=size))

    def _record_loss(self, error: BrokerError) -> None:
        """Report the first of consecutive failures."""
        since = inf if self._open_since is None else self._open_since
        if trio.current_time() - since >= WORKING_SECONDS:
            self._failures = 0
        self._failures += 1
        was_open, self._open_since = self._open_since is not None, None
        if was_open:
            self.triggers.lose(self.channel)
        if was_open or self._failures == 1:
            self.observer.report(TriggersLost(gateway=self.channel, reason=str(error)))
