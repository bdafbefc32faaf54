"""All open connections to the primary answer nothing any more but heartbeats, and new ones work."""

import random
import re

import pytest
import trio

from tests.e2e.processes import IMPATIENT, Gateways, broker_config, pair_config
from tests.e2e.rest import send, take
from tests.harness.chaos_proxy import ChaosProxy, DeadLinks
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

HTTP = r"servicebus\+http://(\w+)@([\w.:]+)"
AMQP = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


def broker(*queues: str) -> str:
    return broker_config(*queues).replace('"service-bus-http"', '"service-bus"')


@pytest.mark.parametrize("is_amqp", [True, False], ids=["AMQP", "HTTP"])
async def test_stuck_connections_are_replaced_in_both_directions(
    gateways: Gateways, nursery: trio.Nursery, is_amqp: bool
) -> None:
    """The quick form of the chaos scenario `stuck-connection`."""
    primary = await gateways.start(broker("orders", "invoices"), name="primary")
    secondary = await gateways.start(broker(), name="secondary")
    proxy = ChaosProxy("127.0.0.1", primary.port, rng=random.Random(0))
    port = await nursery.start(proxy.serve)
    config = pair_config(f"127.0.0.1:{port}", secondary.address, backlog_queues=1, **IMPATIENT)
    if is_amqp:
        config = re.sub(HTTP, AMQP, config)
    gateway = await gateways.start(config, name="gateway")
    assert await send(gateway.address, "orders", b"before") == (201, "primary")
    assert await take(gateway.address, "orders") == b"before"

    async def take_next() -> None:
        while await take(gateway.address, "invoices", wait=10) != b"again":
            pass

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as receives:
            receives.start_soon(take_next)
            await trio.sleep(1.0)
            proxy.fault = DeadLinks(frozenset(proxy.links))
            accepted_by = ""
            while accepted_by != "primary":
                await trio.sleep(0.2)
                _, accepted_by = await send(gateway.address, "orders", b"after")
            while receives.child_tasks:
                assert (await send(primary.address, "invoices", b"again"))[0] == 201
                await trio.sleep(0.5)

    assert gateway.count("entity_state_changed", entity="orders", after="secondary") <= 1
    await gateway.seen("backlog_empty")
