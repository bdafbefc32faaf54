"""
The consumers that a channel has on one queue. One receive at a time finds messages for all of
them: a thousand consumers ask the namespace as often as one does.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.capabilities.settling import settle_all
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Abandon, Complete, Delivery, Settlement
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner
from gateway.frontends.rabbitmq_broker.queue_receiver import QueueReceiver
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, refusal_of
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue
from gateway.net.visits import acquire_turn_to_await
from gateway.ports import Receiver

# Deliveries of a channel that its client hasn't settled, where it sets no prefetch: a channel has
# a lock for each.
_MOST_UNSETTLED: Final = 65_535
# Deliveries of one receive: consumers of other channels get the next ones.
_TOGETHER: Final = 16
# Seconds to settle what its client won't: what a consumer without acknowledgements gets, what none
# has room for, what no frame can have.
GIVE_UP: Final = 5.0


@attrs.define(eq=False)
class ServedConsumer:
    tag: str
    queue: ServedQueue
    no_ack: bool
    prefetch: int  # 0: any number
    unsettled: int = 0

    @property
    def room(self) -> int:
        """The deliveries that it may get, if it acknowledges them."""
        return (self.prefetch or _MOST_UNSETTLED) - self.unsettled


@attrs.define(eq=False)
class ChannelPrefetch:
    """The limit of all consumers of a channel together: `basic.qos` with `global`."""

    limit: int = 0  # 0: any number
    unsettled: int = 0  # of what consumers got; not of `basic.get`

    @property
    def room(self) -> int:
        return (self.limit or _MOST_UNSETTLED) - self.unsettled


@attrs.define(eq=False, kw_only=True)
class QueueConsumers:
    """
    `run` serves the consumers in turn, as RabbitMQ does. A receive that is in progress is for any
    of them; when a consumer ends and the others have no room for what is asked, the receive ends,
    and what it has found is that consumer's.
    """

    _owner: ChannelOwner
    _queue: ServedQueue
    _opened: QueueReceiver
    _prefetch: ChannelPrefetch
    _deliver: Callable[[ServedConsumer, Receiver, Delivery], Awaitable[None]]
    _consumers: dict[ServedConsumer, None] = attrs.field(factory=dict, init=False)  # next first
    _asked: int = attrs.field(default=0, init=False)  # of the receive in progress
    _receiving: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # For which something was found that isn't delivered yet, and which have ended meanwhile.
    _found: dict[ServedConsumer, None] = attrs.field(factory=dict, init=False)
    _ending: dict[ServedConsumer, None] = attrs.field(factory=dict, init=False)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _delivered: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)

    @property
    def is_over(self) -> bool:
        """True if `run` has returned, and no consumer is left that hears of its queue's end."""
        return self._has_ended and not self._consumers

    def begin(self, consumer: ServedConsumer) -> None:
        """Deliver to a consumer, too."""
        self._consumers[consumer] = None
        self.adjust()

    def adjust(self) -> None:
        """Note that the room of the consumers has changed."""
        if self._asked > self._room():
            self._receiving.cancel()
        self._changed.unpark_all()

    def finish(self, consumer: ServedConsumer) -> None:
        """Deliver no more to a consumer than what is found for it already."""
        self._consumers.pop(consumer, None)
        if consumer in self._found or self._asked > self._room():
            self._ending[consumer] = None
            self._receiving.cancel()
        self._changed.unpark_all()

    async def wait_until_ended(self, consumer: ServedConsumer) -> None:
        """Return when nothing more is delivered to a consumer for which `finish` was called."""
        while consumer in self._ending:
            await self._delivered.park()

    async def run(self) -> None:
        """Until the last consumer has ended, or the queue is gone or refused."""
        try:
            while self._consumers:
                await self._owner.outbox.wait_for_room()
                if self._room() <= 0:
                    await self._changed.park()
                    continue
                turn = await acquire_turn_to_await()
                try:
                    await self._deliver_next()
                finally:
                    if turn is not None:
                        turn.release()
        except EntityNotFound:
            if not self._queue.is_going:
                self._owner.vhost.remove(self._queue)
        except ClientRefused as refusal:
            self._owner.refuse(refusal, commands.Basic.Consume.index)
        finally:
            self._has_ended = True

    async def _deliver_next(self) -> None:
        """Do one receive; nothing if there is no room since it waits for its turn."""
        if (room := self._room()) <= 0:
            return
        self._asked = room
        try:
            self._owner.check(Right.LISTEN, self._queue.entity)
            await self._receive(room)
        finally:
            self._asked = 0
            self._found.clear()
            self._ending.clear()
            self._delivered.unpark_all()

    def _room(self) -> int:
        """The deliveries that one receive may find for the consumers."""
        room = 0
        for consumer in self._consumers:
            if consumer.no_ack:  # it counts for no limit, and waits while the channel's is reached
                return _TOGETHER if self._prefetch.room > 0 else 0
            room += consumer.room
            if room >= _TOGETHER:
                break
        return min(room, self._prefetch.room, _TOGETHER)

    async def _receive(self, limit: int) -> None:
        receiver: Receiver | None = None
        found: Sequence[Delivery] = []
        try:
            with trio.CancelScope() as self._receiving:
                receiver = await self._opened.opened()
                found = await receiver.receive(limit)
        except EntityNotFound:
            raise
        except BrokerError as error:
            if receiver is not None:
                self._opened.retire(receiver, error)
            if error.counts_as_outage and not error.is_final:
                return
            raise refusal_of(error) from error
        if receiver is not None:
            await self._deliver_found(receiver, found)

    async def _deliver_found(self, receiver: Receiver, found: Sequence[Delivery]) -> None:
        unacknowledged: list[tuple[ServedConsumer, Delivery]] = []
        excess: list[tuple[Delivery, Settlement]] = []
        for delivery in found:
            self._asked -= 1
            consumer = self._next()
            if consumer is None:
                excess.append((delivery, Abandon(delivered=False)))
            elif consumer.no_ack:
                unacknowledged.append((consumer, delivery))
            else:
                await self._deliver(consumer, receiver, delivery)
        if excess:
            await settle_all(receiver, excess, GIVE_UP)
        if unacknowledged:
            completed = await complete(receiver, [delivery for _, delivery in unacknowledged])
            for (consumer, delivery), is_completed in zip(unacknowledged, completed, strict=True):
                if is_completed:
                    await self._deliver(consumer, receiver, delivery)

    def _next(self) -> ServedConsumer | None:
        """
        The consumer of the next delivery. None: the channel's other queues have used up its limit
        at the same time, or a consumer has less room than when it was asked for.
        """
        for consumer in self._consumers:
            if consumer.no_ack or (consumer.room > 0 and self._prefetch.room > 0):
                del self._consumers[consumer]
                self._consumers[consumer] = self._found[consumer] = None
                return consumer
        return next(iter(self._ending), None)


async def complete(receiver: Receiver, found: Sequence[Delivery]) -> Sequence[bool]:
    """
    Complete deliveries for a consumer that acknowledges none; return for each if it is. A
    cancellation waits for the answer.
    """
    with trio.move_on_after(GIVE_UP, shield=True):
        verdicts = await settle_all(receiver, [(each, Complete()) for each in found])
        return [verdict is None for verdict in verdicts]
    return [False] * len(found)
