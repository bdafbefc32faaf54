"""
An outage told by the tools alone: the page in a real browser, `status --watch` and `events
--follow` at terminals, and the lines of a watch in a pipe. All four follow the same outage.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pytest
import trio

from gateway.app.failure import ExitCode
from gateway.changes import Changes
from tests.e2e.commands import pairgate
from tests.e2e.control import start_pair, under_load
from tests.e2e.processes import IMPATIENT, GatewayProcess, Gateways, environment
from tests.harness.chromium import Browser, browser
from tests.harness.patience import PATIENCE
from tests.harness.servers import STOP_LIMIT
from tests.harness.terminal import at_terminal

pytestmark = [pytest.mark.slow, pytest.mark.live]

LIMIT: Final = 120.0  # seconds from a state's cause to the tool that shows it; idle: below 2
WAY: Final = "document.getElementById('ways').textContent"
STATE: Final = "document.querySelector('#entity-rows .state')?.textContent"
WAY_HOME: Final = "document.querySelector('#summary .state').textContent"
TO_PRIMARY: Final = f"{WAY}.includes('to the primary')"
TO_BACKLOG: Final = f"{WAY}.includes('to the backlog on secondary')"
AT_SECONDARY: Final = f"{STATE} === 'secondary'"
BACK: Final = "document.getElementById('entities').hidden"
MOVING: Final = f"{WAY_HOME} === 'moving'"
EMPTY: Final = f"{WAY_HOME} === 'empty'"
LOST: Final = "document.getElementById('lost').textContent"
WELL: Final = "all is well"
# A backlog of some hundred messages moves for seconds: each tool sees it, also a busy one.
SLOWLY: Final = "\n[pairing.syphon]\nmax_drain_rate = 100.0\n"
OVER: Final = "after=secondary reason"
RETURNED: Final = "after=primary reason"


@pytest.fixture
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        yield one


class Tool:
    """The texts that a tool has shown, each with its time in seconds since 1970."""

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}
        self._changes = Changes()

    def note(self, text: str) -> None:
        self.shown.setdefault(text, time.time())
        self._changes.notify()

    async def has(self, text: str) -> None:
        """Wait until it has shown that."""
        while text not in self.shown:
            await self._changes.wait_next()


class AtTerminal(Tool):
    """A command at a terminal in a thread of its own; it ends by Ctrl-C."""

    def __init__(self, gateway: GatewayProcess, *arguments: str) -> None:
        super().__init__()
        self.gateway, self.arguments = gateway, arguments
        self.code: int | None = None

    async def run(self, *texts: str) -> None:
        """Wait for these texts, one after the other."""
        await trio.to_thread.run_sync(self._look, texts)

    def _look(self, texts: tuple[str, ...]) -> None:
        with at_terminal(self.gateway.folder, *self.arguments, columns=250) as terminal:
            for text in texts:
                terminal.sees(text)
                trio.from_thread.run_sync(self.note, text)
            terminal.interrupts()
            self.code, _ = terminal.ends()


class InPipe(Tool):
    """The lines that the watch prints where there is no terminal, until it has shown the last."""

    def __init__(self, gateway: GatewayProcess) -> None:
        super().__init__()
        self.gateway = gateway
        self.lines: list[str] = []

    async def run(self, *texts: str) -> None:
        """Read until one line after the other has contained these texts."""
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-m", "gateway", "status", "--watch"),
                *("--config", self.gateway.config_file),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        left, text = list(texts), b""
        try:
            while left:
                text += await process.stdout.receive_some()
                *complete, text = text.split(b"\n")
                for line in complete:
                    self.lines.append(line.decode().partition(" ")[2])
                    if left and left[0] in self.lines[-1]:
                        self.note(left.pop(0))
        finally:
            process.kill()
            with trio.move_on_after(STOP_LIMIT, shield=True):
                await process.wait()
                await process.stdout.aclose()


class Page(Tool):
    """The page in a browser."""

    def __init__(self, gateway: GatewayProcess, chromium: Browser) -> None:
        super().__init__()
        self.chromium, self.url = chromium, f"http://127.0.0.1:{gateway.ports[1]}/"

    async def run(self, *scripts: str) -> None:
        """Wait until these hold, one after the other."""
        await trio.to_thread.run_sync(self.chromium.show, self.url)
        for script in scripts:
            await trio.to_thread.run_sync(self.chromium.until, script)
            self.note(script)


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


async def test_an_outage_is_told_by_the_tools_alone(gateways: Gateways, chromium: Browser) -> None:
    primary, _, gateway = await start_pair(gateways, SLOWLY, **IMPATIENT)
    page, pipe = Page(gateway, chromium), InPipe(gateway)
    status = AtTerminal(gateway, "status", "--watch")
    events = AtTerminal(gateway, "events", "--follow")
    async with under_load(gateway) as load, trio.open_nursery() as nursery:
        await load.more("primary")
        nursery.start_soon(page.run, TO_PRIMARY, AT_SECONDARY, TO_BACKLOG, BACK, MOVING, EMPTY)
        nursery.start_soon(status.run, WELL, "are secondary: 1", "way home moving", "home empty")
        nursery.start_soon(events.run, "started", OVER, RETURNED, "backlog_empty")
        nursery.start_soon(pipe.run, WELL, "secondary: 1", ", moving", "backlog: 0")
        with trio.fail_after(PATIENCE):
            for tool, first in ((page, TO_PRIMARY), (status, WELL), (events, "started")):
                await tool.has(first)
            await pipe.has(WELL)
            primary.signal(signal.SIGSTOP)
            try:
                over = await gateway.seen("entity_state_changed", after="secondary")
                await page.has(TO_BACKLOG)
                await status.has("are secondary: 1")
                await events.has(OVER)
                await pipe.has("secondary: 1")
                code, output, _ = await pairgate(gateway, "probe", "orders", "--json")
            finally:
                primary.signal(signal.SIGCONT)
            moves = await gateway.seen("backlog_moves")
            await load.more("primary")
    with trio.fail_after(PATIENCE):
        assert await gateway.stop() == 0
        await trio.to_thread.run_sync(chromium.until, LOST)

    assert (code, json.loads(output)["after"]) == (ExitCode.PARTLY, {"orders": "secondary"})
    # On a busy machine an entity may be in doubt before, and fail over again before it is shown
    # that it has returned.
    returns = [moment(each) for each in gateway.log if each.get("after") == "primary"]
    delays = {
        "page: failed over": page.shown[AT_SECONDARY] - moment(over),
        "page: returned": page.shown[BACK]
        - max(each for each in returns if each < page.shown[BACK]),
        "page: moving": page.shown[MOVING] - max(moment(moves), page.shown[BACK]),
        "status: failed over": status.shown["are secondary: 1"] - moment(over),
        "status: moving": status.shown["way home moving"] - moment(moves),
        "events: failed over": events.shown[OVER] - moment(over),
        "events: returned": events.shown[RETURNED]
        - max(each for each in returns if each < events.shown[RETURNED]),
        "lines: failed over": pipe.shown["secondary: 1"] - moment(over),
        "lines: moving": pipe.shown[", moving"] - moment(moves),
    }
    print("seconds from a cause to the tool that shows it:", delays)  # noqa: T201
    assert {name: seconds for name, seconds in delays.items() if seconds > LIMIT} == {}
    assert (status.code, events.code) == (0, 0)  # after Ctrl-C
    assert pipe.lines[0] == "all is well; backlog: 0"
    assert all("Failed to load" in each for each in chromium.complaints)
