"""Promise 4: while one namespace is down a producer sees no error and no stall beyond its bound."""

import pytest
import trio

from gateway.checker.verdict import Violation
from gateway.domain.message import AcceptedBy
from tests.e2e.harmed import more
from tests.e2e.installation import ENTITIES, Installation
from tests.e2e.processes import Gateways
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

OUTAGE = 3.0  # seconds
DIVERTED = 50  # messages at least
RATE = 12.0  # sends/s of each producer
ATTEMPT = 3.0  # attempt_timeout
# One attempt on the primary, one on the backlog, and the time of a machine that stalls. A send that
# waits for the end of its time lasts 60 s.
LONGEST_STALL = ATTEMPT + ATTEMPT + 40.0


@pytest.mark.parametrize("interval", ["0s", "1s", "60s"])
async def test_producers_notice_no_kill_of_the_primary(interval: str, gateways: Gateways) -> None:
    run = Installation(
        gateways=gateways, syphons=0, rate=RATE, pairing={"failover_interval": interval}
    )
    await run.start()

    async with trio.open_nursery() as producers:
        await producers.start(run.send_all_the_time)
        await more(run, AcceptedBy.PRIMARY)
        await run.kill(run.primary)
        await trio.sleep(OUTAGE)
        await more(run, AcceptedBy.BACKLOG, DIVERTED)
        for entity in ENTITIES:
            await run.gateway.seen("entity_state_changed", entity=entity, before="primary")
        await run.primary.start()
        await run.back_on_the_primary()
        run.traffic.stopping = True
    await run.drain()
    verdict = await run.judge()

    told = run.describe(verdict)
    print(f"interval {interval}: {told}")  # noqa: T201
    assert run.traffic.errors == 0, told
    assert run.traffic.longest_stall < LONGEST_STALL, told
    assert verdict.passed, told


async def test_producers_notice_no_kill_of_the_secondary(gateways: Gateways) -> None:
    run = Installation(gateways=gateways, syphons=0, rate=RATE, is_patient=True)
    await run.start()

    async with trio.open_nursery() as producers:
        await producers.start(run.send_all_the_time)
        await more(run, AcceptedBy.PRIMARY)
        await run.kill(run.secondary)
        await more(run, AcceptedBy.PRIMARY)
        await run.secondary.start()
        run.traffic.stopping = True
    await run.drain()
    verdict = await run.judge()

    told = run.describe(verdict)
    assert run.traffic.errors == 0, told
    assert set(run.traffic.accepted_by_counts) == {AcceptedBy.PRIMARY}, told
    assert verdict.passed, told


async def test_entities_come_back_without_traffic(gateways: Gateways) -> None:
    run = Installation(
        gateways=gateways,
        syphons=0,
        rate=RATE,
        pairing={"failover_interval": "0s", "enable_syphon": False},
    )
    await run.start()

    async with trio.open_nursery() as producers:
        await producers.start(run.send_all_the_time)
        await run.kill(run.primary)
        for entity in ENTITIES:
            await run.gateway.seen("entity_state_changed", entity=entity, after="secondary")
        run.traffic.stopping = True
    await run.primary.start()
    with trio.fail_after(PATIENCE):
        for entity in ENTITIES:
            await run.gateway.seen("entity_state_changed", entity=entity, after="primary")

    verdict = await run.judge()
    assert verdict.broken() == {Violation.STUCK}  # no syphon ran: the whole backlog is still there
