"""Sessions of a sharded queue: each is in one shard, which its id leads to."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.brokers.joined.sequence import inward
from gateway.brokers.joined.session import JoinedSession
from gateway.brokers.joined.session_names import first_sessions
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import (
    Enlists,
    EnlistsState,
    SessionReceiver,
    Sessions,
    TransactedSettlement,
    TransactedState,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, ReceiveMode, Settlement
from gateway.extensions.sharding.places import elsewhere
from gateway.extensions.sharding.table import ShardedQueue
from gateway.offering import required

_MOST_LISTED: Final = 1000  # of one page


@asynccontextmanager
async def open_sharded_session(
    sessions: Sessions,
    queue: ShardedQueue,
    entity: EntityPath,
    session_id: str | None,
    mode: ReceiveMode,
) -> AsyncIterator[SessionReceiver]:
    """As `Sessions.open_session`, of the shard that has the session; without an id, of any."""
    if session_id is not None:
        number = await shard_with(sessions, queue, entity, session_id)
        async with sessions.open_session(entity.shard(number), session_id, mode) as inner:
            yield _outside(inner, queue, entity, number)
        return
    search = _Search(sessions=sessions, queue=queue, entity=entity, mode=mode)
    async with TaskScope() as scope:
        for number in queue.numbers:
            scope.nursery.start_soon(search.wait_in, number)
        yield await search.first_session()


async def list_sharded_sessions(
    sessions: Sessions,
    queue: ShardedQueue,
    entity: EntityPath,
    updated_since: datetime | None,
    skip: int,
    top: int,
) -> Sequence[str]:
    """As `Sessions.list_sessions`, of all shards; by date, the order holds in each shard."""
    found: list[str] = []
    for number in queue.numbers:
        found += await first_sessions(
            sessions, entity.shard(number), skip + top, updated_since=updated_since
        )
    if updated_since is None:
        found.sort()
    return list(dict.fromkeys(found))[skip : skip + top]


async def shard_with(
    sessions: Sessions, queue: ShardedQueue, entity: EntityPath, session_id: str
) -> int:
    """
    The shard of the session: a draining shard as long as it has messages of the session, then that
    of its id.
    """
    for former in queue.former_shards_of(session_id):
        if await _has_session(sessions, entity.shard(former), session_id):
            return former
    return queue.shard_of(session_id)


async def _has_session(sessions: Sessions, shard: EntityPath, session_id: str) -> bool:
    seen = 0
    while page := await sessions.list_sessions(shard, skip=seen, top=_MOST_LISTED):
        if session_id in page:
            return True
        seen += len(page)  # a namespace may return less than `top` before the last page
    return False


@attrs.define(eq=False, kw_only=True)
class _Search:
    """Waits for a session in all shards at once, and keeps the first."""

    sessions: Sessions
    queue: ShardedQueue
    entity: EntityPath
    mode: ReceiveMode
    _failed: int = 0  # shards
    _session: SessionReceiver | None = None
    _error: BrokerError | None = None
    _over: trio.Event = attrs.field(factory=trio.Event)
    _scopes: list[trio.CancelScope] = attrs.field(factory=list)

    async def first_session(self) -> SessionReceiver:
        """
        Return the first session.

        Raises:
            BrokerError: no shard can be asked.
        """
        await self._over.wait()
        if self._session is not None:
            return self._session
        assert self._error is not None, "each shard has failed"
        raise self._error

    async def wait_in(self, number: int) -> None:
        """Lock a session of one shard, and hold it if it is the first, until cancelled."""
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                opened = self.sessions.open_session(self.entity.shard(number), None, self.mode)
                async with opened as session:
                    if self._session is not None:
                        return
                    self._session = _outside(session, self.queue, self.entity, number)
                    for each in self._scopes:
                        if each is not scope:
                            each.cancel()
                    self._over.set()
                    await trio.sleep_forever()
            except BrokerError as error:
                self._error = self._error or error
                self._failed += 1
                if self._failed == len(self.queue.numbers):
                    self._over.set()


def _outside(
    inner: SessionReceiver, queue: ShardedQueue, entity: EntityPath, number: int
) -> SessionReceiver:
    if not number:
        return inner
    in_primary = queue.rule.is_in_primary(number)
    return ShardedSession(inner=inner, entity=entity, place=number, is_in_primary=in_primary)


@attrs.frozen(eq=False, kw_only=True)
class ShardedSession(JoinedSession):
    """A `SessionReceiver` of one shard, whose sequence numbers are those of the sharded queue."""

    entity: EntityPath
    is_in_primary: bool

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Enlists.enlist`; only a shard in the primary can be settled so."""
        if not self.is_in_primary:
            raise elsewhere(self.entity.shard(self.place))
        return required(self.inner, Enlists).enlist(inward(delivery), settlement)

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """As `EnlistsState.enlist_state`, for a shard in the primary."""
        if not self.is_in_primary:
            raise elsewhere(self.entity.shard(self.place))
        return required(self.inner, EnlistsState).enlist_state(state)
