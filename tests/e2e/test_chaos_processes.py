"""Real processes under load, killed at random moments; then every queue is read and judged."""

import random
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy
from tests.e2e.harmed import more
from tests.e2e.installation import ENTITIES, Installation
from tests.e2e.processes import Gateways

pytestmark = pytest.mark.slow

SETTLED = 100  # messages after the last fault
DIVERTED = 30  # messages at least


@attrs.frozen(kw_only=True)
class Scenario:
    seed: int
    syphons: int = 1
    kills: int = 2  # of each process
    frozen: float = 0.0  # seconds that the primary is stopped, before the kills
    consumers: bool = False
    pairing: dict[str, Any] = attrs.field(factory=dict)


SCENARIOS = {
    "a syphon inside the gateway": Scenario(seed=2, syphons=0, kills=3),
    "two syphons and consumers": Scenario(seed=3, syphons=2, consumers=True),
    "failover at once": Scenario(seed=4, pairing={"failover_interval": "0s"}, consumers=True),
    "a syphon of its own, and a primary that stands still": Scenario(
        seed=5, frozen=4.0, pairing={"attempt_timeout": "1s"}
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_nothing_is_lost(scenario: Scenario, gateways: Gateways) -> None:
    run = Installation(gateways=gateways, syphons=scenario.syphons, pairing=scenario.pairing)
    await run.start()

    async with trio.open_nursery() as consumers:
        if scenario.consumers:
            for entity in ENTITIES:
                await consumers.start(partial(run.receive_all_the_time, EntityPath(entity)))
        async with trio.open_nursery() as producers:
            await producers.start(run.send_all_the_time)
            await more(run, AcceptedBy.PRIMARY)
            if scenario.frozen:
                await run.freeze(run.primary, scenario.frozen)
            await run.break_things(random.Random(scenario.seed), scenario.kills)
            await run.divert_some(DIVERTED)
            await run.heal()
            await more(run, AcceptedBy.PRIMARY, SETTLED)
            run.traffic.stopping = True
        await run.drain()
        consumers.cancel_scope.cancel()
    codes = await run.stop_all_but_brokers()
    verdict = await run.judge()

    told = f"seed {scenario.seed}\n{run.describe(verdict)}"
    print(told)  # noqa: T201
    assert verdict.passed, told
    assert set(codes) == {0}
    assert all(run.faults[f"SIGKILL {p.folder.name}"] for p in run.processes), told
    assert run.traffic.accepted_by_counts[AcceptedBy.BACKLOG] >= DIVERTED, told
    assert run.syphoned > 20, told
