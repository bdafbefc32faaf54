"""
Receiving from RabbitMQ: a consumer exists only while a receive waits, with no more prefetch than
the receive's limit.

  receive        without a consumer, or if its prefetch is used up: a new consumer
  a delivery     goes to the buffer; a waiting receive takes it from there
  none waits     a moment later the consumer is cancelled and the buffer returned to the
  queue, so that no message is kept from other receivers
  cut too early  a receive that ends before the broker's answer leaves its consumer, with the
  messages, to the next receive, which would begin from zero otherwise
  limit reached  the consumer is cancelled, messages in transit are returned; receives wait
  settle         see `settling` and `unsettled`
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.channels import Channels
from gateway.brokers.rabbitmq.deliveries import (
    Consumer,
    Held,
    delivery_of,
    lock_token,
)
from gateway.brokers.rabbitmq.keeper import Keeper
from gateway.brokers.rabbitmq.settling import RabbitmqSettling
from gateway.brokers.rabbitmq.unsettled import UnsettledDeliveries
from gateway.capabilities import WritesDeadLetters
from gateway.domain.clocks.times import EPOCH
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import (
    Delivery,
    ReceiveMode,
    Settlement,
)
from gateway.net.rabbitmq.channel import Channel, Unasked
from gateway.net.reconnecting import Spawn
from gateway.ports import WallClock
from gateway.wire.rabbitmq.frames import ContentArrived, Deliver
from gateway.wire.rabbitmq.properties import read
from gateway.wire.rabbitmq.queues import ConsumeQueue, DeclareQueue

_LINGER: Final = 0.05  # seconds that a consumer stays after a receive was given up
# Seconds that it stays if that receive didn't wait for the broker's answer. A client that polls has
# asked again by then.
LINGER_IF_CUT: Final = 5.0
# Seconds that the application may work on its messages before others get the rest.
WORK: Final = 1.0
# Seconds without a delivery, after which the broker is assumed to have sent all available messages.
_GAP: Final = 0.005
# Seconds for a message that is ready to be delivered to a consumer with room: a quorum queue has
# taken some milliseconds. Another consumer may get it instead.
_LATE: Final = 0.5
_SAME_DATE: Final = 0.01  # seconds in which all deliveries get the date of the first


@attrs.define(eq=False)
class _ConsumerTask:
    """A task that makes a consumer for a receive."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    has_begun: bool = False
    over: trio.Event = attrs.field(factory=trio.Event)
    error: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class RabbitmqReceiver:
    """
    `SettlesMany`, `KeepsMessages` and `ReceivesAvailable`. `tend` must run in a task beside it;
    `close` ends both.
    """

    _entity: EntityPath
    _mode: ReceiveMode
    _channels: Channels
    _dead_letters: WritesDeadLetters
    _clock: WallClock
    _lock_duration: float
    _deliveries: UnsettledDeliveries
    _token_prefix: str  # unique among all receivers, past ones included
    _work: float = WORK
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _channel: Channel | None = None
    _consumer: Consumer | None = None
    _keeper: Keeper = attrs.field(factory=Keeper)
    _consumers: int = 0
    _buffer: deque[Held] = attrs.field(factory=deque)
    _taken: int = 0
    # The date of the latest deliveries, and when it is read again, by Trio's clock.
    _date: datetime = EPOCH
    _locked_until: datetime = EPOCH
    _date_ends: float = -math.inf
    _waiting: int = 0
    _gives_back_at: float = 0.0
    _spawn: Spawn
    _subscribing: trio.Lock = attrs.field(factory=trio.Lock)
    _subscriptions: set[_ConsumerTask] = attrs.field(factory=set)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _last_arrival: float = -math.inf  # by Trio's clock
    # Receives that wait until no more messages arrive, or as many as they may take: their limits.
    _limits: list[int] = attrs.field(factory=list)
    _enough: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _settling: RabbitmqSettling = attrs.field(init=False)

    @_settling.default
    def _make_settling(self) -> RabbitmqSettling:
        return RabbitmqSettling(
            entity=self._entity,
            dead_letters=self._dead_letters,
            clock=self._clock,
            lock_duration=self._lock_duration,
            deliveries=self._deliveries,
        )

    @property
    def consumers(self) -> int:
        """
        The number of consumers that the broker counts for this receiver. A quorum queue counts a
        cancelled consumer until all of its deliveries are settled.
        """
        tags = self._deliveries.tags
        if self._consumer is not None:
            tags.add(self._consumer.tag)
        return len(tags) + int(self._keeper.is_there)

    @property
    def progress(self) -> tuple[int, int]:
        """The number of deliveries so far, and the number of unsettled ones."""
        return self._taken, self._deliveries.unsettled

    async def catch_up(self) -> None:
        """
        Return when all messages have arrived that the broker sent to this receiver before the call.

        Raises:
            OutcomeUnknown: the channel was closed.
        """
        if self._channel is None or self._channel.is_over:
            return
        await self._deliveries.flush(self._channel)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. At `max_unsettled_bytes` it waits until a delivery is settled or a
        lock ends. A classic queue counts at most two deliveries of a message.
        """
        return await self._receive(limit, self._wait_for_any)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`; nothing at `max_unsettled_bytes`."""
        return await self._receive(limit, self._poll_once)

    async def _receive(
        self, limit: int, wait: Callable[[int], Awaitable[None]]
    ) -> Sequence[Delivery]:
        self._waiting += 1
        try:
            # A caller's loop over buffered messages must let others run.
            await trio.lowlevel.checkpoint()
            if not self._buffer:
                await wait(limit)
            while self._buffer and self._buffer[0].channel.is_at_risk:
                await self._buffer[0].channel.wait_until_safe()
                if not self._buffer:  # the channel has ended
                    await wait(limit)
        finally:
            self._waiting -= 1
            self._gives_back_at = trio.current_time() + (self._work if self._buffer else _LINGER)
            self._changed.unpark_all()
        held = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        taken = self._deliveries.hand_out(held)
        if self._consumer is not None and self._deliveries.outgrows(self._consumer, limit):
            self._cancel_consumer()
        if self._mode is ReceiveMode.PEEK_LOCK:
            return taken
        return await self._settling.delete(taken)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`."""
        await self._settling.settle(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        return await self._settling.settle_many(settlements)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        return self._settling.renew(delivery)

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        self._deliveries.forget_message(delivery)

    async def tend(self) -> None:
        """
        Return messages to the queue that no receive waits for, or whose locks have expired, until
        closed.
        """
        with self._scope:
            while True:
                now = trio.current_time()
                self._expire(now)
                next_end = self._deliveries.next_end
                if (self._consumer is not None or self._buffer) and not self._waiting:
                    if now >= self._gives_back_at:
                        await self._pause()
                        continue
                    next_end = min(next_end, self._gives_back_at)
                with trio.move_on_at(next_end):
                    await self._changed.park()

    async def give_back(self) -> None:
        """
        Return all unsettled messages to the queue, and end.

        Raises:
            BrokerError: the broker didn't confirm it; it requeues the messages when it notices the
                end of the channel.
        """
        self._stop_tasks()
        channel, consumer = self._channel, self._consumer
        if channel is None or channel.is_over:
            return
        if consumer is not None:
            await self._stop(channel, consumer)
        # in one frame, which keeps their order
        channel.send(commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
        await self._deliveries.flush(channel)

    def close(self) -> None:
        """Close the channel, by which the broker requeues all of its messages. Doesn't wait."""
        self._stop_tasks()
        if self._channel is not None:
            self._channel.close()

    def _stop_tasks(self) -> None:
        self._scope.cancel()
        for each in self._subscriptions:
            each.scope.cancel()

    # --- subscribing

    async def _wait_for_any(self, limit: int) -> None:
        await trio.lowlevel.checkpoint()
        while not self._buffer:
            if self._deliveries.is_full:
                await self._deliveries.wait_for_room()
            await self._wait_for_one(limit)
            await self._gather(limit)  # other receives may have taken everything meanwhile

    async def _poll_once(self, limit: int) -> None:
        """
        Return when the messages have arrived that were available at the call. A classic queue
        serves its consumers before it answers another request. A quorum queue may do so after that;
        its answer then counts messages as ready.
        """
        await trio.lowlevel.checkpoint()
        if self._deliveries.is_full:
            return
        await self._subscribed(limit)
        channel, ready = self._channel, 0
        if channel is not None and not self._buffer:
            queue = await self._channels.name_of(self._entity)
            answer = await channel.call(DeclareQueue(queue=queue, passive=True))
            ready = getattr(answer, "message_count", 0)
        await self.catch_up()
        if ready and self._has_consumer and not self._buffer:
            with trio.move_on_after(_LATE):
                await self._wait_for_one(limit)

    async def _wait_for_one(self, limit: int) -> None:
        if self._subscribing.locked() or not self._has_consumer:
            await self._subscribed(limit)
        channel = self._channel
        while not self._buffer and channel is self._channel and self._consumer is not None:
            await self._arrived.park()

    @property
    def _has_consumer(self) -> bool:
        """True if there is a consumer that may get messages."""
        if self._channel is None or self._channel.is_over or self._consumer is None:
            return False
        return self._consumer.unsettled < self._consumer.prefetch

    async def _subscribed(self, limit: int) -> None:
        """As `_subscribe`, which goes on if the receive is cancelled meanwhile."""
        if self._scope.cancel_called:
            raise Unavailable("the receiver was closed")
        subscription = _ConsumerTask()
        self._subscriptions.add(subscription)
        self._spawn(self._run, subscription, limit)
        try:
            await subscription.over.wait()
        except trio.Cancelled:
            if not subscription.has_begun:
                subscription.scope.cancel()
            raise
        if subscription.error is not None:
            raise subscription.error

    async def _run(self, subscription: _ConsumerTask, limit: int) -> None:
        try:
            with subscription.scope:
                async with self._subscribing:
                    subscription.has_begun = True
                    if not self._buffer:
                        await self._subscribe(limit)
                    if not self._waiting:
                        self._gives_back_at = trio.current_time() + LINGER_IF_CUT
        except BrokerError as error:
            subscription.error = error
        finally:
            self._subscriptions.discard(subscription)
            subscription.over.set()

    async def _gather(self, limit: int) -> None:
        """
        Return when the messages that the broker sends in a row have arrived, or enough of them, or
        as many as it may send.

        Otherwise the rest would be returned to the queue while the first is processed, and sent
        again and again.
        """
        began = trio.current_time()
        self._limits.append(limit)
        try:
            with trio.move_on_after(_LINGER):
                while 0 < len(self._buffer) < limit and self._has_consumer:
                    gap_ends = max(began, self._last_arrival) + _GAP
                    if trio.current_time() >= gap_ends:
                        break
                    with trio.move_on_at(gap_ends):
                        await self._enough.park()  # not at each arrival: that wakes too often
        finally:
            self._limits.remove(limit)

    async def _subscribe(self, limit: int) -> None:
        """
        Have a consumer that may get messages.

        Raises:
            BrokerError: the queue can't be consumed.
        """
        channel = self._channel
        if channel is None or channel.is_over:
            channel = await self._open()
        if self._has_consumer:
            return
        consumer = self._consumer
        prefetch = limit if consumer is None else max(limit, 2 * consumer.prefetch)
        if consumer is not None:
            with suppress(Unavailable):  # the channel was lost meanwhile
                await self._stop(channel, consumer)
            if self._buffer:
                return
            if channel.is_over:
                channel = await self._open()
        queue = await self._channels.name_of(self._entity)
        self._consumers += 1
        consumer = Consumer(f"c{self._consumers}", self._deliveries.room_for(prefetch))
        self._consumer = consumer  # also if the caller is cancelled before the answer
        asked = channel.ask(
            commands.Basic.Qos(prefetch_count=consumer.prefetch),
            ConsumeQueue(queue=queue, consumer_tag=consumer.tag),
        )
        self._changed.unpark_all()
        try:
            for answer in asked:
                await answer.wait()
        except BrokerError:
            self._channels.forget(self._entity)
            raise

    async def _open(self) -> Channel:
        self._lose()
        channel = await self._keeper.open(self._entity, self._channels)
        if self._scope.cancel_called:  # the answer came with the end: nobody else closes it
            channel.close()
            raise Unavailable("the receiver was closed")
        channel.on_unasked = self._on_unasked
        channel.on_end = lambda error: self._on_end(channel, error)
        channel.holds = lambda: self._deliveries.are_open
        self._channel = channel
        return channel

    def _cancel_consumer(self) -> None:
        """Cancel the consumer without waiting, so some deliveries may still arrive."""
        if self._consumer is not None and self._channel is not None:
            self._channel.ask(commands.Basic.Cancel(consumer_tag=self._consumer.tag))
        self._consumer = None
        self._arrived.unpark_all()

    async def _stop(self, channel: Channel, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None
        await channel.call(commands.Basic.Cancel(consumer_tag=consumer.tag))

    async def _pause(self) -> None:
        """Cancel the consumer and return the buffer to the queue, unless a receive waits by now."""
        async with self._subscribing:
            channel, consumer = self._channel, self._consumer
            if channel is None or self._waiting or trio.current_time() < self._gives_back_at:
                return
            if consumer is not None:
                try:
                    await self._stop(channel, consumer)
                except BrokerError:
                    return
            if self._waiting:
                return
            left, self._buffer = self._buffer, deque()
            self._deliveries.give_back(self._deliveries.claim_all(each.delivery for each in left))

    # --- events from the broker

    def _on_unasked(self, event: Unasked) -> None:
        match event.method:
            case Deliver():
                assert isinstance(event, ContentArrived)
                self._on_delivery(event, event.method)
            case commands.Basic.Cancel(consumer_tag=tag):
                # The queue was deleted, or its leader is lost: waiting receives ask again, and get
                # the error.
                if self._keeper.ends_by(tag):
                    self._lose()
                elif self._consumer is not None and self._consumer.tag == tag:
                    self._consumer = None
                    self._channels.forget(self._entity)
                self._arrived.unpark_all()

    def _on_delivery(self, event: ContentArrived, method: Deliver) -> None:
        consumer, channel = self._consumer, self._channel
        if channel is None:
            return
        if self._deliveries.is_full:  # the message was in transit when the consumer was cancelled
            self._cancel_consumer()
            channel.send(commands.Basic.Nack(delivery_tag=method.delivery_tag, requeue=True))
            return
        if consumer is None or consumer.tag != method.consumer_tag:
            consumer = Consumer(method.consumer_tag, 0)  # of a consumer that was cancelled
            self._changed.unpark_all()
        now = trio.current_time()
        if now >= self._date_ends:
            self._date, self._date_ends = self._clock(), now + _SAME_DATE
            self._locked_until = self._date + timedelta(seconds=self._lock_duration)
        self._taken += 1
        delivery = delivery_of(
            read(event.header, event.body, is_dead_letter=self._entity.is_dead_letter),
            token=lock_token(self._token_prefix, self._taken),
            number=self._taken,
            redelivered=method.redelivered,
            now=self._date,
            locked_until=self._locked_until,
        )
        held = Held(
            delivery,
            channel,
            method.delivery_tag,
            consumer,
            taken=now,
            ends=now + self._lock_duration,
            weight=len(event.header) + len(event.body),
        )
        self._deliveries.add(held)
        self._buffer.append(held)
        if self._deliveries.is_full:
            self._cancel_consumer()
        self._last_arrival = now
        if self._arrived:  # the check is cheaper than waking no task
            self._arrived.unpark_all()
        if self._limits and (len(self._buffer) >= min(self._limits) or not self._has_consumer):
            self._enough.unpark_all()

    def _on_end(self, channel: Channel, error: BrokerError) -> None:
        if channel is self._channel:
            self._lose()
            self._arrived.unpark_all()

    def _lose(self) -> None:
        """
        Forget the channel, which is closed, and its deliveries: the broker delivers them again.
        """
        self._channel = self._consumer = None
        self._deliveries.lose()
        self._buffer.clear()

    def _expire(self, now: float) -> None:
        """
        Return the messages whose locks have expired. All locks last equally long, so the first ends
        first.
        """
        for held in self._deliveries.ended(now):
            if self._buffer and self._buffer[0] is held:
                self._buffer.popleft()
            self._deliveries.give_back([held])
