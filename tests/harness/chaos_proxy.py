"""
A TCP proxy that harms connections on purpose, so that clients of it can be tested.

A fault is one small class; the proxy asks it for every chunk of bytes, so a new fault also hits
connections that are open. It may break a connection or keep bytes back; only `Corrupt` changes
them.
"""

import random
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from gateway.demo.ports import free_port

READ_AHEAD: Final = 64  # pieces of answers per connection that are read while a fault holds another
HEARTBEATS: Final = (
    b"\0\0\0\x08\x02\0\0\0",  # AMQP 1.0: an empty frame
    b"\x08\0\0\0\0\0\0\xce",  # AMQP 0-9-1
)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close sends RST instead of FIN


@attrs.define(eq=False)
class Link:
    """A client's connection through the proxy. `server` is None until it was dialled."""

    proxy: "ChaosProxy"
    client: trio.SocketStream
    server: trio.SocketStream | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    passed_up: int = 0
    passed_down: int = 0
    arrived: float = 0.0  # when the server sent the bytes that a fault holds; Trio's clock

    async def send_up(self, data: bytes) -> None:
        assert self.server is not None
        await self.server.send_all(data)
        self.passed_up += len(data)

    async def send_down(self, data: bytes) -> None:
        await self.client.send_all(data)
        self.passed_down += len(data)

    def reset(self) -> None:
        """End both sides with RST."""
        for stream in (self.client, self.server):
            if stream is not None and stream.socket.fileno() != -1:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.scope.cancel()

    def close(self) -> None:
        """End both sides in the ordinary way, with FIN."""
        self.scope.cancel()


@attrs.frozen
class Pass:
    """No fault. The other faults override the methods that they need."""

    async def opened(self, link: Link) -> None:
        """A client has connected; the server has not been dialled yet."""
        await trio.lowlevel.checkpoint()

    async def up(self, link: Link, data: bytes) -> None:
        """Client to server."""
        await link.send_up(data)

    async def down(self, link: Link, data: bytes) -> None:
        """Server to client."""
        await link.send_down(data)


