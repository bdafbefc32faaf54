"""
Receiving from RabbitMQ: a consumer while somebody waits, with no more prefetch than was asked for.

    receive        no consumer, or its prefetch is used up: a new one with the wanted prefetch
    a delivery     into the buffer; who waits takes it from there
    nobody waits   a moment later the consumer is cancelled and the buffer given back, so that no
                   message is kept from other receivers
    too much held  the consumer is cancelled, what is on its way given back; receives wait for room
    settle         as `rabbitmq_holding` does it
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq_channels import Channels, DeadLetters
from gateway.brokers.rabbitmq_deliveries import (
    Consumer,
    Held,
    as_dead_letter,
    check_settlement,
    delivery_of,
    lock_token,
)
from gateway.brokers.rabbitmq_holding import Holding, lock_lost
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import Abandon, DeadLetter, Delivery, ReceiveMode, Settlement
from gateway.net.rabbitmq_channel import Channel, Unasked
from gateway.ports import WallClock
from gateway.wire.rabbitmq import ContentArrived, Deliver
from gateway.wire.rabbitmq_properties import read

_LINGER: Final = 0.05  # seconds that a consumer outlives a receive that was given up
_WORK: Final = 1.0  # seconds that who has got something may be at work before others get the rest
_GAP: Final = 0.005  # seconds without a delivery, and the broker has sent what it could


@attrs.define(eq=False, kw_only=True)
class RabbitmqReceiver:
    """`SettlesMany` and `KeepsMessages`. `tend` must run beside it; `close` ends both."""

    _entity: EntityPath
    _mode: ReceiveMode
    _channels: Channels
    _dead_letters: DeadLetters
    _clock: WallClock
    _lock_duration: float
    _holding: Holding
    _nonce: int  # of all receivers that ever were
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _channel: Channel | None = None
    _consumer: Consumer | None = None
    _consumers: int = 0
    _lock_span: timedelta = attrs.field(init=False)
    _buffer: deque[Held] = attrs.field(factory=deque)
    _taken: int = 0
    _waiting: int = 0
    _gives_back_at: float = 0.0
    _subscribing: trio.Lock = attrs.field(factory=trio.Lock)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def __attrs_post_init__(self) -> None:
        self._lock_span = timedelta(seconds=self._lock_duration)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`; while `max_held_bytes` are held it waits for a settlement, or for the
        end of a lock. A classic queue counts no more than two deliveries.
        """
        self._waiting += 1
        try:
            await trio.lowlevel.checkpoint()
            while not self._buffer:
                if self._holding.is_full:
                    await self._holding.wait_for_room()
                await self._wait_for_one(limit)
                await self._gather(limit)  # others may have taken it all meanwhile
        finally:
            self._waiting -= 1
            self._gives_back_at = trio.current_time() + (_WORK if self._buffer else _LINGER)
            self._changed.unpark_all()
        held = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        taken = self._holding.hand_out(held)
        if self._consumer is not None and self._holding.outgrows(self._consumer, limit):
            self._part()
        if self._mode is ReceiveMode.PEEK_LOCK:
            return taken
        return await self._deleted(taken)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`; "durably" as far as AMQP 0-9-1 can say: the broker has handled it.

        Raises:
            NotSupported: to defer, to give back with new properties, or to dead-letter a message
                that was forgotten.
            EntityNotFound: there is no queue for dead letters; the lock holds.
        """
        check_settlement(settlement, self._entity)
        held = self._take(delivery)
        if isinstance(settlement, DeadLetter):
            await self._bury(held, settlement)
        if isinstance(settlement, Abandon):
            self._holding.give_back([held])
        else:
            self._holding.acknowledge([held])
        await self._holding.flush(held.channel)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`: dead letters last, and one answer for all others."""
        await trio.lowlevel.checkpoint()
        verdicts, channel = self._write(settlements)
        if channel is not None:
            await self._holding.flush(channel)
        for index, (delivery, settlement) in enumerate(settlements):
            if isinstance(settlement, DeadLetter):
                try:
                    await self.settle(delivery, settlement)
                except BrokerError as error:
                    verdicts[index] = error
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        """
        As `Receiver.renew`: the lock is ours, and the broker doesn't hear of it.

        Raises:
            NotSupported: it would be held for longer than `longest_lock`.
        """
        await trio.lowlevel.checkpoint()
        self._holding.renew(delivery, self._lock_duration)
        return self._clock() + self._lock_span

    def forget_message(self, delivery: Delivery) -> None:
        """As `KeepsMessages.forget_message`."""
        self._holding.forget_message(delivery)

    async def tend(self) -> None:
        """Give back what nobody waits for, and what was held for too long, until closed."""
        with self._scope:
            while True:
                now = trio.current_time()
                self._expire(now)
                next_end = self._holding.next_end
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
        await self._holding.flush(channel)

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
        while not self._buffer and channel is self._channel and self._consumer is not None:
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
        prefetch = limit if consumer is None else max(limit, 2 * consumer.prefetch)
        if consumer is not None:
            with suppress(Unavailable):  # lost meanwhile
                await self._stop(channel, consumer)
            if self._buffer:
                return  # noqa: ASYNC910 the cancel has waited
            if channel.is_over:
                channel = await self._open()
        queue = await self._channels.name_of(self._entity)
        self._consumers += 1
        consumer = Consumer(f"c{self._consumers}", self._holding.room_for(prefetch))
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

    def _part(self) -> None:
        """End the consumer. Waits for nothing, so that some deliveries may come yet."""
        if self._consumer is not None and self._channel is not None:
            self._channel.ask(commands.Basic.Cancel(consumer_tag=self._consumer.tag))
        self._consumer = None
        self._arrived.unpark_all()

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
            self._holding.give_back(self._holding.found(each.delivery for each in left))

    # --- what the broker does

    def _on_unasked(self, event: Unasked) -> None:
        match event.method:
            case Deliver():
                assert isinstance(event, ContentArrived)
                self._on_delivery(event, event.method)
            case commands.Basic.Cancel(consumer_tag=tag):
                # The queue was deleted, or its leader is lost: who waits asks again, and is told.
                if self._consumer is not None and self._consumer.tag == tag:
                    self._consumer = None
                    self._channels.forget(self._entity)
                self._arrived.unpark_all()

    def _on_delivery(self, event: ContentArrived, method: Deliver) -> None:
        consumer, channel = self._consumer, self._channel
        if channel is None:
            return
        if self._holding.is_full:  # what was on its way when the consumer was cancelled
            self._part()
            channel.tell(commands.Basic.Nack(delivery_tag=method.delivery_tag, requeue=True))
            return
        if consumer is None or consumer.tag != method.consumer_tag:
            consumer = Consumer(method.consumer_tag, 0)  # of one that is ending
            self._changed.unpark_all()
        now = trio.current_time()
        self._taken += 1
        delivery = delivery_of(
            read(event.header, event.body, is_dead_letter=self._entity.is_dead_letter),
            token=lock_token(self._nonce, self._taken),
            number=self._taken,
            redelivered=method.redelivered,
            now=self._clock(),
            lock_duration=self._lock_span,
        )
        held = Held(
            delivery=delivery,
            channel=channel,
            tag=method.delivery_tag,
            consumer=consumer,
            taken=now,
            ends=now + self._lock_duration,
            weight=len(event.header) + len(event.body),
        )
        self._holding.add(held)
        self._buffer.append(held)
        if self._holding.is_full:
            self._part()
        if self._arrived:  # to see that nobody waits is cheaper than to wake nobody
            self._arrived.unpark_all()

    def _on_end(self, channel: Channel, error: BrokerError) -> None:
        if channel is self._channel:
            self._lose()
            self._arrived.unpark_all()

    def _lose(self) -> None:
        """The channel is gone, and with it all that was held: it will be delivered again."""
        self._channel = self._consumer = None
        self._holding.lose()
        self._buffer.clear()

    # --- settling

    def _write(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> tuple[list[BrokerError | None], Channel | None]:
        """
        Settle what is no dead letter; the verdicts that are known, and where to wait for the rest.
        """
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        completed: list[Held] = []
        returned: list[Held] = []
        for index, (delivery, settlement) in enumerate(settlements):
            if isinstance(settlement, DeadLetter):
                continue
            try:
                check_settlement(settlement, self._entity)
                held = self._take(delivery)
            except BrokerError as error:
                verdicts[index] = error
            else:
                (returned if isinstance(settlement, Abandon) else completed).append(held)
        self._holding.acknowledge(completed)
        self._holding.give_back(returned)
        written = completed + returned
        return verdicts, written[0].channel if written else None

    def _take(self, delivery: Delivery) -> Held:
        held = self._holding.take(delivery)
        if held is None:
            raise lock_lost(delivery)
        return held

    async def _bury(self, held: Held, settlement: DeadLetter) -> None:
        try:
            await self._dead_letters.bury(self._entity, as_dead_letter(held, settlement))
        except BaseException:
            self._holding.put_back(held)  # not acknowledged: ours, until its lock runs out
            raise

    async def _deleted(self, taken: list[Delivery]) -> Sequence[Delivery]:
        held = self._holding.found(taken)
        self._holding.acknowledge(held)
        if held:
            await self._holding.flush(held[0].channel)
        else:
            await trio.lowlevel.checkpoint()
        return [attrs.evolve(each, lock_token=None, locked_until=None) for each in taken]

    def _expire(self, now: float) -> None:
        """What was held for too long; all hold equally long, so the first end first."""
        for held in self._holding.ended(now):
            if self._buffer and self._buffer[0] is held:
                self._buffer.popleft()
            self._holding.give_back([held])
