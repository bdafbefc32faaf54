"""Receives a session's messages whose bodies are in a store."""

from datetime import datetime

import attrs

from gateway.capabilities import SessionReceiver
from gateway.claims.receiver import ClaimedReceiver


@attrs.define(eq=False, kw_only=True)
class ClaimedSession(ClaimedReceiver):
    """A `SessionReceiver` that keeps the session's order, even if a body is late."""

    session: SessionReceiver
    in_order: bool = True

    @property
    def session_id(self) -> str:
        return self.session.session_id

    @property
    def locked_until(self) -> datetime:
        return self.session.locked_until

    async def renew_session(self) -> datetime:
        return await self.session.renew_session()

    async def get_state(self) -> bytes | None:
        return await self.session.get_state()

    async def set_state(self, state: bytes | None) -> None:
        await self.session.set_state(state)
