"""The endpoint `admin` of `pairgate syphon`, `listen` and `agent`, each at its own port."""

import json
from typing import Any

import pytest
import trio

from gateway.domain.entity import EntityPath
from tests.e2e.commands import ADMIN, admin_of, call, pairgate
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
LOOK = 0.05


async def ask(
    process: GatewayProcess, path: str, method: str = "GET", order: object = None
) -> tuple[int, bytes]:
    return await trio.to_thread.run_sync(call, process.port, method, path, order)


async def is_answered(process: GatewayProcess, kind: str) -> dict[str, Any]:
    """
    Make the requests that every process answers; return its status as `pairgate status` prints it.
    """
    for path in ("/livez", "/readyz", "/metrics", "/v1/control"):
        status, body = await ask(process, path)
        assert (status, bool(body)) == (200, True), path
    status, events = await ask(process, "/events?follow=false")
    assert status == 200
    assert b"event: listening\n" in events
    refused = [await ask(process, "/scale/orders"), await ask(process, "/redrive", "POST", {})]
    if kind != "syphon":  # which tells its orders to the pair's other processes
        refused.append(await ask(process, "/v1/failover", "POST", {"targets": ["orders"]}))
        refused += [await ask(process, f"/v1/{each}", "POST", {}) for each in ("pause", "rate")]
    assert {status for status, _ in refused} == {501}
    code, output, errors = await pairgate(process, "status", "--json", f"--process={kind}")
    assert (code, errors) == (0, "")
    told: dict[str, Any] = json.loads(output)
    assert told["gateway"] == f"127.0.0.1:{process.port}"
    return told


async def is_drained(process: GatewayProcess, kind: str, unit: str) -> None:
    """Reload it, then drain it: each over its endpoint, with the commands."""
    text = process.config_file.read_text()
    process.config_file.write_text(f"{text}\n[nonsense]\n")
    wrong, _, errors = await pairgate(process, "reload", f"--process={kind}")
    process.config_file.write_text(text)
    refused = await ask(process, "/v1/reload", "POST", {})
    code, output, _ = await pairgate(process, "reload", "--json", f"--process={kind}")
    process.config_file.write_text(text)
    drained, report, _ = await pairgate(process, "drain", "--wait", "--json", f"--process={kind}")
    ended = await process.wait()
    told = [each["action"] for each in process.log if each["event"] == "control_called"]

    assert (wrong, "nonsense" in errors) == (2, True)  # the command reads the same file
    assert refused[0] == 200
    assert (code, json.loads(output)["changed"]) == (0, False)
    assert (drained, json.loads(report)["report"]["unit"], ended) == (0, unit, 0)
    assert json.loads(report)["after"]["reason"] == "draining: by anonymous"
    assert told[-3:] == ["reload", "reload", "drain"]


async def test_a_syphon_is_asked_and_paused_at_its_own_endpoint(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address, backlog_queues=1, enable_syphon=False)
    gateway = await gateways.start(config + ADMIN + admin_of("syphon"), name="gateway")
    syphon = await gateways.start(gateway.config, name="syphon", command=("syphon",))
    paused, _, errors = await pairgate(syphon, "pause", "--process=syphon")
    await pairgate(gateway, "failover", "orders")
    sent = await send(gateway.address, "orders", b"one")
    await pairgate(gateway, "failback", "orders")
    after_pause = syphon.count("syphoned")
    attention, people, _ = await pairgate(syphon, "status", "--process=syphon")
    resumed = await ask(syphon, "/v1/resume", "POST", {})
    await syphon.seen("syphoned")
    status = await is_answered(syphon, "syphon")
    told = syphon.count("control_called")

    assert len(gateway.ports) == 2
    assert len(syphon.ports) == 1
    assert (paused, errors, sent, after_pause) == (0, "", (201, "backlog"), 0)
    assert attention == 1
    assert "the syphon is paused: * by anonymous" in people
    [alive] = status["pair"]["backlog"]["syphons"]["alive"]
    assert (alive["process"], alive["pid"]) == ("syphon", syphon.pid)
    assert (resumed[0], json.loads(resumed[1])["changed"]) == (200, True)
    assert (status["pair"]["syphon"]["running"], status["pair"]["syphon"]["moved"]) == (True, 1)
    assert {each["role"] for each in status["namespaces"]} == {"primary", "secondary"}
    assert told == 2
    await is_drained(syphon, "syphon", "messages")


async def test_a_listener_is_asked_at_the_endpoint_of_the_configuration(
    gateways: Gateways,
) -> None:
    config = broker_config("orders") + ADMIN + admin_of("listen")
    gateway = await gateways.start(config, name="gateway")
    listener = await gateways.start(
        gateway.config,
        name="listener",
        command=("listen", "orders", "--python", "tests.e2e.handlers:note"),
    )
    status = await is_answered(listener, "listen")
    second = gateways.prepare(
        gateway.config,
        name="second",
        command=("listen", "orders", "--python", "tests.e2e.handlers:note"),
    )
    await second.start(wait=False)

    assert [each["queue"] for each in status["queues"]] == ["orders"]
    assert await second.wait() == 1
    assert "endpoints[2].bind: can't listen" in "".join(second.garbage)
    await is_drained(listener, "listen", "messages")


async def test_an_agent_is_asked_at_the_endpoint_of_the_configuration(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders") + ADMIN, name="gateway")
    config = f"""{gateway.config}{admin_of("agent")}
[[agent.listeners]]
queues = "orders"
python = "tests.e2e.handlers:note"
"""
    agent = await gateways.start(config, name="agent", command=("agent",))
    status = await is_answered(agent, "agent")
    async with client(gateway) as broker:
        is_there = await broker.inspect(ORDERS)

    assert is_there.active == 0
    assert status["pair"] is None
    await is_drained(agent, "agent", "processes")
