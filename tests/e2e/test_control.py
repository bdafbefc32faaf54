"""Operators steer real processes with the commands of the runbook, under load."""

import json
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import trio

from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from tests.e2e.commands import ADMIN, pairgate, with_fixed_port
from tests.e2e.control import GONE, answer_of, order, start_pair, under_load
from tests.e2e.installation import client
from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
)
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE
from tests.harness.servers import STOP_LIMIT

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
NEW_BATCH = "\n[listener]\nbatch = 5\n"
FOLLOW = ("-m", "gateway", "events", "--follow", "--json", "--recent", "1000")


async def steer(gateway: GatewayProcess, *arguments: str, ends: int = 0) -> dict[str, Any]:
    code, output, errors = await pairgate(gateway, *arguments, "--json")
    assert (code, errors) == (ends, ""), arguments
    answer: dict[str, Any] = json.loads(output)
    return answer


async def bodies(process: GatewayProcess) -> set[bytes]:
    async with client(process) as service:
        kept = await service.peek(ORDERS, limit=100_000)
    return {bytes(each.message.body) for each in kept}  # type: ignore[arg-type]


async def arrived(primary: GatewayProcess, wanted: set[bytes]) -> None:
    """Return when all of it is on the primary."""
    with trio.fail_after(PATIENCE):
        while True:
            if wanted <= await bodies(primary):
                return
            await trio.sleep(0.5)


async def test_steering_under_load_costs_no_send_and_loses_nothing(gateways: Gateways) -> None:
    primary, _, gateway = await start_pair(gateways)

    async with under_load(gateway) as load:
        await load.more("primary")
        paused = await order(gateway, "pause", reason="maintenance")
        over = await order(gateway, "failover", targets=["orders"], reason="maintenance")
        sent = load.answers[201, "primary"]
        await load.more("backlog", 50)
        limited = await order(gateway, "rate", rate=500)
        moved_while_paused = gateway.count("syphoned")
        back = await order(gateway, "failback", targets=["*"])
        await load.more("primary")
        again = await order(gateway, "failback", targets=["*"])
        resumed = await order(gateway, "resume")
        await load.more("primary")
    await arrived(primary, load.accepted)

    assert {status for status, _ in load.answers} == {201}
    # Sends that were in progress end on the primary; none begins there.
    assert moved_while_paused == 0
    assert load.answers[201, "primary"] > sent
    assert [each["changed"] for each in (paused, over, limited, back, again, resumed)] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]
    assert (over["before"]["entities"], over["after"]["entities"]) == (
        {"orders": "primary"},
        {"orders": "pinned"},
    )
    assert resumed["after"]["pauses"] == back["after"]["pins"] == []
    told = [
        (line["event"], line.get("action") or line["after"])
        for line in gateway.log
        if line["event"] in {"control_called", "entity_state_changed"}
    ]
    assert told == [
        ("control_called", "pause"),
        ("control_called", "failover"),
        ("entity_state_changed", "pinned"),
        ("control_called", "rate"),
        ("control_called", "failback"),
        ("entity_state_changed", "primary"),
        ("control_called", "failback"),
        ("control_called", "resume"),
    ]


async def test_a_reload_and_a_drain_under_load_lose_nothing(gateways: Gateways) -> None:
    primary, _, gateway = await start_pair(gateways)
    text = gateway.config_file.read_text()

    async with under_load(gateway) as load:
        await load.more("primary")
        gateway.config_file.write_text(f"{text}\n[nonsense]\n")
        wrong = await trio.to_thread.run_sync(answer_of, gateway, "reload")
        gateway.config_file.write_text(text.replace('"debug"', '"info"') + NEW_BATCH)
        reloaded = await steer(gateway, "reload", "--reason", "new batch", ends=3)
        await load.more("primary", 50)
        load.is_ending = True
        drained = await steer(gateway, "drain", "--wait", "--reason", "upgrade")
    ended = await gateway.wait()
    await arrived(primary, load.accepted)
    again, _, _ = await pairgate(gateway, "drain")

    lines = (gateway.folder / "audit.jsonl").read_text().splitlines()
    audited = [json.loads(line) for line in lines]

    assert [(each["call"], each["status"]) for each in audited] == [
        ("/v1/reload", 400),
        ("/v1/reload", 200),
        ("/v1/drain", 200),
    ]
    assert audited[2]["report"] == drained["report"]
    assert wrong[0] == 400
    assert "nothing was changed" in wrong[1]["error"]
    assert reloaded["changed"]
    assert (reloaded["applied"], reloaded["needs_restart"]) == (["logging"], ["listener"])
    assert [reloaded[each]["log_level"] for each in ("before", "after")] == ["debug", "info"]
    assert {status for status, _ in load.answers} <= {201, GONE}
    assert (drained["before"]["ready"], drained["after"]["ready"]) == (True, False)
    assert drained["after"]["reason"] == "draining: by anonymous: upgrade"
    assert (drained["report"]["unit"], drained["report"]["left"]) == ("connections", 0)
    assert (ended, again) == (0, 75)
    told = [(line["event"], line.get("action")) for line in gateway.log]
    steps = [("control_called", "reload"), ("control_called", "drain"), ("draining", None)]
    assert [each for each in told if each in steps] == [steps[0], *steps]


