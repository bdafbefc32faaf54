"""
Asks whether the primary answers anybody while a request takes long, as a declaration may.

The kernel accepts connections for a frozen broker. The broker itself begins each of them with
`connection.start` (AMQP 0-9-1, 2.2.4), before it asks for rights or counts connections. A broker
without a word is told to the pair as an entity without an answer: that makes the others suspect, so
that their next sends don't wait as long for the same silence, and gives none of them up.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.frontends.rabbitmq.by_pair import WatchesEntities
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER

_GREETING: Final = EntityPath("connection.start")  # stands among the entities for the broker


@attrs.define(eq=False)
class SignOfLife:
    """Asks for all clients of an endpoint, one at a time."""

    _dial: Callable[[], Awaitable[trio.abc.Stream]]
    _states: WatchesEntities
    _patience: float  # seconds for an answer, which is believed for as long
    _door: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: float = attrs.field(default=-math.inf, init=False)
    _is_alive: bool = attrs.field(default=True, init=False)

    async def is_given(self) -> bool:
        """True if the primary has greeted a new connection within the patience."""
        async with self._door:
            if trio.current_time() - self._asked >= self._patience:
                self._is_alive = await self._is_greeted()
                self._asked = trio.current_time()
            return self._is_alive

    async def _is_greeted(self) -> bool:
        probe = self._states.begin(_GREETING)
        with (
            trio.move_on_after(self._patience) as limit,
            suppress(BrokerError, trio.BrokenResourceError),
        ):
            stream = await self._dial()
            try:
                await stream.send_all(PROTOCOL_HEADER)
                return bool(await stream.receive_some())
            finally:
                await trio.aclose_forcefully(stream)
        if limit.cancelled_caught:
            self._states.probe_unanswered(probe)
        return False
