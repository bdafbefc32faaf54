"""The SDKs of Storage Queue, unmodified, each in its own process: each operation, and an outage."""

import signal
from typing import Any, Final

import pytest
import trio

from tests.e2e.processes import (
    IMPATIENT,
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
    pair_config,
)
from tests.e2e.sdk_producer import have_sent
from tests.e2e.storage_clients import CLIENTS, ENDPOINT, EXPECTED, MORE, producer_of, run_at
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow


SOME: Final = 15  # messages of each SDK


async def run(kind: str, process: GatewayProcess, *parts: str) -> dict[str, Any]:
    return await run_at(process.ports[-1], kind, *parts)


async def test_the_sdks_find_the_queue_service(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config() + ENDPOINT)
    found: dict[str, dict[str, Any]] = {}

    async def ask(kind: str) -> None:
        found[kind] = await run(kind, broker, *EXPECTED, *MORE[kind])

    async with trio.open_nursery() as nursery:
        for kind in CLIENTS:
            nursery.start_soon(ask, kind)

    for kind in CLIENTS:
        for part, expected in {**EXPECTED, **MORE[kind]}.items():
            assert found[kind][part] == expected, (kind, part)
    assert broker.count("connection_crashed") == 0


async def test_the_namespace_may_be_behind_another_gateway(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config())
    far = f"""
[namespaces.far]
url = "servicebus+http://RootManageSharedAccessKey@{broker.address}"
key = {{ env = "{KEY_VARIABLE}" }}
"""
    gateway = await gateways.start(far + ENDPOINT)
    unclear = {"no such message": "PopReceiptMismatch"}  # the sender gives the ids
    expected = {
        **{part: EXPECTED[part] for part in ("queues", "poison", "access", "properties")},
        "refusals": EXPECTED["refusals"] | unclear,
        **MORE["plain"],
    }
    del expected["rewritten"]  # Service Bus can't change the text of a message

    found = await run("plain", gateway, *expected)

    # An answer that comes too late between the gateways is lost, and counts as a delivery.
    dequeues = found["poison"]["dequeues"]
    assert dequeues in ([1], [2], [1, 2])
    assert found == {**expected, "poison": {**EXPECTED["poison"], "dequeues": dequeues}}
    assert gateway.count("connection_crashed") == 0


async def test_no_sdk_notices_that_the_primary_freezes_and_stops(gateways: Gateways) -> None:
    backlogs = [f"east/x-servicebus-transfer/{n}" for n in range(2)]
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(*backlogs), name="secondary")
    pair = pair_config(primary.address, secondary.address, backlog_queues=2, **IMPATIENT)
    gateway = await gateways.start(pair + ENDPOINT, name="gateway")
    producers = [producer_of(kind, gateway) for kind in CLIENTS]

    async with trio.open_nursery() as nursery:
        for producer in producers:
            await nursery.start(producer.run)
        primary.signal(signal.SIGSTOP)
        await gateway.seen("entity_state_changed", entity="orders", after="secondary")
        await have_sent(producers, SOME)
        primary.signal(signal.SIGCONT)
        await gateway.seen("entity_state_changed", entity="orders", after="primary")
        await primary.stop()
        await have_sent(producers, SOME)
        over = gateway.count("outage_over")
        await primary.start()
        for producer in producers:
            producer.stop()
    sent = {body for producer in producers for body in producer.sent}
    missing = set(sent)
    # The second failure within minutes: the return needs 40 s of successes in a row.
    with trio.move_on_after(PATIENCE):
        await gateway.until(lambda: gateway.count("outage_over") > over)
        while missing:
            missing -= set((await run("plain", gateway, "take-all"))["take-all"]["got"])

    told = [(p.kind, len(p.sent), round(p.longest, 2), p.errors[:3]) for p in producers]
    print(told)  # noqa: T201 shown where the test fails
    assert missing == set(), told
    assert all(producer.errors == [] for producer in producers), told
    assert gateway.count("send_failed") == 0, told  # no SDK had to send again
    assert gateway.count("connection_crashed") == 0