async def test_an_order_survives_a_restart_and_is_shown(gateways: Gateways) -> None:
    _, _, gateway = await start_pair(gateways)
    await steer(gateway, "failover", "ord*", "--until", "2h", "--reason", "moving the primary")
    await gateway.stop()
    await gateway.start()

    accepted_by = await send(gateway.address, "orders", b"one")
    await steer(gateway, "pause")
    attention, status, _ = await pairgate(gateway, "status")
    code, people, _ = await pairgate(gateway, "failover", "ord*", "--reason", "moving the primary")
    refused, _, errors = await pairgate(gateway, "failover")

    assert accepted_by == (201, "backlog")
    assert attention == 1
    assert "pinned to the backlog: ord* by anonymous until" in status
    assert "! the syphon is paused: * by anonymous\n  -> `pairgate resume`\n" in status
    assert code == 0
    assert "orders: pinned" in people
    assert "pinned: ord* by anonymous: moving the primary" in people
    assert refused == 2
    assert "--all expected" in errors


async def test_one_command_orders_several_gateways_and_tells_each_answer(
    gateways: Gateways,
) -> None:
    _, _, gateway = await start_pair(gateways)
    broker = await gateways.start(broker_config("orders") + ADMIN, name="broker")
    here, refusing = (f"http://127.0.0.1:{each.ports[1]}" for each in (gateway, broker))
    gone = f"http://127.0.0.1:{free_port()}"
    config = str(broker.config_file)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        silent = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        urls = [word for url in (here, silent, refusing, gone) for word in ("--url", url)]
        code, output, errors = await pairgate(gateway, "failover", "--all", "--json", *urls)
        told = await pairgate(gateway, "failover", "--all", "--url", here, "--url", silent)
        by_files = await pairgate(gateway, "failback", "--all", "--json", "--config", config)
        misspelt = await pairgate(gateway, "failover", "ordres")
        forced = await pairgate(gateway, "failover", "ordres", "--force", "--until", "2h")
        nursery.cancel_scope.cancel()
    answer = json.loads(output)

    assert (code, answer["exit_code"], errors) == (1, 1, "")
    outcomes = [each["outcome"] for each in answer["gateways"]]
    assert outcomes == ["accepted", "unknown", "not-sent", "not-sent"]
    assert [each.get("exit_code") for each in answer["gateways"]] == [None, 75, 1, 75]
    assert answer["gateways"][0]["after"]["pins"][0]["target"] == "*"
    assert "it isn't known whether the order is in effect" in answer["gateways"][1]["error"]
    assert told[0] == 75
    assert "failover *: nothing to do" in told[1]
    assert f"gateway at {silent}: unknown: " in told[1]
    assert by_files[0] == 1
    assert [each["outcome"] for each in json.loads(by_files[1])["gateways"]] == [
        "accepted",
        "not-sent",
    ]
    assert (misspelt[0], forced[0]) == (1, 0)
    assert "nobody knows 'ordres': did you mean orders? --force" in misspelt[2]


async def hang_up(stream: trio.SocketStream) -> None:
    """Take the order, and answer nothing."""
    await stream.receive_some()
    await stream.aclose()


async def test_events_are_followed_across_a_restart(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders") + ADMIN)
    await with_fixed_port(broker)
    file = str(broker.config_file)
    follower = await trio.lowlevel.open_process(
        [
            sys.executable,
            *["-m", "gateway", "events", "--follow", "--json", "--recent", "1000", "--config"],
            file,
        ],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert follower.stdout is not None
    names, rest, restarted = list[str](), b"", False
    try:
        with trio.fail_after(PATIENCE):
            async for chunk in follower.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                names += [json.loads(line)["event"] for line in lines]
                if names.count("started") == 1 and not restarted:
                    restarted = True
                    await broker.stop()
                    await broker.start()
                if names.count("started") == 2:
                    break
    finally:
        follower.kill()
        with trio.move_on_after(STOP_LIMIT, shield=True):
            await follower.wait()
    code, people, errors = await pairgate(broker, "events", "--recent", "3")

    assert names.index("gap") > names.index("started")
    assert (code, errors) == (0, "")
    assert people.splitlines()[-1].split()[1:3] == ["info", "started"]


async def test_without_a_gateway_a_command_is_a_temporary_failure(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders") + ADMIN)
    await with_fixed_port(broker)

    no_pair = await pairgate(broker, "failover", "orders")
    no_syphon = await pairgate(broker, "pause")
    await broker.stop()
    gone = [await pairgate(broker, each) for each in ("pause", "status")]

    assert [code for code, _, _ in (no_pair, no_syphon, *gone)] == [1, 1, 75, 75]
    assert all("no gateway answers" in errors for _, _, errors in gone)
    assert "no pair" in no_pair[2]
    assert "no syphon" in no_syphon[2]
