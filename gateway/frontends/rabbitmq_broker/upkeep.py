"""
The upkeep of queues, without a client: those that nobody uses are deleted (`x-expires`), with
those of connections that have ended, and dead letters go to their exchange.

A rejected, expired or dropped message is dead-lettered in its namespace, in one step; here it's
taken from the dead-letter sub-queue, and removed there once the exchange's queues have it.
"""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError, EntityNotFound, MessageError
from gateway.domain.message import DEAD_LETTER_REASON, Complete, Delivery
from gateway.frontends.rabbitmq_broker.routed_sends import FULL, RoutedSends
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue, ServedVhost
from gateway.ports import Receiver, WallClock
from gateway.wire.rabbitmq.stored import (
    REJECTED,
    StoredContent,
    content_of,
    dead_letter_of,
    is_in_circle,
)

_TOGETHER: Final = 16  # dead letters of one receive
_PAUSE: Final = 1.0  # seconds after an error of the namespace
_REASONS: Final = {
    "TTLExpiredException": "expired",
    "MaxDeliveryCountExceeded": "delivery_limit",
    FULL: FULL,
}


@attrs.define(eq=False, kw_only=True)
class QueueUpkeep:
    """A service: runs as long as the endpoint."""

    vhost: ServedVhost
    sends: RoutedSends
    wall_clock: WallClock
    _scopes: dict[ServedQueue, trio.CancelScope] = attrs.field(factory=dict, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                seen = self.vhost.changes.version
                self._follow(nursery)
                await self._delete_doomed()
                due = await self._delete_expired()
                with trio.move_on_at(due):
                    await self.vhost.changes.wait(seen)

    def _follow(self, nursery: trio.Nursery) -> None:
        """Start to move the dead letters of new queues; stop for those that are gone."""
        wanted = {each for each in self.vhost.tended if each.terms.dead_letter_exchange is not None}
        for queue in self._scopes.keys() - wanted:
            self._scopes.pop(queue).cancel()
        for queue in wanted - self._scopes.keys():
            scope = self._scopes[queue] = trio.CancelScope()
            nursery.start_soon(self._move, queue, scope)

    async def _delete_doomed(self) -> None:
        for entity in list(self.vhost.doomed):
            try:
                await self.vhost.delete_doomed(entity)
            except BrokerError:
                return  # in an outage: later

    async def _delete_expired(self) -> float:
        """Delete the queues that nobody has used; return when the next may be due."""
        due = trio.current_time() + _PAUSE if self.vhost.doomed else math.inf
        for queue in list(self.vhost.tended):
            if queue.terms.expires is None or queue.consumers:
                continue
            at = queue.used + queue.terms.expires
            if at > trio.current_time():
                due = min(due, at)
                continue
            try:
                await self.vhost.delete(queue)
            except BrokerError:
                due = min(due, trio.current_time() + _PAUSE)
        return due

    # --- dead letters

    async def _move(self, queue: ServedQueue, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    async with self.vhost.broker.open_receiver(
                        queue.entity.dead_letter
                    ) as receiver:
                        while True:
                            for each in await receiver.receive(_TOGETHER):
                                await self._move_one(queue, receiver, each)
                except EntityNotFound:
                    self.vhost.remove(queue)
                    return
                except BrokerError:
                    await trio.sleep(_PAUSE)

    async def _move_one(self, queue: ServedQueue, receiver: Receiver, delivery: Delivery) -> None:
        """Move a dead letter to its exchange's queues. Raises BrokerError: it comes again."""
        content = self._dead_letter(queue, delivery)
        if content is not None and await self.vhost.has_exchange(content.exchange):
            routed = self.sends.routed(content)
            routed.queues = [each for each in routed.queues if not _is_in_circle(content, each)]
            await self.sends.send([routed])
            if routed.error is not None:
                raise routed.error
        await receiver.settle(delivery, Complete())

    def _dead_letter(self, queue: ServedQueue, delivery: Delivery) -> StoredContent | None:
        """As its exchange gets it; None: the queue has none."""
        terms, said = queue.terms, delivery.message.properties.get(DEAD_LETTER_REASON)
        reason = _REASONS.get(said, REJECTED) if isinstance(said, str) else REJECTED
        try:
            content = dead_letter_of(
                content_of(delivery.message, queue.name),
                queue=queue.name,
                reason=reason,
                now=self.wall_clock(),
                key=terms.dead_letter_key,
            )
        except MessageError:
            content = content_of(delivery.message, queue.name)
        if terms.dead_letter_exchange is None:
            return None
        return attrs.evolve(content, exchange=terms.dead_letter_exchange)


def _is_in_circle(content: StoredContent, queue: str) -> bool:
    try:
        return is_in_circle(content, queue)
    except MessageError:
        return False  # its header is malformed, and stays as it is
