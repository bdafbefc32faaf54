"""A network in memory: connections that bring bytes in small pieces, and break."""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

LARGEST_PIECE: Final = 700  # bytes that one read brings, where they come in pieces
SOON: Final = 6.0  # seconds, in which a connection that is to break does

Serve = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves one connection to its end."""

Ends = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


@attrs.define(eq=False)
class Line(trio.abc.Stream):
    """An end of a connection, read in pieces."""

    _ends: Ends
    _rng: random.Random
    _is_broken: bool = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._broken():
            await self._ends.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        with self._broken():
            await self._ends.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        piece = self._rng.randint(1, LARGEST_PIECE)
        with self._broken():
            return await self._ends.receive_some(min(piece, max_bytes or piece))

    async def aclose(self) -> None:
        await self._ends.aclose()

    def reset(self) -> None:
        """Break the connection for readers and writers at both ends."""
        self._is_broken = True
        self._ends.send_stream.close()
        self._ends.receive_stream.close()

    @contextmanager
    def _broken(self) -> Iterator[None]:
        try:
            yield
        except trio.ClosedResourceError as error:
            if self._is_broken:
                raise trio.BrokenResourceError("connection reset") from error
            raise


@attrs.define(eq=False, kw_only=True)
class Network:
    """
    The connections from clients to one server.

    The network resets a share of the connections, `breaking`, within `SOON` seconds, whatever is on
    its way; `on_break` is called for each. Needs `run`.
    """

    rng: random.Random
    breaking: float
    until: float  # no connection breaks after that
    on_break: Callable[[], None]
    serve: Serve | None = None  # None: nobody listens
    _home: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled."""
        async with trio.open_nursery() as self._home:
            task_status.started()
            await trio.sleep_forever()

    async def connect(self) -> trio.abc.Stream:
        """
        Return a connection to the server that listens now.

        Raises:
            OSError: nobody does.
        """
        await trio.lowlevel.checkpoint()
        if self.serve is None or self._home is None:
            raise ConnectionRefusedError("connection refused by the gateway")
        ours, theirs = (Line(ends, self.rng) for ends in memory_stream_pair())
        self._home.start_soon(self.serve, theirs)
        if self.rng.random() < self.breaking:
            self._home.start_soon(self._break, ours, theirs)
        return ours

    async def _break(self, *lines: Line) -> None:
        await trio.sleep(self.rng.uniform(0.0, SOON))
        if trio.current_time() <= self.until:
            self.on_break()
            for line in lines:
                line.reset()
