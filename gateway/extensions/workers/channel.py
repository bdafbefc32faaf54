"""The socket pair between the parent and one worker: a JSON object a line, in both directions."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio

from gateway.changes import Changes

LAST_SECONDS: Final = 1.0  # the parent reads at once, or has ended
_CHUNK: Final = 256 * 1024  # bytes: the counts of a worker with many entities come in one

Values = Mapping[str, Any]
"""A message; its keys name its subject."""


@attrs.define(eq=False)
class WorkerChannel:
    """
    An end of the connection between the parent and a worker. Only `write` writes to the stream, so
    that a cancelled task never cuts a line.

    `collectors` are called for a message whenever the other side has read all earlier ones: changes
    that come faster than they are read become one message.
    """

    stream: trio.abc.Stream
    collectors: list[Callable[[], Values | None]] = attrs.field(factory=list)
    _outbox: deque[bytes] = attrs.field(factory=deque, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)
    _sent: Changes = attrs.field(factory=Changes, init=False)
    _lines: deque[bytearray] = attrs.field(factory=deque, init=False)
    _rest: bytearray = attrs.field(factory=bytearray, init=False)

    def put(self, message: Values) -> None:
        """
        Send the message soon, without waiting. For messages of which only a few are under way.
        """
        self._outbox.append(json.dumps(message).encode() + b"\n")
        self._changes.notify()

    def wake(self) -> None:
        """Call the collectors soon."""
        self._changes.notify()

    async def sent(self) -> None:
        """Return when the other side has every message that was put."""
        while self._outbox:
            await self._sent.wait_next()

    async def write(self) -> None:
        """
        Write the messages that were put and collected, until cancelled or the other side is gone.
        """
        seen = -1
        try:
            while True:
                seen = await self._changes.wait(seen)
                self._collect()
                while self._outbox:
                    await self.stream.send_all(self._outbox[0])
                    self._outbox.popleft()
                    self._sent.notify()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader notices the end, too

    async def finish(self, message: Values) -> None:
        """Write this message, within `LAST_SECONDS`, if `write` never ran."""
        self.put(message)
        with trio.move_on_after(LAST_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.write)
                await self.sent()
                nursery.cancel_scope.cancel()

    async def read(self) -> Values | None:
        """The next message of the other side; None: it has ended."""
        while not self._lines:
            try:
                chunk = await self.stream.receive_some(_CHUNK)
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self._rest += chunk
            *lines, self._rest = self._rest.split(b"\n")
            self._lines.extend(lines)
        message: Values = json.loads(self._lines.popleft())
        return message

    def _collect(self) -> None:
        for collect in self.collectors:
            message = collect()
            if message is not None:
                self._outbox.append(json.dumps(message).encode() + b"\n")
