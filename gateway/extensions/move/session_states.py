"""Takes the states of sessions to the side that their queue moves to."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from gateway.capabilities import Sessions
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.extensions.move.stages import BEGINNING
from gateway.offering import offered
from gateway.ports import Broker

PAGE: Final = 100  # as many as Service Bus lists at most


@asynccontextmanager
async def moved_states(source: Broker, target: Broker, queue: EntityPath) -> AsyncIterator[None]:
    """
    A context in which the target has the states of the source's sessions, and nobody can change
    these: each session that has one is locked at the source. Without sessions nothing is done.

    Raises:
        SessionNotAvailable: a receiver holds a session.
        BrokerError: a side doesn't answer.
    """
    here, there = offered(source, Sessions), offered(target, Sessions)
    async with AsyncExitStack() as held:
        if here is not None and there is not None:
            for name in await _sessions_with_state(here, queue):
                session = await held.enter_async_context(here.open_session(queue, name))
                async with there.open_session(queue, name) as other:
                    await other.set_state(await session.get_state())
        yield


async def _sessions_with_state(sessions: Sessions, queue: EntityPath) -> Sequence[str]:
    found: list[str] = []
    while True:
        try:
            page = await sessions.list_sessions(
                queue, updated_since=BEGINNING, skip=len(found), top=PAGE
            )
        except InvalidRequest:
            return ()  # the queue requires no sessions
        if not page:
            return found
        found += page
