"""
What a receiver of RabbitMQ holds, and how it settles that.

What is acknowledged has no answer. So something is asked on the channel after it: that answer says
that the broker has handled all that was written before.

What is held keeps its message here, which nobody else may have. So there is a limit to it, in bytes
and in deliveries; who may not take more waits until something is settled, or its lock ends.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.meter import Meter
from gateway.brokers.rabbitmq_deliveries import Consumer, Held
from gateway.domain.billing import Operation
from gateway.domain.errors import BrokerError, LockLost, NotSupported, OutcomeUnknown
from gateway.domain.message import Delivery, Message
from gateway.net.rabbitmq_channel import Answer, Channel

MAX_DELIVERIES: Final = 10_000  # of one receiver
MAX_PREFETCH: Final = 1000  # of one consumer
_FADES: Final = 8
_NO_MESSAGE: Final = Message()


@attrs.define(eq=False)
class Holding:
    """
    The deliveries of one channel that the broker knows as unsettled, in its order.

    Who settles one takes it first, so that nobody else does; until its settlement is written it is
    still the broker's.
    """

    _max_bytes: int
    # What the next may weigh: as much as the heaviest of late, which fades with each lighter one.
    _next_weight: int
    _longest_lock: float = math.inf  # with renewals: seconds
    _max_deliveries: int = MAX_DELIVERIES
    meter: Meter = attrs.field(factory=Meter)
    _weight: int = attrs.field(default=0, init=False)  # bytes, of all that isn't settled
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    # To be taken, by lock token; who ends first is first.
    _held: dict[str, Held] = attrs.field(factory=dict, init=False)
    _unsettled: dict[int, Held] = attrs.field(factory=dict, init=False)  # by tag, which ascend
    _flushing: Answer | None = attrs.field(default=None, init=False)  # what is written goes with it

    @property
    def next_end(self) -> float:
        """When the first lock ends: `trio.current_time()`."""
        first = next(iter(self._held.values()), None)
        return math.inf if first is None else first.ends

    @property
    def is_full(self) -> bool:
        """One delivery is always allowed, however large."""
        return self._weight >= self._max_bytes or len(self._unsettled) >= self._max_deliveries

    def room_for(self, limit: int) -> int:
        """How many more deliveries may come, of at most so many; at least one."""
        of_that_weight = (self._max_bytes - self._weight) // max(1, self._next_weight)
        of_any = min(limit, MAX_PREFETCH, self._max_deliveries - len(self._unsettled))
        return max(1, min(of_that_weight, of_any))

    def outgrows(self, consumer: Consumer, limit: int) -> bool:
        """
        Whether another one is worth it, since so many more may come: nothing of this one is on its
        way, and all that it may have wasn't enough.
        """
        is_used_up = consumer.unsettled >= consumer.prefetch
        return is_used_up and 2 * consumer.prefetch <= self.room_for(limit)

    async def wait_for_room(self) -> None:
        """Return when it isn't full."""
        await trio.lowlevel.checkpoint()
        while self.is_full:
            await self._room.park()

    def add(self, held: Held) -> None:
        """It has come."""
        held.consumer.unsettled += 1
        self._weight += held.weight
        self._next_weight = max(held.weight, self._next_weight - self._next_weight // _FADES)
        self._unsettled[held.tag] = held
        self.put_back(held)

    def hand_out(self, held: Sequence[Held]) -> list[Delivery]:
        """The deliveries for who receives them; that is counted."""
        self.meter.carried(Operation.RECEIVE, len(held), sum(each.weight for each in held))
        return [each.delivery for each in held]

    def take(self, delivery: Delivery) -> Held | None:
        """The right to settle it; None: nobody has it any more, or somebody else."""
        held = self._held.pop((delivery.lock_token or "").lower(), None)
        return None if held is None or held.channel.is_over else held

    def found(self, deliveries: Iterable[Delivery]) -> list[Held]:
        """Take those of them that are still there."""
        taken = [self.take(each) for each in deliveries]
        return [each for each in taken if each is not None]

    def ended(self, now: float) -> list[Held]:
        """Take those whose locks have run out."""
        over = []
        for held in self._held.values():
            if held.ends > now:
                break
            over.append(held.delivery)
        return self.found(over)

    def put_back(self, held: Held) -> None:
        """It was taken, and isn't settled after all."""
        if self._unsettled.get(held.tag) is held and held.delivery.lock_token is not None:
            self._held[held.delivery.lock_token] = held

    def renew(self, delivery: Delivery, seconds: float) -> None:
        """
        Its lock ends so many seconds from now, and so after all others'.

        Raises:
            LockLost: it isn't there to be taken.
            NotSupported: it would be held for too long; it ends as it was said.
        """
        token = (delivery.lock_token or "").lower()
        held, ends = self._held.get(token), trio.current_time() + seconds
        if held is None or held.channel.is_over:
            raise lock_lost(delivery)
        if ends > held.taken + self._longest_lock:
            raise NotSupported(
                f"longest_lock: no lock holds for more than {self._longest_lock:g} s"
            )
        held.ends = ends
        self._held[token] = self._held.pop(token)

    def forget_message(self, delivery: Delivery) -> None:
        """Keep no more of it than what is needed to acknowledge it, or to give it back."""
        held = self._held.get((delivery.lock_token or "").lower())
        if held is not None and not held.without_message:
            held.delivery = attrs.evolve(held.delivery, message=_NO_MESSAGE)
            held.without_message = True
            self._lighten(held)

    def lose(self) -> None:
        """The channel is gone: all of it will be delivered again."""
        self._held.clear()
        self._unsettled.clear()
        self._weight = 0
        self._room.unpark_all()
        self._flushing = None

    def acknowledge(self, taken: Sequence[Held]) -> None:
        """The broker may forget them. As far as they are the oldest, one word says so for all."""
        if not taken:
            return
        channel, oldest = taken[0].channel, 0
        left = {held.tag: held for held in taken if self._unsettled.get(held.tag) is held}
        self.meter.settled(len(left))
        while left and (first := next(iter(self._unsettled))) in left:
            self._settled(left.pop(first))
            oldest = first
        if oldest:
            channel.tell(commands.Basic.Ack(delivery_tag=oldest, multiple=True))
        for held in left.values():
            self._settled(held)
        channel.tell(*[commands.Basic.Ack(delivery_tag=tag) for tag in left])

    def give_back(self, taken: Sequence[Held]) -> None:
        """The broker may deliver them again, in this order."""
        for held in taken:
            if self._unsettled.get(held.tag) is held:
                self._settled(held)
                self.meter.settled(1)
                held.channel.tell(commands.Basic.Nack(delivery_tag=held.tag, requeue=True))

    async def flush(self, channel: Channel) -> None:
        """
        Return once the broker has handled what was written on the channel; one answer for many.

        Raises:
            OutcomeUnknown: the channel was closed before the broker said so.
        """
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
        try:
            await flushing.wait()
        except BrokerError as error:
            raise OutcomeUnknown(f"the channel was closed: {error}") from error

    def _settled(self, held: Held) -> None:
        held.consumer.unsettled -= 1
        del self._unsettled[held.tag]
        self._lighten(held)

    def _lighten(self, held: Held) -> None:
        self._weight -= held.weight
        held.weight = 0
        if self._room and not self.is_full:
            self._room.unpark_all()


def lock_lost(delivery: Delivery) -> LockLost:
    return LockLost(f"the lock {delivery.lock_token} isn't known, or it ran out")
