"""Real processes of a gateway and a listener report their status."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.commands import (
    ADMIN,
    get,
    pairgate,
    pairgate_provision,
    samples,
    status_at,
    with_fixed_port,
)
from tests.e2e.listen import NOTE
from tests.e2e.processes import ROOT, Gateways, broker_config, environment, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow


async def test_an_outage_is_seen_in_status_and_metrics_and_its_end_too(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    pair = pair_config(primary.address, secondary.address, failover_interval="0s", backlog_queues=3)
    config = pair + ADMIN
    await pairgate_provision(gateways, config)
    gateway = await gateways.start(config, name="gateway")
    await with_fixed_port(gateway)
    well = await pairgate(gateway, "status")
    await primary.kill()
    accepted_by = [await send(gateway.address, "orders", b"one") for _ in range(2)]
    code, output, errors = await pairgate(gateway, "status", "--json")
    people = await pairgate(gateway, "status")
    health = await pairgate(gateway, "status", "--ready")
    _, metrics = await trio.to_thread.run_sync(get, gateway.ports[1], "/metrics")
    told = json.loads(output)

    assert well[0] == 0
    assert "all is well" in well[1]
    assert accepted_by == [(201, "backlog")] * 2
    assert (code, errors) == (1, "")
    assert [(each["entity"], each["state"]) for each in told["pair"]["entities"]] == [
        ("orders", "secondary")
    ]
    assert told["pair"]["sends"] == [
        {"accepted_by": "backlog", "outcome": "accepted", "messages": 2, "error": ""}
    ]
    assert people[0] == 1
    assert health == (0, f"127.0.0.1:{gateway.ports[1]}: serving\n", "")
    assert "secondary" in people[1]
    assert samples(metrics)["messaging_client_sent_messages_total"] == 2
    assert samples(metrics)["pairgate_entities"] == 1
    abilities = {each["name"]: each["abilities"] for each in told["namespaces"]}
    assert {name: one["state"] for name, one in abilities["secondary"].items()} == {
        "send": "yes",
        "receive": "yes",  # the gateway's syphon waits
        "manage": "yes",
        "reach": "yes",
    }
    assert [abilities["primary"][name]["state"] for name in ("send", "reach")] == ["no", "no"]
    assert "refused" in abilities["primary"]["reach"]["error"].lower()
    assert "check whether the namespace runs" in abilities["primary"]["reach"]["remedy"]
    assert any("namespace primary hasn't been reached" in each for each in told["problems"])
    assert "namespace primary hasn't been reached" in people[1]
    assert 'pairgate_namespace_ability{ability="reach",namespace="primary"} 0.0' in metrics.decode()

    await until_told(gateway.ports[1], "pairgate_backlog_messages", 2)
    await primary.start()
    await until_told(gateway.ports[1], "pairgate_entities", 0)


async def until_told(port: int, name: str, value: float) -> None:
    with trio.fail_after(PATIENCE):
        while True:  # polled: another process decides
            _, text = await trio.to_thread.run_sync(get, port, "/metrics")
            if samples(text).get(name) == value:
                return
            await trio.sleep(0.2)


async def test_a_watch_without_a_terminal_tells_each_status_when_it_is_known(
    tmp_path: Path,
) -> None:
    config = tmp_path / "pairgate.toml"
    config.write_text(broker_config("orders") + ADMIN)
    watch = [sys.executable, "-m", "gateway", "status", "--watch", "--config", str(config)]
    told: dict[bool, bytes] = {}
    codes = []
    for as_json in (False, True):
        arguments = [*watch, "--json"] if as_json else watch
        process = await trio.lowlevel.open_process(
            arguments, stdout=subprocess.PIPE, cwd=ROOT, env=environment()
        )
        assert process.stdout is not None
        with trio.fail_after(PATIENCE):
            told[as_json] = await process.stdout.receive_some(4096)
            process.send_signal(signal.SIGINT)
            codes.append(await process.wait())
        await process.stdout.aclose()

    assert b"no gateway answers" in told[False]
    assert json.loads(told[True])["good"] is False
    assert codes == [0, 0]


async def test_a_listener_is_not_ready_once_it_drains(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders"), name="gateway")
    handler = ("--exec", f"{sys.executable} -c 'import time; time.sleep(600)'")
    listener = await gateways.start(
        gateway.config,
        name="listener",
        command=("listen", "orders", *handler, "--grace", "1h", "--metrics", "127.0.0.1:0"),
    )
    port = int((await listener.seen("listening"))["address"].rpartition(":")[2])
    await send(gateway.address, "orders", b"one")
    await until_told(port, "pairgate_listener_locked_messages", 1)
    before = await trio.to_thread.run_sync(get, port, "/readyz")
    listener.signal(signal.SIGTERM)
    await listener.seen("draining")
    after = await trio.to_thread.run_sync(get, port, "/readyz")
    asked = await pairgate(
        listener, "status", "--ready", "--json", "--url", f"http://127.0.0.1:{port}"
    )
    code = await listener.stop()  # the second signal kills the handler's command

    assert code == 0
    assert (before[0], json.loads(before[1])["reason"]) == (200, "serving")
    assert (asked[0], json.loads(asked[1])["reason"]) == (1, "draining: SIGTERM")
    assert (after[0], json.loads(after[1])["reason"]) == (503, "draining: SIGTERM")


async def test_a_listener_tells_its_figures_and_its_bill_apart_from_triggers(
    gateways: Gateways,
) -> None:
    triggers = '\n[triggers]\ntopic = "pairgate-triggers"\n'
    gateway = await gateways.start(broker_config("orders") + triggers, name="gateway")
    for number in range(3):
        await send(gateway.address, "orders", str(number).encode())
    listener = await gateways.start(
        gateway.config,
        name="listener",
        command=("listen", "orders", *NOTE, "--metrics", "127.0.0.1:0"),
    )
    port = int((await listener.seen("listening"))["address"].rpartition(":")[2])
    await until_told(port, "pairgate_listener_completed_messages_total", 3)
    health = await trio.to_thread.run_sync(get, port, "/livez")
    status = await status_at(port)
    await listener.stop()
    queue: dict[str, Any] = status["queues"][0]
    settled = {each["name"]: each["usage"]["operations"]["settle"] for each in status["namespaces"]}
    usage = await listener.seen("billed", queue="orders")
    through = f"the gateway at {gateway.address}"

    assert health == (200, b"ok\n")
    assert (queue["queue"], queue["completed"]) == ("orders", 3)
    assert queue["usage"]["received"] == 3
    assert queue["usage"]["operations"]["settle"] == 3
    assert settled == {through: 3, f"{through}, for triggers": 0}
    assert usage["messages"] == 3
    assert usage["operations"] >= queue["usage"]["total"]


async def test_the_spool_and_what_each_namespace_does_are_told(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    pair = pair_config(
        primary.address,
        secondary.address,
        failover_interval="0s",
        backlog_queues=1,
        spool="spool.db",
    )
    gateway = await gateways.start(pair + ADMIN, name="gateway")
    await with_fixed_port(gateway)
    await primary.kill()
    await secondary.kill()
    accepted_by = await send(gateway.address, "orders", b"one")
    _, output, _ = await pairgate(gateway, "status", "--json")
    _, people, _ = await pairgate(gateway, "status")
    _, metrics = await trio.to_thread.run_sync(get, gateway.ports[1], "/metrics")
    told = json.loads(output)
    reached = [each["abilities"]["reach"]["state"] for each in told["namespaces"]]

    assert accepted_by == (201, "spool")
    assert reached == ["no", "no"]
    assert told["pair"]["spool"]["pending"] == 1
    assert told["pair"]["spool"]["free_bytes"] > 0
    assert told["pair"]["spool"]["rate_out"] == 0.0
    assert "spool    1 messages wait" in people
    assert re.search(r"namespace.*send.*receive.*manage.*reach", people)
    assert samples(metrics)["pairgate_spool_messages"] == 1
    assert samples(metrics)["pairgate_spool_free_bytes"] > 0
