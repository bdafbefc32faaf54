"""
The eight questions of an operator at three in the morning, answered by the tools alone: `status`,
`events` and `outage-report`, while a syphon of its own moves the backlog. Each answer is held
against the queues and the producers.
"""

import json
import time
from collections import Counter
from datetime import datetime
from typing import Any

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from tests.e2e.commands import ADMIN, pairgate, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

WAITING = {"orders": 20, "invoices": 8}
LOOK = 0.2  # seconds between two looks, so that the processes have the processor
# Messages/s of the syphon: somebody asks while they move, although the machine stalls.
RATE = 1.0


@attrs.define
class Outage:
    """The processes, and the truth."""

    primary: GatewayProcess
    secondary: GatewayProcess
    gateway: GatewayProcess
    syphon: GatewayProcess
    accepted: Counter[str] = attrs.field(factory=Counter)  # by whom, as the producers know

    async def produce(self, entity: str, messages: int) -> None:
        for _ in range(messages):
            status, accepted_by = await send(self.gateway.address, entity, b"x")
            assert status == 201
            self.accepted[accepted_by] += 1

    async def on_backlog(self) -> int:
        async with client(self.secondary) as broker:
            queue = await broker.inspect(backlog.queue_name("east", 0))
            return queue.active or 0

    async def on_primary(self) -> int:
        async with client(self.primary) as broker:
            queues = [await broker.inspect(EntityPath(each)) for each in WAITING]
            return sum(each.active or 0 for each in queues)

    async def status(self) -> Any:
        _, output, _ = await pairgate(self.gateway, "status", "--json")
        return json.loads(output)

    async def until(self, state: str) -> Any:
        """The first status with that way home."""
        with trio.fail_after(PATIENCE):
            while (told := await self.status())["progress"]["state"] != state:  # noqa: ASYNC110 another process
                await trio.sleep(LOOK)
            return told


async def open_outage(gateways: Gateways) -> Outage:
    primary = await gateways.start(broker_config(*WAITING), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    async with client(secondary) as broker:
        for queue in (backlog.queue_name("east", 0), backlog.heartbeat_queue("east")):
            await broker.create_queue(queue, QueueProperties())
    pair = pair_config(primary.address, secondary.address, backlog_queues=1, enable_syphon=False)
    gateway = await gateways.start(pair + ADMIN, name="gateway")
    await with_fixed_port(gateway)
    alone, _, _ = pair.partition("[[endpoints]]")
    alone += f"\n[pairing.syphon]\nmax_drain_rate = {RATE}\n"
    syphon = await gateways.start(alone, name="syphon", command=("syphon",))
    return Outage(primary, secondary, gateway, syphon)


async def test_the_eight_questions_have_true_answers(gateways: Gateways) -> None:
    outage = await open_outage(gateways)
    await outage.produce("orders", 1)
    await outage.primary.kill()
    began = time.time()
    for entity, messages in WAITING.items():
        await outage.produce(entity, messages)
    waiting = await outage.until("waiting")
    _, screen, _ = await pairgate(outage.gateway, "status")
    on_backlog = await outage.on_backlog()
    await outage.primary.start()
    moving = await outage.until("moving")
    left = await outage.on_backlog()
    await outage.until("empty")
    over = await outage.gateway.seen("outage_over")
    ended = time.time()
    _, output, _ = await pairgate(outage.gateway, "events", "--json")
    events = [json.loads(line) for line in output.splitlines()]
    _, report, _ = await pairgate(outage.gateway, "outage-report")
    with trio.fail_after(PATIENCE):
        while not (await outage.status())["good"]:  # noqa: ASYNC110 another process
            await trio.sleep(LOOK)

    # 1. Is it the whole primary, or one queue?
    [lost] = [each for each in waiting["problem_details"] if each["kind"] == "namespace-reach"]
    assert (lost["entity"], lost["here"]) == ("primary", True)
    assert {each["entity"] for each in waiting["pair"]["entities"]} == set(WAITING)
    assert began - 1.0 <= datetime.fromisoformat(lost["since"]).timestamp() <= ended
    # 2. What must I do?
    assert all(each["remedy"] for each in waiting["problem_details"])
    assert lost["remedy"] in " ".join(screen.split())
    # 3. How much waits, and for which entities?
    assert on_backlog == outage.accepted["backlog"] == sum(WAITING.values())
    assert (waiting["pair"]["backlog"]["pending"], waiting["pair"]["backlog"]["by_entity"]) == (
        on_backlog,
        WAITING,
    )
    # 4. When is it empty?
    progress, depth = moving["progress"], moving["pair"]["backlog"]["pending"]
    assert left <= depth <= on_backlog
    assert progress["seconds_left"] == pytest.approx(depth / progress["rate"])
    # 5. Who moves it?
    [alive] = moving["pair"]["backlog"]["syphons"]["alive"]
    assert (alive["process"], alive["pid"]) == ("syphon", outage.syphon.pid)
    assert f"syphon on {alive['host']}" in screen
    known = {each["name"]: each["state"] for each in moving["pair"]["processes"]}
    assert [known[each] for each in known if each.startswith("syphon on")] == ["alive"]
    # 6. How long was it?
    [told] = [each for each in events if each["event"] == "outage_over"]
    assert 0.0 < told["seconds"] <= ended - began + 1.0
    # 7. How many messages were diverted?
    assert told["diverted"] == over["diverted"] == outage.accepted["backlog"]
    assert str(told["diverted"]) in report
    # 8. Did any arrive twice?
    twice = await outage.on_primary() - outage.accepted.total()
    assert 0 <= twice <= told["possibly_twice"] + told["twice"]
