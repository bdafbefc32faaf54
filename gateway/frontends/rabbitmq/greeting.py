"""The login of a client that connects in an outage: the gateway speaks for the primary."""

from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.frames import METHOD, method_frame
from gateway.wire.rabbitmq.relayed import RelayedFrame

_OPEN_OK: Final = RelayedFrame(METHOD, 0, method_frame(0, commands.Connection.OpenOk()))


@attrs.define(eq=False)
class Greeting:
    _session: ClientSession
    _ending: Ending

    @property
    def is_possible(self) -> bool:
        """True if the primary is known, and the client has heard nothing from it yet."""
        session = self._session
        return not (session.is_greeted or session.login.start) and bool(session.target.logins.start)

    def begin(self) -> None:
        """Greet the client."""
        self._session.is_greeted = True
        self._session.to_primary.clear()
        self._say(self._session.target.logins.start)

    def handle(self, frame: RelayedFrame) -> None:
        """Answer a step of the login, which the session has read."""
        session = self._session
        match frame.method():
            case commands.Connection.StartOk():
                self._say(session.target.logins.tune)
            case commands.Connection.Open():
                if session.target.logins.knows(session.login, trio.current_time()):
                    self._say(_OPEN_OK)
                else:
                    self._ending.close_away()
            case commands.Connection.Close():
                self._ending.close_in_order()

    def _say(self, frame: RelayedFrame | None) -> None:
        """Send the client a frame of the primary's."""
        assert frame is not None, "a login was recorded"
        self._session.to_client.put(self._session.login.from_primary(frame))
