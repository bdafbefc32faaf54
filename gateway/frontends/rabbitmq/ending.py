"""The end of a client's connection, which waits until its publishes have their verdicts."""

from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import FORCED
from gateway.wire.rabbitmq.frames import method_frame

# Seconds for a client to read the last bytes and to hang up: more than a round trip takes.
_GOODBYE: Final = 2.0


@attrs.define(eq=False)
class Ending:
    """The first end that is asked for is carried out, by `run`."""

    _session: ClientSession
    _publishes: Publishes
    _last: bytes = attrs.field(default=b"", init=False)  # the last frame for the client
    _confirm_wait: float = attrs.field(default=0.0, init=False)  # seconds for the primary's
    _asked: trio.Event = attrs.field(factory=trio.Event, init=False)

    def close(self, code: int, text: str) -> None:
        """Close the connection, once its publishes have their verdicts."""
        close = commands.Connection.Close(
            reply_code=code, reply_text=text[:255], class_id=0, method_id=0
        )
        self._begin_with(method_frame(0, close), self._session.target.slow)

    def close_away(self) -> None:
        """Close it as a broker that shuts down."""
        self.close(FORCED, "CONNECTION_FORCED - the primary can't be reached")

    def close_in_order(self) -> None:
        """Answer the client's `connection.close`, once the pair has its publishes."""
        self._begin_with(method_frame(0, commands.Connection.CloseOk()), 0.0)

    def finish_with(self, frame: bytes = b"") -> None:
        """Let that be the last frame for the client."""
        self._begin_with(frame, 0.0)

    def _begin_with(self, last: bytes, confirm_wait: float) -> None:
        if not self._asked.is_set():
            self._session.is_ending = True
            self._last, self._confirm_wait = last, confirm_wait
            self._asked.set()

    async def run(self) -> None:
        """
        Return some time after the client's last frame, at which the client hangs up; without one,
        when all is written.
        """
        await self._asked.wait()
        with trio.move_on_after(self._confirm_wait):
            await self._publishes.wait_until_confirmed()
        await self._publishes.wait_until_pair_is_done()
        self._session.to_client.put(self._last)
        if self._last:
            await trio.sleep(_GOODBYE)
            return
        with trio.move_on_after(_GOODBYE):
            await self._session.to_client.wait_until_empty()
