"""Applications that create, read or list their queues when they start, start in an outage."""

import json
import os
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.atom_client import Answer, Namespace
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.e2e.storage_clients import ENDPOINT, HERE, PYTHON, run_at
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

MARK: Final = "X-Pairgate-Remembered"
ADDRESS: Final = "127.0.56.71"  # nobody else's: the SDK dials a port that others may have
OVER_TLS: Final = f"""
[[endpoints]]
protocol = "service-bus"
bind = "{ADDRESS}:5671"
tls = {{ certificate = "tls/server.pem", key = "tls/server.key" }}
"""
# Seconds: else a refusal takes as long as an SDK waits.
KEPT: Final = '\n[limits.storage]\nretry_for = "5s"\n'


async def make_pair(gateways: Gateways) -> tuple[GatewayProcess, GatewayProcess]:
    """A primary with the queue `orders`, and the gateway of its pair."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, enable_syphon=False, state="s.json")
    return primary, await gateways.start(config + ENDPOINT + KEPT, name="gateway")


def fields(answer: Answer) -> tuple[int, str | None]:
    return answer.status, answer.headers.get(MARK)


async def start_storage_clients(gateway: GatewayProcess) -> Any:
    return (await run_at(gateway.ports[1], "plain", "starts"))["starts"]


async def test_functions_and_celery_over_a_storage_account_start_in_an_outage(
    gateways: Gateways,
) -> None:
    primary, gateway = await make_pair(gateways)
    before = await start_storage_clients(gateway)
    await primary.kill()

    in_outage = await start_storage_clients(gateway)

    names = ["jobs", "orders", "tasks", "unknown"]
    assert (before["created"], before["marked"], before["unknown"]) == (201, [None] * 3, 201)
    assert in_outage == {
        "created": 204,
        "count": None,  # nobody knows
        "listed": names,
        "marked": ["true"] * 3,
        "unknown": 204,
    }


async def by_kombu(gateway: GatewayProcess, step: str) -> Any:
    authority = str(gateway.folder / "tls/ca.pem")
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [PYTHON, HERE / "kombu_service_bus.py", ADDRESS, authority, step],
            env={**os.environ, "REQUESTS_CA_BUNDLE": authority},
            capture_stdout=True,
        )
    return json.loads(done.stdout)


async def test_celerys_client_of_service_bus_starts_in_an_outage(gateways: Gateways) -> None:
    """kombu's `azureservicebus` lists all queues before it creates its own."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, enable_syphon=True, state="s.json")
    gateway = gateways.prepare(config + OVER_TLS, name="gateway")
    write_certificates(gateway.folder / "tls", now=datetime.now(UTC), names=[ADDRESS])
    await gateway.start()
    assert await by_kombu(gateway, "put") == "put"
    assert await by_kombu(gateway, "get") == {"task": 1}
    await primary.kill()

    assert await by_kombu(gateway, "put") == "put"
    await primary.start()
    assert await by_kombu(gateway, "get") == {"task": 1}


async def test_an_unknown_queue_is_refused_and_after_a_restart_names_are_known(
    gateways: Gateways,
) -> None:
    primary, gateway = await make_pair(gateways)
    assert await send(gateway.address, "orders", b"a task") == (201, "primary")
    await primary.kill()
    assert await gateway.stop() == 0
    await gateway.start()
    namespace = Namespace(gateway.address)

    listed = await namespace.get("$Resources/Queues")
    again = await namespace.put("orders", "QueueDescription")
    read, unknown = await namespace.get("orders"), await namespace.put("new", "QueueDescription")

    assert (fields(listed), listed.titles()) == ((200, "true"), ["orders"])
    assert fields(again) == (409, "true")
    assert [fields(read), fields(unknown)] == [(503, None), (503, None)]


async def test_dapr_and_masstransit_start_in_an_outage(gateways: Gateways) -> None:
    """The requests are those of `test_frameworks`, as each sends them at a second start."""
    primary, gateway = await make_pair(gateways)
    namespace = Namespace(gateway.address)
    assert (await namespace.put("jobs", "QueueDescription", MaxDeliveryCount=7)).status == 201
    assert (await namespace.put("neworder", "TopicDescription")).status == 201
    await primary.kill()

    read = await namespace.get("jobs")
    listed = await namespace.get("$Resources/Queues")
    again = await namespace.put("jobs", "QueueDescription", MaxDeliveryCount=7)
    topic = await namespace.get("neworder")
    topic_again = await namespace.put("neworder", "TopicDescription")
    missing = [await namespace.get("unknown"), await namespace.put("unknown", "QueueDescription")]

    assert fields(read) == (200, "true")
    assert read.read("MaxDeliveryCount") == "7"
    assert (fields(listed), listed.titles()) == ((200, "true"), ["jobs", "orders"])
    assert (fields(again), fields(topic), fields(topic_again)) == (
        (409, "true"),
        (200, "true"),
        (409, "true"),
    )
    assert [fields(each) for each in missing] == [(503, None), (503, None)]
    assert await send(gateway.address, "jobs", b"a task") == (201, "backlog")


async def test_a_healthy_primary_answers_itself(gateways: Gateways) -> None:
    _, gateway = await make_pair(gateways)
    namespace = Namespace(gateway.address)

    answers = [await namespace.get("orders"), await namespace.get("$Resources/Queues")]

    assert [fields(each) for each in answers] == [(200, None), (200, None)]
