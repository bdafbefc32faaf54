"""
What a receiver of RabbitMQ holds, and how it settles that.

What is acknowledged has no answer. So something is asked on the channel after it: that answer says
that the broker has handled all that was written before.
"""

import math
from collections.abc import Iterable, Sequence

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq_deliveries import Held
from gateway.domain.errors import BrokerError, OutcomeUnknown
from gateway.domain.message import Delivery
from gateway.net.rabbitmq_channel import Answer, Channel


@attrs.define(eq=False)
class Holding:
    """
    The deliveries of one channel that the broker knows as unsettled, in its order.

    Who settles one takes it first, so that nobody else does; until its settlement is written it is
    still the broker's.
    """

    _held: dict[str, Held] = attrs.field(factory=dict, init=False)  # to be taken, by lock token
    _unsettled: dict[int, Held] = attrs.field(factory=dict, init=False)  # by tag, which ascend
    _flushing: Answer | None = attrs.field(default=None, init=False)  # what is written goes with it

    @property
    def next_end(self) -> float:
        """When the first lock ends: `trio.current_time()`."""
        first = next(iter(self._held.values()), None)
        return math.inf if first is None else first.ends

    def add(self, held: Held) -> None:
        held.consumer.unsettled += 1
        self._unsettled[held.tag] = held
        self.put_back(held)

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
        for held in self._held.values():  # all hold equally long, so the first end first
            if held.ends > now:
                break
            over.append(held.delivery)
        return self.found(over)

    def put_back(self, held: Held) -> None:
        """It was taken, and isn't settled after all."""
        if self._unsettled.get(held.tag) is held and held.delivery.lock_token is not None:
            self._held[held.delivery.lock_token] = held

    def lose(self) -> None:
        """The channel is gone: all of it will be delivered again."""
        self._held.clear()
        self._unsettled.clear()
        self._flushing = None

    def acknowledge(self, taken: Sequence[Held]) -> None:
        """The broker may forget them. As far as they are the oldest, one word says so for all."""
        if not taken:
            return
        channel, oldest = taken[0].channel, 0
        left = {held.tag: held for held in taken if self._unsettled.get(held.tag) is held}
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
