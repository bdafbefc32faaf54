"""
Receiving from RabbitMQ: a consumer while somebody waits, with no more prefetch than was asked for.

    receive        no consumer, or its prefetch is used up: a new one with the wanted prefetch
    a delivery     into the buffer; who waits takes it from there
    nobody waits   a moment later the consumer is cancelled and the buffer given back, so that no
                   message is kept from other receivers
    settle         acknowledged, and then something is asked on the channel: its answer says that
                   the broker has handled it
"""

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final
from uuid import UUID

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq_channels import Channels, DeadLetters
from gateway.brokers.rabbitmq_deliveries import Consumer, Held, delivery_of
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    LockLost,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Abandon,
    DeadLetter,
    Defer,
    Delivery,
    ReceiveMode,
    Settlement,
)
from gateway.domain.queue_checks import check_reason
from gateway.net.rabbitmq_channel import Answer, Channel, Unasked
from gateway.ports import WallClock
from gateway.wire.rabbitmq import ContentArrived
from gateway.wire.rabbitmq_properties import read

_LINGER: Final = 0.05  # seconds that a consumer outlives a receive that was given up
_WORK: Final = 1.0  # seconds that who has got something may be at work before others get the rest
_GAP: Final = 0.005  # seconds without a delivery, and the broker has sent what it could
_MAX_PREFETCH: Final = 1000


