"""SDKs, each in a process of its own, that send until they are told to stop."""

import json
import subprocess
from collections.abc import Mapping, Sequence

import attrs
import trio

from gateway.changes import Changes
from tests.harness.patience import PATIENCE


@attrs.define(eq=False, kw_only=True)
class Producer:
    """
    An SDK that sends, with the retries that it has by itself. Its process prints a line for each
    accepted message, and its results by `part` in the end: when it reads a line, and the end of
    its input.
    """

    kind: str
    command: Sequence[str]
    environment: Mapping[str, str]
    part: str  # of the client's script
    sent: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    longest: float = 0.0  # seconds of a send
    _stop: trio.Event = attrs.field(factory=trio.Event, init=False)
    _output: bytes = attrs.field(default=b"", init=False)
    _printed: Changes = attrs.field(factory=Changes, init=False)

    @property
    def accepted(self) -> int:
        """The number of messages that were accepted until now."""
        return self._output.count(b"\n")

    async def has_sent(self, number: int) -> None:
        """Return when the given number of messages was accepted."""
        while self.accepted < number:
            await self._printed.wait_next()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Started when the first message was accepted."""
        process = await trio.lowlevel.open_process(
            self.command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._output = bytes(await process.stdout.receive_some())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, process.stdout)
                task_status.started()
                await self._stop.wait()
                await process.stdin.send_all(b"\n")
                await process.stdin.aclose()
        finally:
            process.kill()  # the process has ended, unless a test fails
            with trio.move_on_after(PATIENCE, shield=True):
                await process.wait()
        found = json.loads(self._output)[self.part]
        assert isinstance(found, dict), found
        self.sent, self.longest = found["sent"], found["longest"]
        self.errors = found.get("errors", [])

    async def _read(self, stdout: trio.abc.ReceiveStream) -> None:
        async for part in stdout:
            self._output += part
            self._printed.notify()

    def stop(self) -> None:
        self._stop.set()


async def have_sent(producers: Sequence[Producer], more: int) -> None:
    """Return when each of them has sent so many further messages."""
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(producer.has_sent, producer.accepted + more)
