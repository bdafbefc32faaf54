"""`status --watch` and `events --follow` as people and scripts see them, through one drill."""

import subprocess
import sys

import pytest
import trio

from gateway.changes import Changes
from tests.e2e.processes import GatewayProcess, Gateways, environment
from tests.e2e.test_control import order
from tests.e2e.test_drill import PAIR
from tests.harness.servers import STOP_LIMIT
from tests.harness.terminal import at_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LIMIT = 90.0


class Watching:
    """A command at a terminal in a thread of its own, which says how far it has come."""

    def __init__(self, gateway: GatewayProcess, *arguments: str) -> None:
        self.gateway, self.arguments = gateway, arguments
        self.began, self.saw = trio.Event(), trio.Event()
        self.ended: tuple[int, str] | None = None

    async def run(self, first: str, then: str, last: str) -> None:
        """Wait for these texts, one after the other; then Ctrl-C."""
        await trio.to_thread.run_sync(self._look, first, then, last)

    def _look(self, first: str, then: str, last: str) -> None:
        with at_terminal(self.gateway.folder, *self.arguments, columns=200) as terminal:
            terminal.sees(first)
            trio.from_thread.run_sync(self.began.set)
            terminal.sees(then)
            trio.from_thread.run_sync(self.saw.set)
            terminal.sees(last)
            terminal.interrupts()
            self.ended = terminal.ends()


class Lines:
    """The lines that the watch prints where there is no terminal."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._changes = Changes()

    async def run(self, gateway: GatewayProcess, most: int) -> None:
        """Read that many lines, then end the command."""
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "gateway", "status", "--watch", "--config", gateway.config_file],
            env=environment(),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        text = b""
        try:
            while len(self.told) < most:
                text += await process.stdout.receive_some()
                self.told = [line.partition(" ")[2] for line in text.decode().split("\n")[:-1]]
                self._changes.note()
        finally:
            process.kill()
            with trio.move_on_after(STOP_LIMIT, shield=True):
                await process.wait()
                await process.stdout.aclose()

    async def has(self, lines: int) -> None:
        """Wait until so many are read."""
        while len(self.told) < lines:
            await self._changes.wait_next()


async def test_a_drill_is_seen_to_begin_and_end(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)
    status = Watching(gateway, "status", "--watch")
    events = Watching(gateway, "events", "--follow")
    lines = Lines()

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(status.run, "all is well", "a drill is under way", "all is well")
            nursery.start_soon(events.run, "started", "drill_began", "drill_ended")
            nursery.start_soon(lines.run, gateway, 3)
            await status.began.wait()
            await events.began.wait()
            await lines.has(1)
            await order(gateway, "drill", seconds=120, targets=["two"])
            await status.saw.wait()
            await events.saw.wait()
            await lines.has(2)
            await order(gateway, "end-drill")

    assert (status.ended or (1,))[0] == 0
    assert (events.ended or (1,))[0] == 0
    assert lines.told == [
        "all is well; backlog: 0",
        "needs attention; backlog: 0; drill: refuse",
        "all is well; backlog: 0",
    ]
