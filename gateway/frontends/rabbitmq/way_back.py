"""Without a connection to the primary: what becomes of the client's, and how it returns."""

from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.login import LoginFailed
from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import FORCED
from gateway.wire.rabbitmq.frames import ProtocolError

_PAUSE: Final = 1.0  # seconds between two dials of one gateway: a broker takes five to start
_UNREACHED: Final = (
    BrokerError,
    ProtocolError,
    trio.TooSlowError,
    trio.BrokenResourceError,
    OSError,
)


@attrs.define(eq=False)
class WayBack:
    _session: ClientSession
    _publishes: Publishes
    _requests: Requests
    _ending: Ending

    def lose(self) -> None:
        """The connection upstream is lost: give the pair its publishes, and end what can't last."""
        session = self._session
        session.to_primary.clear()
        must_end = session.topology.is_too_large or any(
            channel.is_transacted for channel in session.channels.values()
        )
        session.topology.lose()
        session.down.lose()
        self._publishes.lose()
        self._requests.lose()
        if session.is_closing:
            self._ending.close_in_order()
        elif must_end:
            self._ending.close_away()

    async def dial_again(self) -> trio.abc.Stream:
        """Return a connection to the primary that is logged in."""
        session = self._session
        while True:
            async with session.target.door:
                try:
                    stream = await self._dial()
                except _UNREACHED:
                    await trio.sleep(_PAUSE)
                    continue
                except LoginFailed as error:
                    session.target.logins.forget(session.login)
                    self._ending.close(FORCED, f"CONNECTION_FORCED - {error}")
                    await trio.sleep_forever()
            session.to_primary.clear()  # of heartbeats for nobody
            return stream

    async def _dial(self) -> trio.abc.Stream:
        target = self._session.target
        with trio.fail_after(target.slow * 2):
            stream = await target.dial()
            try:
                await self._session.login.repeat(stream)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            return stream