@attrs.frozen
class Refuse(Pass):
    """Refuses connections, and resets open ones at their next byte."""

    async def opened(self, link: Link) -> None:
        await trio.lowlevel.checkpoint()
        link.reset()

    async def up(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        link.reset()


@attrs.frozen
class ResetAtOnce(Pass):
    """Resets connections when they are made, and counts them."""

    made: list[Link] = attrs.field(factory=list, eq=False)

    async def opened(self, link: Link) -> None:
        await trio.lowlevel.checkpoint()
        self.made.append(link)
        link.reset()


@attrs.frozen
class ResetBefore(Pass):
    """Connecting works, then the request is answered with a reset and doesn't reach the server."""

    async def up(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        link.reset()


@attrs.frozen
class ResetDuring(Pass):
    """The server gets the client's first `after` bytes, then a reset."""

    after: int

    async def up(self, link: Link, data: bytes) -> None:
        await link.send_up(data[: self.after])
        link.reset()


@attrs.frozen
class ResetAfter(Pass):
    """The answer arrives, and then a reset: the connection can't be used again."""

    async def down(self, link: Link, data: bytes) -> None:
        await link.send_down(data)
        await trio.sleep(0.01)  # a reset takes unread bytes with it
        link.reset()


@attrs.frozen
class SwallowResponse(Pass):
    """The server has executed the request, and the client is reset instead of answered."""

    async def down(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        link.reset()


@attrs.frozen
class Truncate(Pass):
    """The client gets the first `after` bytes of the answer, then an ordinary end."""

    after: int

    async def down(self, link: Link, data: bytes) -> None:
        await link.send_down(data[: self.after])
        link.close()


@attrs.frozen
class BlackHole(Pass):
    """Bytes vanish in both directions, without an error for either side."""

    async def up(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def down(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()


@attrs.frozen
class DeadLinks(Pass):
    """
    Of the answers on these connections only heartbeats pass, so that they seem to live. All other
    connections work.
    """

    links: frozenset[Link]

    async def down(self, link: Link, data: bytes) -> None:
        if link in self.links and data not in HEARTBEATS:
            await trio.lowlevel.checkpoint()
        else:
            await link.send_down(data)


@attrs.frozen
class HalfOpen(Pass):
    """Requests pass, and their answers vanish."""

    async def down(self, link: Link, data: bytes) -> None:
        await trio.lowlevel.checkpoint()


@attrs.frozen
class Corrupt(Pass):
    """Changes one bit in one byte of each piece of an answer."""

    async def down(self, link: Link, data: bytes) -> None:
        changed = bytearray(data)
        changed[link.proxy.rng.randrange(len(data))] ^= 1 << link.proxy.rng.randrange(8)
        await link.send_down(bytes(changed))


@attrs.frozen
class Hold(Pass):
    """Bytes wait, in both directions, until another fault is set; then they go its way."""

    async def up(self, link: Link, data: bytes) -> None:
        await link.proxy.wait_for_other_than(self)
        await link.proxy.fault.up(link, data)

    async def down(self, link: Link, data: bytes) -> None:
        await link.proxy.wait_for_other_than(self)
        await link.proxy.fault.down(link, data)


@attrs.frozen(kw_only=True)
class Slow(Pass):
    """Each `size` bytes come after `delay` seconds, up to `jitter` seconds more."""

    size: int = 65536
    delay: float = 0.0
    jitter: float = 0.0

    async def up(self, link: Link, data: bytes) -> None:
        if rest := await self._pass_slowly(link, data, link.send_up):
            await link.proxy.fault.up(link, rest)

    async def down(self, link: Link, data: bytes) -> None:
        if rest := await self._pass_slowly(link, data, link.send_down):
            await link.proxy.fault.down(link, rest)

    async def _pass_slowly(
        self, link: Link, data: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> bytes:
        """
        Pass the data until another fault is set; return the rest, which goes the way of that fault.
        """
        fault = link.proxy.fault
        await trio.lowlevel.checkpoint()
        for start in range(0, len(data), self.size):
            with trio.move_on_after(self.delay + link.proxy.rng.uniform(0, self.jitter)):
                await link.proxy.wait_for_other_than(fault)
                return data[start:]
            await send(data[start : start + self.size])
        return b""


@attrs.frozen
class Late(Pass):
    """Each answer arrives `least` to `most` seconds after the server sent it, in order."""

    least: float
    most: float

    async def down(self, link: Link, data: bytes) -> None:
        lateness = link.proxy.rng.uniform(self.least, self.most)
        fault = link.proxy.fault
        with trio.move_on_at(link.arrived + lateness):
            await link.proxy.wait_for_other_than(fault)
        await link.send_down(data)


@attrs.frozen(kw_only=True)
class Sometimes(Pass):
    """`fault` with this probability, drawn for each chunk of bytes."""

    fault: Pass
    probability: float

    async def up(self, link: Link, data: bytes) -> None:
        await self._chosen(link).up(link, data)

    async def down(self, link: Link, data: bytes) -> None:
        await self._chosen(link).down(link, data)

    def _chosen(self, link: Link) -> Pass:
        return self.fault if link.proxy.rng.random() < self.probability else Pass()


class ChaosProxy:
    """Listens on 127.0.0.1 and passes connections on to `host:port`, through one fault."""

    def __init__(self, host: str, port: int, *, rng: random.Random) -> None:
        self.rng = rng
        self.port = 0  # where it listens; known when `serve` has started
        self.links: set[Link] = set()
        self._target = (host, port)
        self._fault: Pass = Pass()
        self._changed = trio.lowlevel.ParkingLot()
        self._accepting = trio.CancelScope()

    @property
    def fault(self) -> Pass:
        return self._fault

    @fault.setter
    def fault(self, fault: Pass) -> None:
        """Set the fault, also for open connections. The port opens again in a moment."""
        self._fault = fault
        self._changed.unpark_all()
        if isinstance(fault, Refuse):
            self._accepting.cancel()

    async def wait_for_other_than(self, fault: Pass) -> None:
        await trio.lowlevel.checkpoint()
        while self._fault is fault:
            await self._changed.park()

    def reset_all(self) -> None:
        """Reset every open connection."""
        for link in self.links:
            link.reset()

    async def serve(
        self, *, port: int = 0, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """
        Listen until cancelled; all connections end with it. Starts with the port's number.

        `Refuse` closes the port for a while; one that the kernel chose could then be another's.
        """
        self.port = port or free_port()
        started = False
        async with trio.open_nursery() as nursery:
            while True:
                listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
                if not started:
                    started = True
                    task_status.started(self.port)
                with trio.CancelScope() as self._accepting:
                    serve = partial(trio.serve_listeners, handler_nursery=nursery)
                    await serve(self._connected, listeners)
                while isinstance(self._fault, Refuse):
                    await self._changed.park()

    async def _connected(self, client: trio.SocketStream) -> None:
        link = Link(self, client)
        self.links.add(link)
        try:
            with link.scope:
                await self._fault.opened(link)
                await self._pump_both(link)
        finally:
            self.links.discard(link)
            client.socket.close()
            if link.server is not None:
                link.server.socket.close()

    async def _pump_both(self, link: Link) -> None:
        try:
            link.server = await trio.open_tcp_stream(*self._target)
        except OSError:
            await trio.lowlevel.checkpoint()
            link.reset()
            return
        answers, to_client = trio.open_memory_channel[tuple[float, bytes]](READ_AHEAD)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump_up, link, link.server)
            nursery.start_soon(self._read_answers, link, link.server, answers)
            nursery.start_soon(self._pump_down, link, to_client)

    async def _pump_up(self, link: Link, server: trio.SocketStream) -> None:
        await trio.lowlevel.checkpoint()
        try:
            while data := await link.client.receive_some():
                await self._fault.up(link, bytes(data))
            await server.send_eof()
        except trio.BrokenResourceError:
            link.reset()

    async def _read_answers(
        self,
        link: Link,
        server: trio.SocketStream,
        answers: trio.MemorySendChannel[tuple[float, bytes]],
    ) -> None:
        await trio.lowlevel.checkpoint()
        try:
            with answers:
                while data := await server.receive_some():
                    await answers.send((trio.current_time(), bytes(data)))
        except trio.BrokenResourceError:
            link.reset()

    async def _pump_down(
        self, link: Link, answers: trio.MemoryReceiveChannel[tuple[float, bytes]]
    ) -> None:
        await trio.lowlevel.checkpoint()
        try:
            async for link.arrived, data in answers:
                await self._fault.down(link, data)
            await link.client.send_eof()
        except trio.BrokenResourceError:
            link.reset()
