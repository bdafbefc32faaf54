"""
The login of a client that connects in an outage: the gateway speaks for the primary, as that did to
other clients. To a process that hasn't met the primary the endpoint's own words must do.
"""

from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import Busy
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.login import MAX_CHANNELS
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import RESOURCE_ERROR, text_of_reply
from gateway.wire.rabbitmq.frames import METHOD, method_frame
from gateway.wire.rabbitmq.relayed import RelayedFrame

# RabbitMQ 3.10 and 4 say the same by default. Clients read product and version before they ask for
# more; a policy can judge PLAIN alone.
_VERSION: Final = "3.10.0"
_CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "consumer_priorities",
    "direct_reply_to",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
)
_START: Final = commands.Connection.Start(
    server_properties={
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "product": "RabbitMQ",
        "version": _VERSION,
    },
    mechanisms="PLAIN",
    locales="en_US",
)
_MAX_FRAME: Final = 131_072  # bytes
_HEARTBEAT: Final = 60  # seconds
_TUNE: Final = commands.Connection.Tune(MAX_CHANNELS, _MAX_FRAME, _HEARTBEAT)


def _frame_of(method: base.Frame) -> RelayedFrame:
    return RelayedFrame(METHOD, 0, method_frame(0, method))


_OPEN_OK: Final = _frame_of(commands.Connection.OpenOk())


@attrs.define(eq=False)
class Greeting:
    _session: ClientSession
    _ending: Ending

    @property
    def is_possible(self) -> bool:
        """True if a login can be judged here, and the client has heard nothing yet."""
        session, target = self._session, self._session.target
        is_new = not (session.is_greeted or session.login.start)
        return is_new and (target.logins.start is not None or target.policies.exist)

    def begin(self) -> None:
        """Greet the client."""
        self._session.is_greeted = True
        self._session.to_primary.clear()
        self._say(self._session.target.logins.start or _frame_of(_START))

    def handle(self, frame: RelayedFrame) -> None:
        """Answer a step of the login, which the session has read."""
        session = self._session
        match frame.method():
            case commands.Connection.StartOk():
                self._say(session.target.logins.tune or _frame_of(_TUNE))
            case commands.Connection.Open():
                self._judge()
            case commands.Connection.Close():
                self._ending.close_in_order()

    def _judge(self) -> None:
        login, target = self._session.login, self._session.target
        try:
            is_known = target.logins.knows(login, trio.current_time())
            is_good = is_known or target.policies.admit(login)
        except Busy as error:
            self._ending.close(RESOURCE_ERROR, text_of_reply(RESOURCE_ERROR, str(error)))
            return
        if is_good:
            self._say(_OPEN_OK)
        else:
            self._ending.close_away()

    def _say(self, frame: RelayedFrame) -> None:
        """Send the client a frame, as if it were the primary's."""
        self._session.to_client.put(self._session.login.from_primary(frame))
