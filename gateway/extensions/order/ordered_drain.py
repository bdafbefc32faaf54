"""
Empties one backlog queue of ordered entities: session by session, each in its order.

A session has the messages of one key, and only the receiver that holds its lock can receive them:
so one syphon at a time moves a key. Messages are sent once those before them were accepted, or are
in the dead letters for certain. If a message can't be moved, its session waits with it, so that
a later message never passes it, and the other sessions go on. Half of the drain's sessions may wait
locked. A further one is released, and isn't locked again while its entity is suspended: as the one
with the oldest message would be locked first, the others are then locked by their names.

A primary that has sessions itself (Service Bus, a store of ours) accepts a batch as a whole. Any
other one gets one message at a time, as it may accept a later message of a batch, and refuse an
earlier one.

A syphon that has lost a session's lock may still send a message that another syphon moves, too.
Each of the two sends the session's messages in their order, from the oldest that is left; so a
message may arrive twice, and no first arrival is out of order.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import SessionReceiver, Sessions
from gateway.domain.bounded import Bounded
from gateway.domain.copies import CopyStep
from gateway.domain.dead_letters import MALFORMED
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, order_of
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    SessionNotAvailable,
)
from gateway.domain.events.gateway import SyphonFailed
from gateway.domain.message import Delivery
from gateway.extensions.order.queues import is_ordered_queue, ordered_queues
from gateway.offering import offered, required
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.drained_queue import PATIENCE, DrainedQueue, DrainKind
from gateway.pairing.syphon.mover import Mover
from gateway.ports import Broker

MOST_SESSIONS: Final = 64  # that are locked at once; half of them may wait
MOST_RECEIVED: Final = 100  # messages of a session that are received at once
MOST_RELEASED: Final = 10_000  # sessions; beyond it the first is forgotten, and locked early
PAGE: Final = 100  # names of sessions per request
SEARCH_PAUSE: Final = 1.0  # seconds after a page without a session to lock
PAUSE: Final = 1.0  # seconds from a failure to the release of the session
IDLE: Final = 0.5  # seconds without a message after which a session is released


@attrs.frozen
class _ReleasedSession:
    """A session that was released because its first message can't be moved now."""

    entity: EntityPath | None  # while it is suspended; None: not known
    until: float = 0.0  # the session isn't locked again before that time


