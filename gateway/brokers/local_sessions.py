"""Receiving from the sessions of a namespace that we keep ourselves."""

from collections.abc import Sequence
from datetime import datetime

import attrs
import trio

from gateway.brokers.bell import Bell
from gateway.brokers.local_receiver import LocalReceiver, QueueRunner
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Settlement
from gateway.domain.queue import Queue
from gateway.domain.queue_values import Taken
from gateway.domain.session_rules import Accepted
from gateway.domain.stored import Now, State, to_date


@attrs.define(eq=False, kw_only=True)
class LocalSessionReceiver(LocalReceiver):
    """Takes messages of one session, which it holds."""

    _accepted: Accepted
    _queue_bell: Bell  # as long as it lives the queue isn't idle

    @property
    def session_id(self) -> str:
        return self._accepted.session

    @property
    def locked_until(self) -> datetime:
        return to_date(self._accepted.until)

    async def renew_session(self) -> datetime:
        """As `SessionReceiver.renew_session`."""
        holder = self._accepted.holder
        until = await self._broker.on_queue(
            self._entity, lambda queue, now: queue.sessions.renew(holder, now)
        )
        self._broker.meter.request(Operation.RENEW)
        self._accepted = attrs.evolve(self._accepted, until=until)
        return to_date(until)

    async def renew(self, delivery: Delivery) -> datetime:
        """A message is locked as long as its session: this renews that."""
        return await self.renew_session()

    async def get_state(self) -> bytes | None:
        """As `SessionReceiver.get_state`."""
        holder = self._accepted.holder
        state = await self._broker.on_queue(
            self._entity, lambda queue, now: queue.sessions.state(holder, now)
        )
        self._broker.meter.request(Operation.MANAGE)
        return state

    async def set_state(self, state: bytes | None) -> None:
        """As `SessionReceiver.set_state`."""
        holder = self._accepted.holder
        await self._broker.on_queue(
            self._entity, lambda queue, now: queue.sessions.set_state(holder, state, now)
        )
        self._broker.meter.request(Operation.MANAGE)

    def close(self) -> None:
        """Let the session go, with what is still locked: others may have it soon."""
        release(self._broker, self._entity, self._accepted)
        self._held.clear()

    def _take_from(self, queue: Queue, limit: int, now: Now) -> list[Taken]:
        return queue.sessions.take(self._accepted.holder, limit, self._mode, now)

    def _take_deferred_from(self, queue: Queue, numbers: Sequence[int], now: Now) -> list[Taken]:
        return queue.sessions.take_deferred(self._accepted.holder, numbers, self._mode, now)

    def _settle_on(self, queue: Queue, token: str | None, settlement: Settlement, now: Now) -> None:
        queue.sessions.settle(self._accepted.holder, token, settlement, now)

    def _forget_ended(self) -> None:
        """What is held ends with the session."""


async def accept_session(
    broker: QueueRunner, entity: EntityPath, session: str | None, bell: Bell
) -> Accepted:
    """
    Lock that session, or wait for the next one that has messages. Cancelled, it holds none.

    Raises:
        SessionNotAvailable: somebody holds that one.
    """

    def undo(accepted: Accepted | None) -> None:
        if accepted is not None:
            release(broker, entity, accepted)

    try:
        while True:
            rings = bell.rings(State.ACTIVE)
            accepted = await broker.on_queue(
                entity, lambda queue, now: queue.sessions.accept(session, now), undo=undo
            )
            if accepted is not None:
                broker.meter.request(Operation.MANAGE)
                return accepted
            if bell.rings(State.ACTIVE) == rings:
                await bell.wait(State.ACTIVE)
    except trio.Cancelled:
        bell.ring(State.ACTIVE, 1)  # it may have rung for us: somebody else must look
        raise


def release(broker: QueueRunner, entity: EntityPath, accepted: Accepted) -> None:
    """Let a session go, soon."""
    broker.post_on_queue(entity, lambda queue, now: queue.sessions.release(accepted.holder, now))
