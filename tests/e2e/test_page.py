"""The page of a real gateway in a real browser: an outage, as an operator sees it."""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trio

from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.test_admin import get
from tests.e2e.test_control import start_pair, under_load
from tests.harness.chromium import Browser, browser

pytestmark = [pytest.mark.slow, pytest.mark.live]

PATIENCE: Final = 60.0  # seconds
LIMIT: Final = 30.0  # seconds from a state in the status to the same on the page; idle: below 2
SHOWN: Final = "document.body.innerText"
WAY: Final = "document.getElementById('ways').textContent"
STATE: Final = "document.querySelector('#entity-rows .state')?.textContent"


@pytest.fixture
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        yield one


class Watcher:
    """Compares the page with the status."""

    def __init__(self, gateway: GatewayProcess, chromium: Browser) -> None:
        self.gateway, self.chromium = gateway, chromium

    async def status(self) -> dict[str, Any]:
        code, body = await trio.to_thread.run_sync(get, self.gateway.ports[1], "/status")
        assert code == 200, body
        told: dict[str, Any] = json.loads(body)
        return told

    async def entity_is(self, state: str) -> None:
        """Wait until the status tells this state of the one entity."""
        with trio.fail_after(PATIENCE):
            while True:  # another process: nobody here can tell when
                told = await self.status()
                if [each["state"] for each in told["pair"]["entities"]] == [state]:
                    return
                await trio.sleep(0.05)

    async def shows(self, script: str) -> float:
        """Return after how many seconds the page shows it."""
        began = time.monotonic()
        await trio.to_thread.run_sync(self.chromium.until, script)
        return time.monotonic() - began


async def test_each_state_of_an_outage_is_on_the_page(
    gateways: Gateways, chromium: Browser
) -> None:
    primary, _, gateway = await start_pair(gateways)
    watcher = Watcher(gateway, chromium)
    delays: dict[str, float] = {}
    async with under_load(gateway) as load:
        await load.more("primary")
        url = f"http://127.0.0.1:{gateway.ports[1]}/"
        await trio.to_thread.run_sync(chromium.show, url)
        await watcher.shows(f"{WAY}.includes('to the primary primary')")
        primary.signal(signal.SIGSTOP)
        try:
            await watcher.entity_is("secondary")
            delays["failed over"] = await watcher.shows(f"{STATE} === 'secondary'")
            await load.more("backlog")
            delays["diverted"] = await watcher.shows(
                f"{WAY}.includes('to the backlog on secondary')"
            )
            delays["event"] = await watcher.shows(f"{SHOWN}.includes('entity_state_changed')")
        finally:
            primary.signal(signal.SIGCONT)
        await gateway.seen("entity_state_changed", entity="orders", after="primary")
        delays["returned"] = await watcher.shows("document.getElementById('entities').hidden")
        await load.more("primary")
        await gateway.seen("backlog_empty")
        await watcher.shows("document.querySelector('#backlog .state').textContent === 'empty'")
    assert await gateway.stop() == 0
    delays["lost"] = await watcher.shows("document.getElementById('lost').textContent")

    print("seconds from a state in the status to the same on the page:", delays)  # noqa: T201
    assert {name: seconds for name, seconds in delays.items() if seconds > LIMIT} == {}
    assert chromium.complaints == [] or all(
        "Failed to load" in each for each in chromium.complaints
    )
