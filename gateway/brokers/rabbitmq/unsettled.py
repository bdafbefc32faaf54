"""
The unsettled deliveries of a RabbitMQ receiver, and their settlement.

RabbitMQ doesn't answer an acknowledgement. So another request follows on the same channel: its
answer shows that the broker has handled everything written before. If the channel ends before that
answer, the broker may have executed the settlement, or delivers the message again.

Unsettled deliveries keep their messages in memory, so they are limited in bytes and in number. At
the limit, a receive waits until a delivery is settled or its lock ends.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.meter import Meter
from gateway.brokers.rabbitmq.deliveries import Consumer, Held
from gateway.domain.billing import Operation
from gateway.domain.bounded import Bounded
from gateway.domain.errors import BrokerError, LockLost, NotSupported, OutcomeUnknown
from gateway.domain.held_deliveries import HeldDeliveries
from gateway.domain.message import Delivery, Message, Settlement
from gateway.net.rabbitmq.channel import Channel, PendingAnswer

MAX_DELIVERIES: Final = 10_000  # per receiver
MAX_PREFETCH: Final = 1000  # per consumer
_FADES: Final = 8  # deliveries: after some ten lighter ones, a heavy one is no longer expected next
_NO_MESSAGE: Final = Message()


@attrs.define(eq=False)
class UnsettledDeliveries:
    """
    The deliveries of one channel that the broker counts as unsettled, in its order.

    A settlement claims its delivery with `claim`, so that no other settlement can. Until the
    settlement is written, the broker counts the delivery as unsettled.
    """

    _max_bytes: int
    # The expected size of the next message: the largest recent size, which decays with each smaller
    # message.
    _next_weight: int
    _longest_lock: float = math.inf  # seconds, with renewals
    _max_deliveries: int = MAX_DELIVERIES
    meter: Meter = attrs.field(factory=Meter)
    _weight: int = attrs.field(default=0, init=False)  # bytes of all unsettled deliveries
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    # Deliveries that can be claimed, by lock token, ordered by the ends of their locks.
    _held: HeldDeliveries[Held] = attrs.field(factory=HeldDeliveries, init=False)
    # By delivery tag, ascending.
    _unsettled: dict[int, Held] = attrs.field(factory=dict, init=False)
    # Settlements that were written on the channel and have no answer yet, by lock token. Of those
    # beyond the bound a repetition tells nothing.
    _written: Bounded[str, tuple[Channel, Settlement]] = attrs.field(
        factory=lambda: Bounded(MAX_DELIVERIES), init=False
    )
    # The pending answer, shared by all frames that are written before its request.
    _flushing: PendingAnswer | None = attrs.field(default=None, init=False)
    _flushes: int = attrs.field(default=0, init=False)  # calls that wait for an answer

    @property
    def next_end(self) -> float:
        """The end of the first lock, by `trio.current_time()`."""
        return self._held.next_end

    @property
    def unsettled(self) -> int:
        """The number of deliveries that the broker counts as unacknowledged rather than ready."""
        return len(self._unsettled)

    @property
    def are_open(self) -> bool:
        """True if the end of the channel would cost a lock, or leave a settlement in doubt."""
        return bool(self._unsettled or self._flushes)

    @property
    def tags(self) -> set[str]:
        """The tags of the consumers that the unsettled deliveries came to."""
        return {held.consumer.tag for held in self._unsettled.values()}

    @property
    def is_full(self) -> bool:
        """True if a limit is reached. One delivery is always allowed, however large."""
        return self._weight >= self._max_bytes or len(self._unsettled) >= self._max_deliveries

    def room_for(self, limit: int) -> int:
        """The number of further deliveries that may come: at least one, at most `limit`."""
        of_that_weight = (self._max_bytes - self._weight) // max(1, self._next_weight)
        of_any = min(limit, MAX_PREFETCH, self._max_deliveries - len(self._unsettled))
        return max(1, min(of_that_weight, of_any))

    def outgrows(self, consumer: Consumer, limit: int) -> bool:
        """
        True if the consumer should be replaced by one with a larger prefetch: it has used up its
        prefetch, nothing is in transit, and there is room for at least twice its prefetch.
        """
        is_used_up = consumer.unsettled >= consumer.prefetch
        return is_used_up and 2 * consumer.prefetch <= self.room_for(limit)

    async def wait_for_room(self) -> None:
        """Return when no limit is reached."""
        while self.is_full:
            await self._room.park()

    def add(self, held: Held) -> None:
        """Add a delivery that arrived."""
        held.consumer.unsettled += 1
        self._weight += held.weight
        self._next_weight = max(held.weight, self._next_weight - self._next_weight // _FADES)
        self._unsettled[held.tag] = held
        self._hold(held)

    def hand_out(self, held: Sequence[Held]) -> list[Delivery]:
        """Return the deliveries to their receiver, and count them."""
        self.meter.carried(Operation.RECEIVE, len(held), sum(each.weight for each in held))
        return [each.delivery for each in held]

    def claim(self, delivery: Delivery) -> Held | None:
        """
        Claim the right to settle a delivery; None if its lock is lost or another settlement has it.
        """
        held = self._held.pop(_key(delivery))
        return None if held is None or held.channel.is_over else held

    def record_settlement(self, held: Held, settlement: Settlement) -> Channel:
        """Note that a settlement was written; the caller flushes the returned channel."""
        self._written[_key(held.delivery)] = held.channel, settlement
        return held.channel

    def written_on(self, delivery: Delivery, settlement: Settlement) -> Channel | None:
        """The channel on which the same settlement was written before, without an answer so far."""
        channel, written = self._written.get(_key(delivery), (None, None))
        return channel if written == settlement else None

    def claim_all(self, deliveries: Iterable[Delivery]) -> list[Held]:
        """Claim those of the deliveries that can still be claimed."""
        taken = [self.claim(each) for each in deliveries]
        return [each for each in taken if each is not None]

    def ended(self, now: float) -> list[Held]:
        """Claim the deliveries whose locks have expired."""
        return [held for held in self._held.pop_ended(now) if not held.channel.is_over]

    def put_back(self, held: Held) -> None:
        """Release a claimed delivery that wasn't settled after all."""
        if self._unsettled.get(held.tag) is held:
            self._hold(held)

    def renew(self, delivery: Delivery, seconds: float) -> None:
        """
        Extend the lock to `seconds` from now, which makes it the last to end.

        Raises:
            LockLost: the lock is lost.
            NotSupported: the lock would exceed `longest_lock`; it ends as before.
        """
        token = _key(delivery)
        held, ends = self._held.get(token), trio.current_time() + seconds
        if held is None or held.channel.is_over:
            raise lock_lost(delivery)
        if ends > held.taken + self._longest_lock:
            raise NotSupported(
                f"the lock can't be renewed beyond `longest_lock` ({self._longest_lock:g} s)"
            )
        held.ends = ends
        self._held.renew(token, ends)

    def forget_message(self, delivery: Delivery) -> None:
        """Drop the message's content; the data to acknowledge or abandon it stay."""
        held = self._held.get(_key(delivery))
        if held is not None and not held.without_message:
            held.delivery = attrs.evolve(held.delivery, message=_NO_MESSAGE)
            held.without_message = True
            self._lighten(held)

    def lose(self) -> None:
        """Forget all deliveries, since the channel is closed: the broker delivers them again."""
        self._held.clear()
        self._unsettled.clear()
        self._written.clear()
        self._weight = 0
        self._room.unpark_all()
        self._flushing = None

    def acknowledge(self, taken: Sequence[Held]) -> None:
        """
        Acknowledge claimed deliveries. As far as they are the oldest, one frame acknowledges all of
        them.
        """
        if not taken:
            return
        channel, unsettled = taken[0].channel, self._unsettled
        left = {held.tag: held for held in taken if unsettled.get(held.tag) is held}
        self.meter.settled(len(left))
        # Found in a single walk: a search for the first entry after each deletion would pass all
        # the deleted entries.
        oldest = list(takewhile(left.__contains__, unsettled))
        for tag in oldest:
            self._settled(left.pop(tag))
        if oldest:
            channel.send(commands.Basic.Ack(delivery_tag=oldest[-1], multiple=True))
        for held in left.values():
            self._settled(held)
        channel.send(*[commands.Basic.Ack(delivery_tag=tag) for tag in left])

    def give_back(self, taken: Sequence[Held]) -> None:
        """Return claimed deliveries to the queue, in this order."""
        for held in taken:
            if self._unsettled.get(held.tag) is held:
                self._settled(held)
                self.meter.settled(1)
                held.channel.send(commands.Basic.Nack(delivery_tag=held.tag, requeue=True))

    async def flush(self, channel: Channel, settled: Iterable[Delivery] = ()) -> None:
        """
        Return once the broker has handled all frames that were written on the channel, among them
        the settlements of those deliveries; concurrent calls share one answer.

        Raises:
            OutcomeUnknown: the channel was closed before the answer.
        """
        self._flushes += 1
        try:
            await self._flush(channel)
        finally:
            self._flushes -= 1
        for delivery in settled:
            self._written.pop(_key(delivery), None)

    async def _flush(self, channel: Channel) -> None:
        if self._flushing is None:
            self._flushing = flushing = PendingAnswer()
            try:
                await trio.lowlevel.checkpoint()  # other calls may join
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

    def _hold(self, held: Held) -> None:
        if held.delivery.lock_token is not None:
            self._held.add(held.delivery.lock_token, held, ends=held.ends)

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
    return LockLost(
        f"the lock {delivery.lock_token} expired or is unknown; unless the message was settled"
        " before, it is delivered again"
    )


def _key(delivery: Delivery) -> str:
    return (delivery.lock_token or "").lower()
