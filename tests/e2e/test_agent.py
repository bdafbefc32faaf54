"""`pairgate agent` as a process, with the processes that it starts."""

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.ports import Broker
from tests.e2e.commands import ADMIN
from tests.e2e.handlers import LIMIT, NOTES
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
# The lock duration: so long the messages of a killed listener stay locked.
LOCK = timedelta(seconds=30)
SENT = [str(number) for number in range(300)]
SOME = 50  # messages that are worked on before a test does harm
LOOK = 0.05


@attrs.define(eq=False, kw_only=True)
class Floor:
    """A gateway with the queue `orders`, and an agent that keeps listeners on it."""

    gateway: GatewayProcess
    agent: GatewayProcess
    broker: Broker

    def noted(self) -> list[str]:
        file = self.agent.folder / NOTES
        return file.read_text().split() if file.exists() else []

    def limit(self, number: int) -> None:
        """Let the handlers of `note_within_limit` work until there are so many notes."""
        (self.agent.folder / NOTES).touch()
        new = self.agent.folder / "limit.new"
        new.write_text(str(number))
        new.replace(self.agent.folder / LIMIT)

    def pids(self) -> list[int]:
        """The ids of the processes that the agent has started and that still run."""
        started = [line["pid"] for line in self.agent.log if line["event"] == "process_started"]
        return [pid for pid in started if exists(pid)]

    async def send(self, *bodies: str) -> None:
        for start in range(0, len(bodies), 100):
            chunk = bodies[start : start + 100]
            messages = [Message(message_id=each, body=each.encode()) for each in chunk]
            await self.broker.send(ORDERS, messages)

    async def until_empty(self) -> None:
        with trio.fail_after(PATIENCE):
            while True:
                if not (await self.broker.inspect(ORDERS)).active:
                    return
                await trio.sleep(LOOK)

    async def until_processes(self, count: int) -> None:
        """Return when the agent has last decided on the given number of processes."""

        def is_so() -> bool:
            staffed = [line["after"] for line in self.agent.log if line["event"] == "autoscaled"]
            return bool(staffed) and staffed[-1] == count

        await self.agent.until(is_so, PATIENCE)


def exists(pid: int) -> bool:
    """True if the process exists and isn't just waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def until(happened: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while True:  # polled: another process decides
            if happened():
                return
            await trio.sleep(LOOK)


@asynccontextmanager
async def open_floor(
    gateways: Gateways, handler: str = "note_slowly", **options: object
) -> AsyncIterator[Floor]:
    gateway = await gateways.start(broker_config() + ADMIN, name="gateway")
    options = {"max_processes": 3, "cooldown": "1s", **options}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    config = f"""{gateway.config}
[agent]
interval = "500ms"
max_load = 1.0
restart = {{ first = "100ms", cap = "1s", jitter = 0.2 }}

