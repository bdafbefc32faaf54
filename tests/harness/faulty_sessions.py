"""A `FaultyBroker` with the sessions of its `inner`, and with a way to look into its queues."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NoReturn

import attrs
import trio

from gateway.capabilities import EnlistsState, Peeks, SessionReceiver, Sessions, TransactedState
from gateway.domain.entity import EntityPath
from gateway.domain.errors import SessionLockLost
from gateway.domain.message import Delivery, ReceiveMode
from gateway.offering import required
from tests.harness.faults import Call, FaultyBroker, FaultyReceiver, Operation


@attrs.define(eq=False, kw_only=True)
class FaultySessionsBroker(FaultyBroker):
    """As `FaultyBroker`; a session that a dead client holds stays locked until its lock ends."""

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        call = Call(operation=Operation.MANAGE, entity=entity)
        peeks = required(self.inner, Peeks)
        return await self.operate(
            call, lambda: peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        )

    @asynccontextmanager
    async def open_session(
        self, entity: EntityPath, session_id: str | None, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[SessionReceiver]:
        self.check_up()
        left = trio.Event()

        async def lock() -> SessionReceiver:
            # `home` may have closed by the cancellation that this task hasn't seen yet.
            await trio.lowlevel.checkpoint_if_cancelled()
            return await self.home.start(self._hold_session, entity, session_id, mode, left)

        try:
            call = Call(operation=Operation.RECEIVE, entity=entity)
            inner = await self.operate(call, lock)
        except BaseException:
            left.set()
            raise
        receiver = FaultySession(
            broker=self, entity=entity, inner=inner, life=self.lives, left=left
        )
        with self._used(receiver, left):
            yield receiver

    async def _hold_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode,
        left: trio.Event,
        *,
        task_status: trio.TaskStatus[SessionReceiver],
    ) -> None:
        sessions = required(self.inner, Sessions)
        async with sessions.open_session(entity, session_id, mode) as inner:
            task_status.started(inner)
            await left.wait()

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        sessions = required(self.inner, Sessions)
        return await sessions.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)


@attrs.define(eq=False, kw_only=True)
class FaultySession(FaultyReceiver):
    """The receiver of one session."""

    inner: SessionReceiver

    @property
    def session_id(self) -> str:
        return self.inner.session_id

    @property
    def locked_until(self) -> datetime:
        return self.inner.locked_until

    async def wait_lost(self) -> NoReturn:
        await self.inner.wait_lost()

    async def renew_session(self) -> datetime:
        self._check_same_life(SessionLockLost("locks don't survive a restart"))
        call = Call(operation=Operation.RENEW, entity=self.entity)
        return await self.broker.operate(call, self.inner.renew_session)

    async def get_state(self) -> bytes | None:
        self._check_same_life(SessionLockLost("locks don't survive a restart"))
        call = Call(operation=Operation.MANAGE, entity=self.entity)
        return await self.broker.operate(call, self.inner.get_state)

    async def set_state(self, state: bytes | None) -> None:
        self._check_same_life(SessionLockLost("locks don't survive a restart"))
        call = Call(operation=Operation.MANAGE, entity=self.entity)
        await self.broker.operate(call, lambda: self.inner.set_state(state))

    def enlist_state(self, state: bytes | None) -> TransactedState:
        self._check_same_life(SessionLockLost("locks don't survive a restart"))
        return required(self.inner, EnlistsState).enlist_state(state)