@attrs.define(eq=False, kw_only=True)
class OrderedDrain:
    """Moves messages from one backlog queue of ordered entities to the primary."""

    at: DrainedQueue
    most_sessions: int = MOST_SESSIONS
    # The sessions of this drain; a lost one may be locked again before its task has ended.
    _sessions: dict[str, trio.Event] = attrs.field(factory=dict, init=False)
    _waiting: int = attrs.field(default=0, init=False)  # sessions, until their entity resumes
    _released: Bounded[str, _ReleasedSession] = attrs.field(init=False)
    _listed: int = attrs.field(default=0, init=False)  # sessions, in the search that goes on

    @_released.default
    def _none_released(self) -> Bounded[str, _ReleasedSession]:
        return Bounded(MOST_RELEASED)

    async def run(self) -> BrokerError:
        """As `Drains.run`."""
        room = trio.Semaphore(self.most_sessions)
        sessions, failures = required(self.at.source, Sessions), 0
        async with trio.open_nursery() as nursery:
            while True:
                found = False
                for wanted in await self._next_sessions(sessions):
                    await self.at.pauses.wait_resumed(self.at.queue)
                    await room.acquire()
                    if wanted is not None and not self._may_lock(wanted):
                        room.release()
                        continue
                    error = await nursery.start(self._run_session, wanted, room)
                    if isinstance(error, EntityNotFound):
                        nursery.cancel_scope.cancel()
                        return error
                    if isinstance(error, SessionNotAvailable):  # another syphon moves it
                        continue
                    found = True
                    failures = 0 if error is None else failures + 1
                    if error is not None:  # the sessions that are locked go on
                        self._report(error)
                        retry, rng = self.at.options.queue_retry, self.at.redelivery_guard.rng
                        await trio.sleep(retry.delay(failures, rng))
                if not found:
                    await trio.sleep(SEARCH_PAUSE)
        raise AssertionError("the queue exists until it doesn't")

    async def _next_sessions(self, sessions: Sessions) -> Sequence[str | None]:
        """
        The sessions to lock next; None: the one with the oldest message, whichever it is.

        While sessions are released because their entities are suspended, those with the oldest
        messages are probably among them, so the others are searched, a page at a time.
        """
        if not self._is_any_released():
            self._listed = 0
            return (None,)
        names: Sequence[str] = ()
        with trio.move_on_after(PATIENCE * self.at.options.attempt_timeout):
            try:
                names = await sessions.list_sessions(self.at.queue, skip=self._listed, top=PAGE)
            except BrokerError as error:
                self._report(error)
        self._listed = self._listed + PAGE if len(names) == PAGE else 0
        return [each for each in names if self._may_lock(each)]

    def _is_any_released(self) -> bool:
        now = trio.current_time()
        if any(each.until > now for each in self._released.values()):
            return True
        entities = {each.entity for each in self._released.values()}
        return any(each is not None and self.at.backoffs.is_suspended(each) for each in entities)

    def _may_lock(self, session: str) -> bool:
        return session not in self._sessions and not self._is_barred(session)

    def _is_barred(self, session: str) -> bool:
        """True if the session was released, and its first message still can't be moved."""
        released = self._released.get(session)
        if released is None:
            return False
        if released.entity is not None and self.at.backoffs.is_suspended(released.entity):
            return True
        return released.until > trio.current_time()

    async def _run_session(
        self,
        wanted: str | None,
        room: trio.Semaphore,
        *,
        task_status: trio.TaskStatus[BrokerError | None],
    ) -> None:
        """Lock that session, or any, and empty it. Starts once it is locked, or with the error."""
        try:
            await self.at.hold_session(wanted, self._empty, task_status=task_status)
        finally:
            room.release()

    async def _empty(self, receiver: SessionReceiver) -> None:
        session = receiver.session_id
        while session in self._sessions:
            await self._sessions[session].wait()
        if self._is_barred(session):  # locked as the one with the oldest message
            return
        over = self._sessions[session] = trio.Event()
        self._released.pop(session, None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.at.keep_session, receiver, nursery.cancel_scope)
                mover = self.at.mover(receiver, in_session=True)
                await self._move_session(receiver, mover)
                nursery.cancel_scope.cancel()
        finally:
            self.at.copies.forget_unsent(self.at.session_key(session))
            self._sessions.pop(session, None)
            over.set()

    async def _move_session(self, receiver: SessionReceiver, mover: Mover) -> None:
        """Return when the session is empty or can't be read any more, or the queue is paused."""
        while not self.at.pauses.is_paused(self.at.queue):
            deliveries: Sequence[Delivery] = ()
            failed = False
            with trio.move_on_after(IDLE):
                try:
                    deliveries = await receiver.receive(min(MOST_RECEIVED, self.at.options.batch))
                except BrokerError:
                    failed = True
            if failed:
                await trio.sleep(PAUSE)
                return  # the session is released, or was lost, and is locked again
            if not deliveries:
                return
            self.at.progress.record_received()
            if not await self._move(receiver, mover, deliveries):
                return

    async def _move(
        self, receiver: SessionReceiver, mover: Mover, deliveries: Sequence[Delivery]
    ) -> bool:
        """Move these messages in their order. False: the session must be left."""
        received, session = trio.current_time(), receiver.session_id
        run: list[BacklogMessage] = []
        for delivery in deliveries:
            try:
                unwrapped = self._open_in(session, delivery)
            except NotOurs as error:
                if await self._move_run(mover, run, session):
                    self.at.report_untouched(1, str(error))
                    until = trio.current_time() + self.at.info.longest_lock
                    self._released[session] = _ReleasedSession(None, until)
                return False
            except Malformed as error:
                if not await self._move_run(mover, run, session):
                    return False
                await mover.dead_letter(delivery, MALFORMED, str(error))
                if mover.unconfirmed:
                    await trio.sleep(PAUSE)
                    return False
                run = []
            else:
                message = BacklogMessage.of(self.at.queue, delivery, unwrapped, received)
                message.copy = (self.at.session_key(session), *message.copy[1:])
                run.append(message)
        return await self._move_run(mover, run, session)

    async def _move_run(
        self, mover: Mover, messages: Sequence[BacklogMessage], session: str
    ) -> bool:
        """
        Return when all were moved or dead-lettered, however long that takes. False: the session
        must be left, as too many others wait, as the queue is paused, or as a dead letter wasn't
        confirmed, so that its message may still be in front of the others.
        """
        while messages:
            claimed = []
            for message in messages:
                if mover.claim(message) is CopyStep.COMPLETE:
                    await mover.complete(message.delivery, message.copy)
                else:
                    claimed.append(message)
            if not claimed:
                break
            entity = claimed[0].unwrapped.entity
            messages = await mover.move(entity, claimed)
            if mover.unconfirmed:
                await trio.sleep(PAUSE)
                return False
            if messages and not await self._wait_until_resumed(entity, session):
                return False
        return True

    async def _wait_until_resumed(self, entity: EntityPath, session: str) -> bool:
        """
        Wait with the session locked. False: it must be left, as too many wait, or as the queue is
        paused.
        """
        if self._waiting >= self.most_sessions // 2:
            self._released[session] = _ReleasedSession(entity)
            return False
        self._waiting += 1
        try:
            with self.at.pauses.until_paused(self.at.queue) as waiting:
                await self.at.backoffs.wait_until_resumed(entity)
        finally:
            self._waiting -= 1
        return not waiting.cancelled_caught

    def _open_in(self, session: str, delivery: Delivery) -> Unwrapped:
        """As `DrainedQueue.open`, of a message in that session."""
        unwrapped = self.at.open(delivery)
        if order_of(delivery.message) != session:
            raise Malformed("the message has no place in the order of its session")
        return unwrapped

    def _report(self, error: BrokerError) -> None:
        self.at.observer.report(SyphonFailed(queue=self.at.queue, reason=str(error)))


def _queues(label: str, source: Broker) -> Sequence[EntityPath]:
    """None of a source without sessions, which can't have such queues."""
    return () if offered(source, Sessions) is None else ordered_queues(label)


ORDERED: Final = DrainKind(
    covers=is_ordered_queue,
    queues=_queues,
    make=lambda queue: OrderedDrain(at=queue),
)
