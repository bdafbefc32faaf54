"""The base of each session that is made of another one."""

import abc
from datetime import datetime
from typing import NoReturn

from gateway.capabilities import SessionReceiver


class ForwardingSession(abc.ABC):
    """
    The part of a `SessionReceiver` that is about the session itself, passed on to `session`. A
    subclass that changes more overrides the method.
    """

    @property
    @abc.abstractmethod
    def session(self) -> SessionReceiver:
        """The session that has the lock and the state."""

    @property
    def session_id(self) -> str:
        return self.session.session_id

    @property
    def locked_until(self) -> datetime:
        return self.session.locked_until

    async def wait_lost(self) -> NoReturn:
        await self.session.wait_lost()

    async def renew_session(self) -> datetime:
        return await self.session.renew_session()

    async def get_state(self) -> bytes | None:
        return await self.session.get_state()

    async def set_state(self, state: bytes | None) -> None:
        await self.session.set_state(state)