@attrs.define(eq=False, kw_only=True)
class RabbitmqReceiver:
    """`ports.Receiver`. `tend` must run beside it; `close` ends both."""

    _entity: EntityPath
    _mode: ReceiveMode
    _channels: Channels
    _dead_letters: DeadLetters
    _clock: WallClock
    _lock_duration: float
    _nonce: int  # of all receivers that ever were
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _channel: Channel | None = None
    _consumer: Consumer | None = None
    _consumers: int = 0
    _flushing: Answer | None = None  # to come: acknowledgements that are written now go with it
    _held: dict[str, Held] = attrs.field(factory=dict)
    _buffer: deque[Delivery] = attrs.field(factory=deque)
    _taken: int = 0
    _waiting: int = 0
    _gives_back_at: float = 0.0
    _subscribing: trio.Lock = attrs.field(factory=trio.Lock)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`. A classic queue counts no more than two deliveries."""
        await trio.lowlevel.checkpoint()
        self._waiting += 1
        try:
            while not self._buffer:
                await self._wait_for_one(limit)
                await self._gather(limit)  # others may have taken it all meanwhile
        finally:
            self._waiting -= 1
            self._gives_back_at = trio.current_time() + (_WORK if self._buffer else _LINGER)
            self._changed.unpark_all()
        taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        if self._mode is ReceiveMode.PEEK_LOCK:
            return taken
        return await self._deleted(taken)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`; "durably" as far as AMQP 0-9-1 can say: the broker has handled it.

        Raises:
            NotSupported: to defer, or to give back with new properties.
            EntityNotFound: there is no queue for dead letters; the lock holds.
        """
        if isinstance(settlement, DeadLetter):
            self._check_main()
            check_reason(settlement)
        elif isinstance(settlement, Defer):
            raise NotSupported("RabbitMQ can't put a message aside")
        elif isinstance(settlement, Abandon) and settlement.properties:
            raise NotSupported("RabbitMQ can't change a message that is given back")
        held = self._take(delivery.lock_token)
        if isinstance(settlement, DeadLetter):
            await self._bury(held, settlement)
        await self._finish([held], give_back=isinstance(settlement, Abandon))

    async def renew(self, delivery: Delivery) -> datetime:
        """Raises NotSupported: RabbitMQ has one limit for all deliveries."""
        await trio.lowlevel.checkpoint()
        raise NotSupported("RabbitMQ can't renew a lock; it holds for lock_duration")

    async def tend(self) -> None:
        """Give back what nobody waits for, and what was held for too long, until closed."""
        with self._scope:
            while True:
                now = trio.current_time()
                self._expire(now)
                first = next(iter(self._held.values()), None)
                next_end = math.inf if first is None else first.ends
                if (self._consumer is not None or self._buffer) and not self._waiting:
                    if now >= self._gives_back_at:
                        await self._pause()
                        continue
                    next_end = min(next_end, self._gives_back_at)
                with trio.move_on_at(next_end):
                    await self._changed.park()

    async def give_back(self) -> None:
        """
        Give back what isn't settled, and end.

        Raises:
            BrokerError: the broker didn't say that it has it; it takes it back when it can.
        """
        self._scope.cancel()
        channel, consumer = self._channel, self._consumer
        if channel is None or channel.is_over:
            await trio.lowlevel.checkpoint()
            return
        if consumer is not None:
            await self._stop(channel, consumer)
        # In one go, and so in their order.
        channel.tell(commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True))
        await self._flush(channel)

    def close(self) -> None:
        """End the channel, and so whatever it has. Waits for nothing."""
        self._scope.cancel()
        if self._channel is not None:
            self._channel.close()

    # --- subscribing

    async def _wait_for_one(self, limit: int) -> None:
        async with self._subscribing:
            if not self._buffer:
                await self._subscribe(limit)
        channel = self._channel
        while not self._buffer and channel is not None and channel is self._channel:
            if self._consumer is None or channel.is_over:
                break
            await self._arrived.park()

    async def _gather(self, limit: int) -> None:  # noqa: ASYNC910 its caller has waited
        """
        Return when what the broker sends on end has come, or enough of it.

        Who took only the first, and then worked for longer than the others wait for it, would have
        them given back and sent anew, again and again.
        """
        with trio.move_on_after(_LINGER):
            before = 0
            while before < len(self._buffer) < limit:
                before = len(self._buffer)
                with trio.move_on_after(_GAP):
                    await self._arrived.park()

    async def _subscribe(self, limit: int) -> None:
        """
        Have a consumer that may get messages.

        Raises:
            BrokerError: the queue can't be consumed.
        """
        channel = self._channel
        if channel is None or channel.is_over:
            channel = await self._open()
        consumer = self._consumer
        if consumer is not None and consumer.unsettled < consumer.prefetch:
            await trio.lowlevel.checkpoint()
            return
        prefetch = limit
        if consumer is not None:
            prefetch = max(limit, 2 * consumer.prefetch)
            with suppress(Unavailable):  # lost meanwhile
                await self._stop(channel, consumer)
            if self._buffer:
                return  # noqa: ASYNC910 the cancel has waited
            if channel.is_over:
                channel = await self._open()
        queue = await self._channels.name_of(self._entity)
        self._consumers += 1
        consumer = Consumer(f"c{self._consumers}", min(prefetch, _MAX_PREFETCH))
        self._consumer = consumer  # from now on, even if nobody waits for the answer any more
        asked = channel.ask(
            commands.Basic.Qos(prefetch_count=consumer.prefetch),
            commands.Basic.Consume(queue=queue, consumer_tag=consumer.tag),
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
        channel = await self._channels.open()
        channel.on_unasked = self._on_unasked
        channel.on_end = lambda error: self._on_end(channel, error)
        self._channel = channel
        return channel

    async def _stop(self, channel: Channel, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None
        await channel.call(commands.Basic.Cancel(consumer_tag=consumer.tag))

    async def _pause(self) -> None:
        """End the consumer, unless somebody waits by now; give back what nobody took."""
        async with self._subscribing:
            channel, consumer = self._channel, self._consumer
            if channel is None or self._waiting:
                return
            if consumer is not None:
                try:
                    await self._stop(channel, consumer)
                except BrokerError:
                    return
            if self._waiting:
                return
            left, self._buffer = self._buffer, deque()
            for delivery in left:
                held = self._held.pop(delivery.lock_token or "", None)
                if held is not None:
                    self._give_back(held)

    # --- what the broker does

    def _on_unasked(self, event: Unasked) -> None:
        match event.method:
            case commands.Basic.Deliver():
                assert isinstance(event, ContentArrived)
                self._on_delivery(event, event.method)
            case commands.Basic.Cancel(consumer_tag=tag):
                # The queue was deleted, or its leader is lost: who waits subscribes again, and
                # is told.
                if self._consumer is not None and self._consumer.tag == tag:
                    self._consumer = None
                    self._channels.forget(self._entity)
                self._arrived.unpark_all()

    def _on_delivery(self, event: ContentArrived, method: commands.Basic.Deliver) -> None:
        consumer, channel = self._consumer, self._channel
        if channel is None:
            return
        if consumer is None or consumer.tag != method.consumer_tag:
            consumer = Consumer(method.consumer_tag or "", 0)  # of one that is ending
        incoming = read(event.header, event.body, is_dead_letter=self._entity.is_dead_letter)
        self._taken += 1
        delivery = delivery_of(
            incoming,
            token=str(UUID(int=self._nonce << 64 | self._taken)),
            number=self._taken,
            redelivered=method.redelivered,
            now=self._clock(),
            lock_duration=self._lock_duration,
        )
        assert delivery.lock_token is not None
        consumer.unsettled += 1
        self._held[delivery.lock_token] = Held(
            delivery=delivery,
            channel=channel,
            tag=method.delivery_tag or 0,
            consumer=consumer,
            ends=trio.current_time() + self._lock_duration,
        )
        self._buffer.append(delivery)
        self._arrived.unpark_all()

    def _on_end(self, channel: Channel, error: BrokerError) -> None:
        if channel is self._channel:
            self._lose()
            self._arrived.unpark_all()

    def _lose(self) -> None:
        """The channel is gone, and with it all that was held: it will be delivered again."""
        self._channel = self._consumer = self._flushing = None
        self._held.clear()
        self._buffer.clear()

    # --- settling

    def _check_main(self) -> None:
        if self._entity.is_dead_letter:
            raise InvalidRequest("a dead letter can't be dead-lettered")

    def _take(self, token: str | None) -> Held:
        held = self._held.pop((token or "").lower(), None)
        if held is None or held.channel.is_over:
            raise LockLost(f"the lock {token} of {self._entity} isn't known, or it ran out")
        return held

    async def _bury(self, held: Held, settlement: DeadLetter) -> None:
        message = held.delivery.message
        reasons = {
            DEAD_LETTER_REASON: settlement.reason,
            DEAD_LETTER_DESCRIPTION: settlement.description,
        }
        properties = {**message.properties, **settlement.properties, **reasons}
        dead = attrs.evolve(message, properties=properties, time_to_live=None)
        try:
            await self._dead_letters.bury(self._entity, dead)
        except BaseException:
            # Not acknowledged: it is still ours, until its lock runs out.
            if not held.channel.is_over and held.delivery.lock_token is not None:
                self._held[held.delivery.lock_token] = held
            raise

    async def _deleted(self, taken: list[Delivery]) -> Sequence[Delivery]:
        held = [self._held.pop(each.lock_token) for each in taken if each.lock_token in self._held]
        await self._finish(held, give_back=False)
        return [attrs.evolve(each, lock_token=None, locked_until=None) for each in taken]

    async def _finish(self, held: Sequence[Held], *, give_back: bool) -> None:
        """
        Acknowledge or give back.

        Raises:
            OutcomeUnknown: the channel was closed before the broker said that it had done it.
        """
        for each in held:
            if give_back:
                self._give_back(each)
            else:
                each.consumer.unsettled -= 1
                each.channel.tell(commands.Basic.Ack(delivery_tag=each.tag))
        if not held:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._flush(held[0].channel)
        except BrokerError as error:
            raise OutcomeUnknown(f"the channel was closed: {error}") from error

    def _give_back(self, held: Held) -> None:
        held.consumer.unsettled -= 1
        held.channel.tell(commands.Basic.Nack(delivery_tag=held.tag, requeue=True))

    async def _flush(self, channel: Channel) -> None:
        """Return once the broker has handled what was written on the channel; one for many."""
        if self._flushing is None:
            self._flushing = flushing = Answer()
            try:
                await trio.lowlevel.checkpoint()  # others may come along
            finally:
                if self._flushing is flushing:
                    self._flushing = None
                channel.ask_for(flushing, commands.Basic.Qos(prefetch_count=1))
        else:
            flushing = self._flushing
        await flushing.wait()

    def _expire(self, now: float) -> None:
        """What was held for too long; all hold equally long, so the first end first."""
        for token, held in list(self._held.items()):
            if held.ends > now:
                break
            del self._held[token]
            if self._buffer and self._buffer[0].lock_token == token:
                self._buffer.popleft()
            self._give_back(held)