[[agent.listeners]]
queues = "orders"
python = "tests.e2e.handlers:{handler}"
parallel = 4
arguments = ["--batch", "10"]
{lines}
"""
    async with client(gateway) as broker:
        await broker.create_queue(ORDERS, QueueProperties(lock_duration=LOCK))
        agent = gateways.prepare(config, name="agent", command=("agent",))
        floor = Floor(gateway=gateway, agent=agent, broker=broker)
        await agent.start()
        try:
            yield floor
        finally:
            for pid in floor.pids():
                os.kill(pid, signal.SIGKILL)


async def test_listeners_come_with_the_work_and_go_when_it_is_done(gateways: Gateways) -> None:
    async with open_floor(gateways) as floor:
        await floor.send(*SENT)
        await floor.until_processes(3)
        await floor.until_empty()
        await floor.until_processes(0)
        await until(lambda: not floor.pids())
        code = await floor.agent.stop()

    assert code == 0
    assert Counter(floor.noted()) == Counter(SENT)


async def test_a_message_brings_the_first_listener_back(gateways: Gateways) -> None:
    async with open_floor(gateways) as floor:
        await floor.agent.until(lambda: floor.agent.count("triggers_regained") > 0, PATIENCE)
        for message in ("one", "two"):
            await floor.send(message)
            await until(lambda message=message: message in floor.noted())
            await floor.until_processes(0)
        code = await floor.agent.stop()

    assert (code, floor.noted()) == (0, ["one", "two"])


async def test_a_listener_that_is_killed_is_replaced_and_nothing_is_lost(
    gateways: Gateways,
) -> None:
    async with open_floor(gateways, min_processes=2, max_processes=2) as floor:
        await floor.send(*SENT)
        await until(lambda: len(floor.noted()) > 50)
        victim = floor.pids()[0]
        os.kill(victim, signal.SIGKILL)
        lost = await floor.agent.seen("process_lost", pid=victim)
        await floor.until_empty()
        await until(lambda: len(floor.pids()) == 2)
        code = await floor.agent.stop()

    assert (code, lost["reason"]) == (0, "signal 9")
    assert set(floor.noted()) == set(SENT)


async def test_an_agent_that_is_killed_or_stopped_leaves_no_listeners_and_nothing_is_done_twice(
    gateways: Gateways,
) -> None:
    """The agent ends while handlers work, and they finish when the listeners know of it."""
    async with open_floor(gateways, "note_within_limit", min_processes=2, max_processes=2) as floor:
        agent = floor.agent
        floor.limit(SOME)
        await floor.send(*SENT)
        await until(lambda: len(floor.noted()) >= SOME)
        await agent.until(lambda: agent.count("started") == 3)  # the agent and two listeners
        agent.signal(signal.SIGKILL)
        await agent.until(lambda: agent.count("draining", reason="the agent has ended") == 2)
        floor.limit(len(SENT))
        await until(lambda: not floor.pids())
        done_first = len(floor.noted())
        floor.limit(done_first + SOME)
        await agent.kill()
        await agent.start()
        await until(lambda: len(floor.noted()) >= done_first + SOME)
        await agent.until(lambda: agent.count("started") == 6)
        agent.signal(signal.SIGTERM)
        await agent.until(lambda: agent.count("draining") == 5)
        floor.limit(len(SENT))
        code = await agent.wait()
        left = floor.pids()
        done_then = len(floor.noted())
        await agent.start()
        await floor.until_empty()
        last = await agent.stop()

    assert (code, left, last) == (0, [], 0)
    assert done_first < done_then < len(SENT)  # a listener that drains takes no more messages
    assert Counter(floor.noted()) == Counter(SENT)


async def test_while_the_gateway_is_away_what_runs_goes_on_and_nothing_is_started(
    gateways: Gateways,
) -> None:
    async with open_floor(gateways, min_processes=1) as floor:
        await until(lambda: len(floor.pids()) == 1)
        before = floor.pids()
        await floor.gateway.stop()
        await floor.agent.until(lambda: floor.agent.count("figures_lost") > 0, PATIENCE)
        os.kill(before[0], signal.SIGKILL)
        await floor.agent.until(lambda: floor.agent.count("process_lost") > 0, PATIENCE)
        without = floor.pids()
        await floor.gateway.start()
        await floor.agent.until(lambda: floor.agent.count("figures_regained") > 0, PATIENCE)
        await until(lambda: len(floor.pids()) == 1)
        await floor.send("one")
        await floor.until_empty()
        code = await floor.agent.stop()

    assert (code, without, floor.noted()) == (0, [], ["one"])


async def test_a_listener_that_can_not_start_is_no_storm_of_processes(gateways: Gateways) -> None:
    async with open_floor(gateways, handler="nowhere", min_processes=3) as floor:
        await floor.agent.until(lambda: floor.agent.count("processes_crash") > 0, PATIENCE)
        red = await floor.agent.seen("processes_crash")
        before = floor.agent.log[: floor.agent.log.index(red)]
        started = sum(line["event"] == "process_started" for line in before)
        code = await floor.agent.stop()

    assert code == 0
    assert red["crashes"] == 5
    assert started <= 2 * 3 + 4  # all of them twice, then one at a time
