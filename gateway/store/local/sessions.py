"""Receives from the sessions of a namespace that Pairgate keeps itself."""

from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import attrs
import trio

from gateway.capabilities import TransactedState
from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Settlement
from gateway.store.engine.deliveries import TakenRow
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import State
from gateway.store.engine.session_rules import AcceptedSession
from gateway.store.local.notifier import Notifier
from gateway.store.local.receiver import LocalReceiver, QueueRunner


@attrs.define(eq=False, kw_only=True)
class LocalSessionReceiver(LocalReceiver):
    """Receives messages of one session, which it has locked."""

    _accepted: AcceptedSession
    _queue_notifier: Notifier  # the queue isn't idle as long as this reference exists

    @property
    def session_id(self) -> str:
        return self._accepted.session

    @property
    def locked_until(self) -> datetime:
        return to_date(self._accepted.until)

    async def wait_lost(self) -> NoReturn:
        """As `SessionReceiver.wait_lost`."""
        holder = self._accepted.holder
        while True:
            end = await self._broker.on_queue(
                self._entity, lambda queue, now: queue.sessions.ends_at(holder, now)
            )
            await trio.sleep_until(end)

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
        """Renew the session's lock: a message is locked as long as its session."""
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

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """As `EnlistsState.enlist_state`: the lock is checked when the transaction is committed."""
        return TransactedState(self, state)

    def set_state_in(self, namespace: Namespace, state: bytes | None, now: Now) -> None:
        """
        Set the session's state within a step of a transaction.

        Raises:
            BrokerError: as `set_state`; the step must be undone.
        """
        queue = namespace.find_or_create(self._entity, now)
        queue.sessions.set_state(self._accepted.holder, state, now)

    def close(self) -> None:
        """Release the session and its locked messages: other receivers may have them soon."""
        release(self._broker, self._entity, self._accepted)
        self._held.clear()

    def _receive_from(self, queue: Queue, limit: int, now: Now) -> list[TakenRow]:
        return queue.sessions.receive(self._accepted.holder, limit, self._mode, now)

    def _receive_deferred_from(
        self, queue: Queue, numbers: Sequence[int], now: Now
    ) -> list[TakenRow]:
        return queue.sessions.receive_deferred(self._accepted.holder, numbers, self._mode, now)

    def _settle_on(self, queue: Queue, token: str | None, settlement: Settlement, now: Now) -> None:
        queue.sessions.settle(self._accepted.holder, token, settlement, now)


async def accept_session(
    broker: QueueRunner, entity: EntityPath, session: str | None, notifier: Notifier
) -> AcceptedSession:
    """
    Lock the named session, or wait for the next session with messages. If cancelled, no session is
    locked.

    Raises:
        SessionNotAvailable: another receiver has locked the named session.
    """

    def undo(accepted: AcceptedSession | None) -> None:
        if accepted is not None:
            release(broker, entity, accepted)

    async def attempt() -> AcceptedSession | None:
        return await broker.on_queue(
            entity, lambda queue, now: queue.sessions.accept(session, now), undo=undo
        )

    accepted = await notifier.find(State.ACTIVE, attempt)
    assert accepted is not None, "it was found"
    broker.meter.request(Operation.MANAGE)
    return accepted


def release(broker: QueueRunner, entity: EntityPath, accepted: AcceptedSession) -> None:
    """Release a session soon, without waiting."""
    broker.post_on_queue(entity, lambda queue, now: queue.sessions.release(accepted.holder, now))
