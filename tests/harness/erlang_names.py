"""
Erlang's name service, for nodes whose connections to each other go through a proxy.

A node asks it where another node listens (the protocol of `epmd`, ERTS user's guide, 13). Each node
has a name service of its own, which may say of another node where a proxy listens.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

_ALIVE: Final = 120
_PORT_PLEASE: Final = 122
_NAMES: Final = 110
_LENGTH: Final = struct.Struct(">H")
_ALIVE_FIELDS: Final = struct.Struct(">HBBHHH")  # port, kind, protocol, highest, lowest, length
_EXTENDED: Final = 6  # the version from which on a node wants its creation in 4 bytes
_NODE: Final = bytes((77, 0, 0, 6, 0, 5))  # an ordinary node, over TCP, versions 6 to 5


@attrs.define(eq=False)
class NameService:
    """
    Serves on 127.0.0.1. `elsewhere` returns the port of a node that hasn't registered here; None:
    the node doesn't run.
    """

    elsewhere: Callable[[str], int | None]
    port: int = attrs.field(default=0, init=False)
    names: dict[str, int] = attrs.field(factory=dict, init=False)  # of those registered here
    _creations: int = attrs.field(default=0, init=False)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; `port` is known when it has started."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(self._connected, listeners, handler_nursery=nursery)

    async def _connected(self, stream: trio.SocketStream) -> None:
        await trio.lowlevel.checkpoint()
        try:
            async with stream:
                length = _LENGTH.unpack(await _exactly(stream, _LENGTH.size))[0]
                request = await _exactly(stream, length)
                answer = {
                    _ALIVE: partial(self._register, stream),
                    _PORT_PLEASE: partial(self._tell_port, stream),
                    _NAMES: partial(self._list, stream),
                }[request[0]]
                await answer(request[1:])
        except (trio.BrokenResourceError, EOFError):
            await trio.lowlevel.checkpoint()

    async def _register(self, stream: trio.SocketStream, request: bytes) -> None:
        """A name is taken as long as its connection lives."""
        port, _, _, highest, _, length = _ALIVE_FIELDS.unpack_from(request)
        name = request[_ALIVE_FIELDS.size :][:length].decode()
        self._creations += 1
        self.names[name] = port
        try:
            form, tag = (">BBI", 118) if highest >= _EXTENDED else (">BBH", 121)
            await stream.send_all(struct.pack(form, tag, 0, self._creations))
            await stream.receive_some(1)
        finally:
            if self.names.get(name) == port:
                del self.names[name]

    async def _tell_port(self, stream: trio.SocketStream, request: bytes) -> None:
        name = request.decode()
        port = self.names.get(name) or self.elsewhere(name)
        if port is None:
            await stream.send_all(b"\x77\x01")
            return
        known = _LENGTH.pack(len(request)) + request + _LENGTH.pack(0)
        await stream.send_all(b"\x77\x00" + _LENGTH.pack(port) + _NODE + known)

    async def _list(self, stream: trio.SocketStream, _: bytes) -> None:
        lines = "".join(f"name {name} at port {port}\n" for name, port in self.names.items())
        await stream.send_all(struct.pack(">I", self.port) + lines.encode())


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    await trio.lowlevel.checkpoint()
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
