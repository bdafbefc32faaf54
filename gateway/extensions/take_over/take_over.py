"""The `Succession` of gateways that hand their sockets over."""

from collections.abc import Sequence

import attrs

from gateway.app.endpoints import tls_of
from gateway.app.failure import ExitCode, Failure
from gateway.app.given import GivenSockets
from gateway.app.succession import Served, Start, Succession
from gateway.config.endpoints import SERVE
from gateway.extensions.take_over import FLAG
from gateway.extensions.take_over.door import Door, HandOver, open_door
from gateway.extensions.take_over.options import TAKE_OVER
from gateway.extensions.take_over.predecessor import Arrival, Predecessor, find_predecessor
from gateway.ports import Service


@attrs.define(eq=False)
class TakeOver:
    """The running gateway, if this process takes over from it, and the door for the next one."""

    door: Door
    given: GivenSockets | None
    _predecessor: Predecessor | None

    async def wait_free(self) -> None:
        if self._predecessor is not None:
            await self._predecessor.wait_free()

    def services(self, served: Served) -> Sequence[Service]:
        hand_over = HandOver(
            door=self.door,
            listeners=served.listeners,
            state=served.state,
            has_stores=served.has_stores,
            ending=served.ending,
            serving=served.serving,
        )
        if self._predecessor is None:
            return [hand_over]
        self._predecessor.check()
        arrival = Arrival(self._predecessor, served.serving, served.ending.fail)
        return [arrival, hand_over]

    async def freed(self) -> GivenSockets | None:
        self._predecessor = None
        return await self.door.freed()


async def open_succession(start: Start) -> Succession:
    """
    Ask the running gateway for its sockets if a flag says so, and open the door.

    Raises:
        Failure: the running gateway refuses, or the sockets are systemd's, or the door can't be
            opened.
    """
    path, given, predecessor = start.config.of(TAKE_OVER), start.given, None
    if FLAG in start.flags:
        if path is None:
            text = "take_over: is missing; --take-over asks the running gateway at this socket"
            raise Failure(text, ExitCode.WRONG)
        if given is not None:
            text = "take_over: systemd has given this process its sockets (LISTEN_FDS): choose one"
            raise Failure(f"{text} way", ExitCode.WRONG)
        for number in start.config.endpoints_of(SERVE):
            # An error is found before the predecessor does anything.
            tls_of(start.config, number)
        predecessor = await find_predecessor(start.stack, path, start.observer)
        given = None if predecessor is None else predecessor.given
    assert path is not None, "the row has looked"
    door = await open_door(start.stack, path, start.observer)
    return TakeOver(door, given, predecessor)
