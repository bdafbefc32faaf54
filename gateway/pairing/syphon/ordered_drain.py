"""
Empties one backlog queue of ordered entities: session by session, each in its order.

A session has the messages of one key, and only the receiver that holds its lock can receive them:
so one syphon at a time moves a key. Messages are sent once those before them were accepted, or are
in the dead letters for certain. If a message can't be moved, its session waits with it, locked,
until its entity resumes: a later message never passes it, and the other sessions go on.

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
from gateway.domain.copies import Step
from gateway.domain.dead_letters import MALFORMED
from gateway.domain.envelope import Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, order_of
from gateway.domain.errors import BrokerError, EntityNotFound, SessionLockLost
from gateway.domain.events.gateway import LeftUntouched, SyphonFailed
from gateway.domain.message import Delivery
from gateway.offering import offered, required
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.drain import PATIENCE, Drain
from gateway.pairing.syphon.mover import LOCK_SHARE, Mover

MOST_SESSIONS: Final = 64  # that are locked at once, also while they wait
MOST_RECEIVED: Final = 100  # messages of a session that are received at once
PAUSE: Final = 1.0  # seconds from a failure to the release of the session
IDLE: Final = 0.5  # seconds without a message after which a session is released


@attrs.define(eq=False, kw_only=True)
class OrderedDrain(Drain):
    """Moves messages from one backlog queue of ordered entities to the primary."""

    most_sessions: int = MOST_SESSIONS
    # The sessions of this drain; a lost one may be locked again before its task has ended.
    _sessions: dict[str, trio.Event] = attrs.field(factory=dict, init=False)

    async def run(self) -> BrokerError:
        """As `Drain.run`."""
        room = trio.Semaphore(self.most_sessions)
        sessions, failures = required(self.source, Sessions), 0
        async with trio.open_nursery() as nursery:
            while True:
                await self.pauses.wait_resumed(self.queue)
                await room.acquire()
                error = await nursery.start(self._run_session, sessions, room)
                if isinstance(error, EntityNotFound):
                    nursery.cancel_scope.cancel()
                    return error
                failures = 0 if error is None else failures + 1
                if error is not None:  # the sessions that are locked go on
                    self.observer.report(SyphonFailed(queue=self.queue, reason=str(error)))
                    delay = self.options.queue_retry.delay(failures, self.redelivery_guard.rng)
                    await trio.sleep(delay)
        raise AssertionError("the queue exists until it doesn't")

    async def _run_session(
        self,
        sessions: Sessions,
        room: trio.Semaphore,
        *,
        task_status: trio.TaskStatus[BrokerError | None],
    ) -> None:
        """Lock the next session and empty it. Starts once it is locked, or with the error."""
        locked = False
        try:
            with trio.CancelScope() as scope:
                async with sessions.open_session(self.queue, None) as receiver:
                    locked = True
                    task_status.started(None)
                    await self._empty(receiver)
                    scope.deadline = trio.current_time() + self.options.attempt_timeout
        except BrokerError as error:
            if not locked:
                task_status.started(error)
        finally:
            room.release()

    async def _empty(self, receiver: SessionReceiver) -> None:
        session = receiver.session_id
        while session in self._sessions:
            await self._sessions[session].wait()
        over = self._sessions[session] = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_session, receiver, nursery.cancel_scope)
                await self._move_session(receiver, self._mover(receiver))
                nursery.cancel_scope.cancel()
        finally:
            self.copies.forget_unsent(self._key_of(session))
            self._sessions.pop(session, None)
            over.set()

    async def _move_session(self, receiver: SessionReceiver, mover: Mover) -> None:
        """Return when the session is empty, or can't be read any more."""
        while True:
            await self.pauses.wait_resumed(self.queue)
            deliveries: Sequence[Delivery] = ()
            with trio.move_on_after(IDLE):
                try:
                    deliveries = await receiver.receive(min(MOST_RECEIVED, self.options.batch))
                except BrokerError:
                    await trio.sleep(PAUSE)
                    return  # the session is released, or was lost, and is locked again
            if not deliveries:
                return
            self.progress.note_received()
            if not await self._move(receiver, mover, deliveries):
                return

    async def _move(
        self, receiver: SessionReceiver, mover: Mover, deliveries: Sequence[Delivery]
    ) -> bool:
        """Move these messages in their order. False: the session must be left."""
        received, session = trio.current_time(), self._key_of(receiver.session_id)
        run: list[BacklogMessage] = []
        for delivery in deliveries:
            try:
                unwrapped = self._open_in(receiver.session_id, delivery)
            except NotOurs as error:
                await self._move_run(mover, run)
                reason = str(error)
                self.observer.report(LeftUntouched(queue=self.queue, messages=1, reason=reason))
                await trio.sleep(self._info.longest_lock)
                return False
            except Malformed as error:
                if await self._move_run(mover, run):
                    await mover.dead_letter(delivery, MALFORMED, str(error))
                if mover.unconfirmed:
                    return False
                run = []
            else:
                message = BacklogMessage.of(self.queue, delivery, unwrapped, received)
                message.copy = (session, *message.copy[1:])
                run.append(message)
        return await self._move_run(mover, run)

    async def _move_run(self, mover: Mover, messages: Sequence[BacklogMessage]) -> bool:
        """
        Return when all were moved or dead-lettered, however long that takes. False: a dead letter
        wasn't confirmed, so that its message may still be in front of the others.
        """
        while messages:
            claimed = []
            for message in messages:
                if mover.claim(message) is Step.COMPLETE:
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
            if messages:
                await self.backoffs.wait_until_resumed(entity)
        return True

    def _open_in(self, session: str, delivery: Delivery) -> Unwrapped:
        """As `_open`, of a message in that session."""
        unwrapped = self._open(delivery)
        if order_of(delivery.message) != session:
            raise Malformed("the message has no place in the order of its session")
        return unwrapped

    async def _keep_session(self, receiver: SessionReceiver, scope: trio.CancelScope) -> None:
        """Renew the session's lock. If it was lost, `scope` is cancelled."""
        while True:
            left = (receiver.locked_until - self.clock()).total_seconds()
            usual = self._info.shortest_lock
            await trio.sleep(max(min(usual, left) / LOCK_SHARE, 0.1))
            with trio.move_on_after(PATIENCE * self.options.attempt_timeout):
                try:
                    await receiver.renew_session()
                except SessionLockLost:
                    scope.cancel()
                except BrokerError:
                    pass  # a receive tells whether the session is lost

    def _mover(self, receiver: SessionReceiver) -> Mover:  # type: ignore[override]
        mover = super()._mover(receiver)
        mover.in_session = True
        mover.one_by_one = offered(self.primary, Sessions) is None
        return mover

    def _key_of(self, session: str) -> str:
        """The key of a session's copies, as of a queue's."""
        return f"{self.queue.key}\n{session}"
