"""
A syphon's drain of a backlog queue whose messages are in sessions, that is received from, too.

A session that the syphon has locked is given to no receiver, at neither side: it is held for no
longer than it takes to move its messages.
"""

import math
from collections.abc import Sequence
from typing import Final, cast

import attrs
import trio

from gateway.capabilities import ReceivesAvailable, SessionReceiver, Sessions
from gateway.domain.backlog import keeps_sessions, owner_of
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.errors import BrokerError, SessionNotAvailable
from gateway.domain.message import Delivery
from gateway.extensions.receive_in_outage.drain import OwnDrain
from gateway.offering import offered, required
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.drained_queue import DrainKind
from gateway.pairing.syphon.mover import Mover
from gateway.ports import Broker, Receiver

SESSIONS: Final = 4  # that are moved at the same time: many have a message or two
IDLE: Final = 0.5  # seconds without a message after which a session is taken for empty


@attrs.define(eq=False, kw_only=True)
class SessionDrain(OwnDrain):
    """Moves the messages of one entity to the primary, session by session."""

    async def run(self) -> BrokerError:
        """As `Drains.run`."""
        required(self.at.source, Sessions)
        failure: BrokerError | None = None

        async def move_sessions() -> None:
            nonlocal failure
            error = await self._move_sessions()
            failure = failure or error
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS):
                nursery.start_soon(move_sessions)
        assert failure is not None, "the sessions are moved until there is an error"
        return failure

    async def _move_sessions(self) -> BrokerError:
        """Move one session after the other; return why no further one can be locked."""
        while True:
            await self.at.pauses.wait_resumed(self.at.queue)
            await self.at.backoffs.wait_until_resumed(self._entity)
            if self._is_away and not await self._is_primary_well():
                continue
            async with trio.open_nursery() as nursery:
                error = await self._start_next(nursery)
            if error is not None and not isinstance(error, SessionNotAvailable):
                return error

    async def _start_next(self, nursery: trio.Nursery) -> BrokerError | None:
        """Lock a session, which a task empties. None also if the queue may not be moved now."""
        error: BrokerError | None = None
        async with trio.open_nursery() as waiting:
            waiting.start_soon(self._cancel_when_suspended, waiting.cancel_scope)
            with self.at.pauses.until_paused(self.at.queue):
                error = await nursery.start(self.at.hold_session, None, self._empty)
            waiting.cancel_scope.cancel()
        return error

    async def _empty(self, receiver: SessionReceiver) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.at.keep_session, receiver, nursery.cancel_scope)
                await self._drain(receiver)
                nursery.cancel_scope.cancel()
        finally:
            self.at.copies.forget_unsent(self._key_of(receiver))

    def _mover(self, receiver: Receiver) -> Mover:
        return self.at.mover(receiver, in_session=True)

    def _message(
        self, receiver: Receiver, delivery: Delivery, unwrapped: Unwrapped, now: float
    ) -> BacklogMessage:
        message = OwnDrain._message(self, receiver, delivery, unwrapped, now)
        message.copy = (self._key_of(receiver), *message.copy[1:])
        return message

    def _key_of(self, receiver: Receiver) -> str:
        return self.at.session_key(cast(SessionReceiver, receiver).session_id)

    async def _receive(self, receiver: Receiver) -> Sequence[Delivery]:
        """The next messages of the session; none, if it is empty or can't be read."""
        if self.at.pauses.is_paused(self.at.queue):
            return ()
        limit = self.at.progress.within_lock(self.at.options.batch, self.at.info.shortest_lock)
        knows = offered(receiver, ReceivesAvailable)
        with trio.move_on_after(IDLE if knows is None else math.inf):
            try:
                return await (receiver.receive if knows is None else knows.receive_available)(limit)
            except BrokerError:
                return ()  # the session is released, or was lost, and is locked again
        return ()


def _none(_label: str, _source: Broker) -> Sequence[EntityPath]:
    """Only the configuration and a list of queues tell their names."""
    return ()


OWN: Final = DrainKind(
    covers=lambda queue: owner_of(queue) is not None,
    queues=_none,
    make=lambda at: SessionDrain(at=at) if keeps_sessions(at.queue) else OwnDrain(at=at),
)
