"""`pairgate syphon`, a process of its own, reports the outage and the way home of the backlog."""

import signal

import pytest
import trio

from gateway.domain.entity import EntityPath
from tests.e2e.installation import client
from tests.e2e.processes import IMPATIENT, Gateways, broker_config, pair_config
from tests.e2e.rest import send

pytestmark = pytest.mark.slow

MESSAGES = 20
ORDERS = EntityPath("orders")


def syphon_table(attempt_timeout: str = "6s") -> str:
    return f"""
[pairing.syphon]
attempt_timeout = "{attempt_timeout}"
unknown_retry = {{ first = "500ms", cap = "2s" }}
retry = {{ first = "500ms", cap = "2s" }}
"""


async def test_a_syphon_of_its_own_tells_the_outage_and_how_the_backlog_went_home(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, backlog_queues=1, enable_syphon=False)
    gateway = await gateways.start(config, name="gateway")
    await primary.kill()
    for number in range(MESSAGES):
        assert await send(gateway.address, "orders", b"%d" % number) == (201, "backlog")
    alone, _, _ = config.partition("[[endpoints]]")
    patient = syphon_table("30s")  # the primary refuses: a stall is no outage
    syphon = await gateways.start(alone + patient, name="syphon", command=("syphon",))

    found = await syphon.seen("backlog_found")
    lost = await syphon.seen("namespace_lost", namespace="primary")
    told_before = [line["event"] for line in syphon.log]
    await primary.start()
    back = await syphon.seen("namespace_back", namespace="primary")
    moves = await syphon.seen("backlog_moves")
    empty = await syphon.seen("backlog_empty")

    assert (found["label"], found["pending"]) == ("east", MESSAGES)
    assert primary.address in lost["reason"]
    assert not {"namespace_back", "backlog_moves", "backlog_empty"} & set(told_before)
    assert back["seconds"] > 0
    assert moves["label"] == empty["label"] == "east"
    assert (empty["moved"], empty["dead_lettered"]) == (MESSAGES, 0)
    for event in ("backlog_found", "namespace_lost", "namespace_back", "backlog_empty"):
        assert syphon.count(event) == 1, event
    async with client(primary) as broker:
        assert (await broker.inspect(ORDERS)).active == MESSAGES
    assert await syphon.stop() == 0


@pytest.mark.parametrize("inside", [True, False], ids=["in the gateway", "a process of its own"])
async def test_a_frozen_primary_gets_one_trial_of_the_syphon_and_each_copy_is_told(
    gateways: Gateways, inside: bool
) -> None:
    """The quick form of the chaos scenario `syphon-into-freeze`."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(
        primary.address,
        secondary.address,
        backlog_queues=2,
        enable_syphon=inside,
        failover_interval="60s",
        **IMPATIENT,
    )
    alone, endpoints, bind = config.partition("[[endpoints]]")
    gateway = await gateways.start(alone + syphon_table() + endpoints + bind, name="gateway")
    mover = gateway
    if not inside:
        mover = await gateways.start(alone + syphon_table(), name="syphon", command=("syphon",))
    assert await send(gateway.address, "orders", b"before") == (201, "primary")

    primary.signal(signal.SIGSTOP)
    for _ in range(MESSAGES):
        assert (await send(gateway.address, "orders", b"in the freeze"))[0] == 201
        await trio.sleep(0.4)
    primary.signal(signal.SIGCONT)
    await mover.seen("backlog_empty")
    async with client(primary) as broker:
        arrived = (await broker.inspect(ORDERS)).active or 0

    in_doubt = sum(each.get("in_doubt", 0) for each in mover.log)
    diverted = sum(
        each.get("in_doubt", False) for each in gateway.log if each["event"] == "diverted"
    )
    copies = arrived - MESSAGES - 1
    assert in_doubt <= 2
    assert 0 <= copies <= in_doubt + diverted
