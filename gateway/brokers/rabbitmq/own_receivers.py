"""
Counts the messages that receivers of this process hold, which RabbitMQ doesn't count as ready.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.receiver import RabbitmqReceiver
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown

_LONGEST: Final = 0.5  # seconds: an operator waits for the count
_PAUSE: Final = 0.05  # seconds, for ten tries within `_LONGEST`


@attrs.frozen
class Count:
    """The counts of a queue. `ready` is None while messages move too fast to be counted."""

    ready: int | None
    held: int  # delivered to this process and unsettled
    others: int  # consumers of other processes


@attrs.define(eq=False)
class OwnReceivers:
    """The open receivers of one broker, with their queues."""

    _open: dict[RabbitmqReceiver, str] = attrs.field(factory=dict, init=False)
    # When a receiver was last closed, by `trio.current_time()`.
    _left: float = attrs.field(default=-math.inf, init=False)

    @contextmanager
    def registered(self, receiver: RabbitmqReceiver, entity: EntityPath) -> Iterator[None]:
        """Note the receiver as open while the block runs."""
        self._open[receiver] = entity.key
        try:
            yield
        finally:
            del self._open[receiver]
            self._left = trio.current_time()

    async def count(
        self, entity: EntityPath, look: Callable[[], Awaitable[commands.Queue.DeclareOk]]
    ) -> Count:
        """
        Count the ready messages, the messages that this process holds, and the consumers of others.

        A message that is delivered to this process or settled by it during the count is counted
        twice or not at all; and the broker counts a consumer for some milliseconds after its end.
        So if this process receives from the queue, `look`, which asks the broker, is repeated for
        up to half a second, until nothing has moved meanwhile and no remaining consumer could be
        this process's own.

        A receiver whose channel is closed during the count may have settled messages: the count is
        repeated, or unknown.

        Raises:
            BrokerError: as `look`.
        """
        limit = trio.current_time() + _LONGEST
        while True:
            before, own = self._progress(entity), self._consumers(entity)
            answer = await look()
            is_whole = await _catch_up(before)
            after = self._progress(entity)
            is_still = is_whole and before == after
            others = max(0, (answer.consumer_count or 0) - max(own, self._consumers(entity)))
            count = Count(
                ready=answer.message_count if is_still else None,
                held=sum(unsettled for _, unsettled in after.values()),
                others=others,
            )
            is_plain = is_still and not others
            if is_plain or trio.current_time() > limit or not self._receives(entity):
                return count
            await trio.sleep(_PAUSE)

    def _progress(self, entity: EntityPath) -> dict[RabbitmqReceiver, tuple[int, int]]:
        return {each: each.progress for each, key in self._open.items() if key == entity.key}

    def _consumers(self, entity: EntityPath) -> int:
        return sum(each.consumers for each, key in self._open.items() if key == entity.key)

    def _receives(self, entity: EntityPath) -> bool:
        is_open = entity.key in self._open.values()
        return is_open or trio.current_time() <= self._left + _LONGEST


async def _catch_up(receivers: Iterable[RabbitmqReceiver]) -> bool:
    """True if all receivers have caught up, False if a channel was closed meanwhile."""
    try:
        for receiver in receivers:
            await receiver.catch_up()
    except OutcomeUnknown:
        return False
    return True
