"""`pairgate serve` and the other commands as processes, over real sockets and files."""

import json
import os
import re
import resource
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio

from gateway.config.source import DEFAULT
from gateway.domain import backlog
from tests.command_line import PATIENTLY
from tests.e2e.backlog_home import bring_home
from tests.e2e.commands import ADMIN, get, pairgate, samples, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.processes import (
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    pair_config,
)
from tests.e2e.rest import request, send, take
from tests.harness.patience import PATIENCE
from tests.harness.secret_files import write_secret

pytestmark = pytest.mark.slow

GRACE = 'limits.grace = "1h"\n'  # a drain that waits for its end is missing after `PATIENCE`
HOUR = 3600
LOOK = 0.1
LONG_WAITS = f'limits.rest.longest_wait = "{HOUR}s"\n'
FREE_PORTS = re.sub(r'"127.0.0.1:\d+"', '"127.0.0.1:0"', DEFAULT)


async def test_a_sent_message_is_received(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))

    assert await send(broker.address, "orders", b"one") == (201, "primary")
    assert await take(broker.address, "orders") == b"one"


async def test_a_killed_broker_has_what_it_acknowledged(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))
    await send(broker.address, "orders", b"one")

    await broker.kill()
    await broker.start()

    assert await take(broker.address, "orders") == b"one"


async def test_sigterm_drains_and_exits_0(gateways: Gateways) -> None:
    broker = await gateways.start(GRACE + LONG_WAITS + broker_config("orders") + ADMIN)
    answers: list[bytes | None] = []

    async def wait_for_a_message() -> None:
        answers.append(await take(broker.address, "orders", wait=HOUR))

    before = await commits(broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_message)
        with trio.fail_after(PATIENCE):
            while await commits(broker) == before:  # noqa: ASYNC110 of another process
                await trio.sleep(LOOK)
        with trio.fail_after(PATIENCE):  # a client that waits for a message doesn't keep it alive
            code = await broker.stop()

    assert code == 0
    assert broker.count("draining", reason="SIGTERM") == 1
    assert broker.log[-1]["event"] == "stopped"
    assert answers == [None]


async def commits(broker: GatewayProcess) -> float:
    """The commits of its store: a receive that has looked in vain waits for a message."""
    _, metrics = await trio.to_thread.run_sync(get, broker.ports[-1], "/metrics")
    return samples(metrics)["pairgate_store_commit_duration_seconds_count"]


def has_read(client: socket.socket) -> bool:
    """True if the server has read all that the client has sent, by proc(5)."""
    ends = [client.getpeername()[1], client.getsockname()[1]]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(each.rpartition(":")[2], 16) for each in fields[1:3]] == ends:
            return int(fields[4].rpartition(":")[2], 16) == 0
    return False


async def test_a_second_signal_cuts_what_still_drains(gateways: Gateways) -> None:
    broker = await gateways.start(GRACE + broker_config("orders"))
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(b"POST /orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
        with trio.fail_after(PATIENCE):
            while not has_read(client):  # noqa: ASYNC110 of another process
                await trio.sleep(LOOK)
        broker.signal(signal.SIGTERM)
        await broker.seen("draining")

        with trio.fail_after(PATIENCE):
            code = await broker.stop()
        answer = client.recv(1000)

    assert code == 0
    assert answer == b""  # without the signal it is 408, when the rest of the head hasn't come


async def test_sighup_takes_over_the_level_and_names_the_rest(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))
    text = broker.config.replace("debug", "warning").replace('["orders"]', '["invoices"]')
    broker.config_file.write_text(text)

    broker.signal(signal.SIGHUP)
    await trio.sleep(0.5)
    broker.config_file.write_text("broken =")
    broker.signal(signal.SIGHUP)

    line = await broker.seen("doubtful")
    assert "not reloaded" in line["text"]
    assert broker.count("reloaded") == 0  # the new level hides it
    assert broker.running


async def test_sighup_changes_who_gets_in(gateways: Gateways) -> None:
    access = """
        [[access]]
        name = "RootManageSharedAccessKey"
        key = { file = "key" }
        rights = ["Manage"]
    """
    broker = gateways.prepare(broker_config("orders") + access)
    broker.folder.mkdir()
    key, old_key = broker.folder / "key", broker.folder / "old-key"
    write_secret(key, "SAS_KEY_VALUE\n")
    await broker.start()
    answers = [await send(broker.address, "orders", b"one")]

    key.rename(old_key)
    write_secret(key, "a new key\n")
    broker.config_file.write_text(broker.config + 'second_key = { file = "old-key" }')
    broker.signal(signal.SIGHUP)
    await broker.seen("reloaded", access="RootManageSharedAccessKey")
    answers.append(await send(broker.address, "orders", b"two"))
    broker.config_file.write_text(broker.config.replace("Root", "Boot"))
    broker.signal(signal.SIGHUP)
    await broker.seen("reloaded", access="BootManageSharedAccessKey")
    answers.append(await send(broker.address, "orders", b"three"))

    assert [status for status, _ in answers] == [201, 201, 401]


async def test_a_second_process_on_the_same_store_is_a_temporary_failure(
    gateways: Gateways,
) -> None:
    broker = await gateways.start(broker_config("orders"))
    store = broker.folder / "broker.db"

    second = await gateways.start(broker_config(url=f"embedded:{store}"), wait=False)

    assert await second.wait() == os.EX_TEMPFAIL
    assert str(store) in " ".join(second.garbage)
    assert broker.running


async def test_a_store_that_fails_ends_the_process_as_a_temporary_failure(
    gateways: Gateways,
) -> None:
    broker = await gateways.start(broker_config("orders"))
    await send(broker.address, "orders", b"one")

    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4096, 4096))  # every write fails
    status, _ = await send(broker.address, "orders", b"x" * 9000)

    assert status >= 500
    assert await broker.wait() == os.EX_TEMPFAIL
    await broker.start()
    assert await take(broker.address, "orders") == b"one"


async def test_a_taken_port_is_named_with_what_to_do(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))

    config = broker_config().replace("127.0.0.1:0", broker.address)
    second = await gateways.start(config, wait=False)

    assert await second.wait() == 1
    assert broker.address in " ".join(second.garbage)
    assert "--port-offset" in " ".join(second.garbage)


async def test_people_send_peek_and_receive_through_the_running_gateway(
    gateways: Gateways,
) -> None:
    broker = await gateways.start(broker_config("orders"))
    await with_fixed_port(broker)

    sent = await pairgate(broker, "send", "orders", "hello", "--id", "7", "--json")
    peeked = await pairgate(broker, "peek", "orders")
    received = await pairgate(broker, "receive", "orders", "--json", *PATIENTLY)
    nothing = await pairgate(broker, "receive", "orders", "--wait", "200ms")

    assert sent[0] == 0, sent
    assert json.loads(sent[1]) == {
        "entity": "orders",
        "message_id": "7",
        "accepted_by": "primary",
        "target": f"the gateway at {broker.address}",
        "through_gateway": True,
        "namespace": None,
    }
    assert (peeked[0], "hello" in peeked[1]) == (0, True)
    assert (received[0], json.loads(received[1])["body"]) == (0, "hello")
    assert nothing[0] == 1


async def test_people_reach_a_store_that_nobody_has_open(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))
    await with_fixed_port(broker)
    await broker.stop()

    sent = await pairgate(broker, "send", "orders", "--property", "a=b", stdin=b"\xff\x00")
    received = await pairgate(broker, "receive", "orders", "--json", *PATIENTLY)

    assert "namespace here" in sent[1]
    value = json.loads(received[1])
    assert (value["body_base64"], value["properties"]) == ("/wA=", {"a": "b"})


async def test_a_store_in_use_is_not_opened_past_its_owner(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))
    await with_fixed_port(broker)

    sent = await pairgate(broker, "send", "orders", "hello", "--namespace", "here")

    assert sent[0] == os.EX_TEMPFAIL


async def test_the_pair_starts_while_one_side_is_down(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    gateway = gateways.prepare(pair_config(primary.address, secondary.address), name="gateway")
    gateway.folder.mkdir()
    gateway.config_file.write_text(gateway.config)
    provisioned = await pairgate(gateway, "provision", "--json")
    await primary.kill()

    await gateway.start()
    diverted = await send(gateway.address, "orders", b"one")
    await primary.start()
    arrived = await take(primary.address, "orders")

    assert provisioned[0] == 0, provisioned
    assert sum(len(made["queues"]) for made in json.loads(provisioned[1])) == 11
    assert diverted == (201, "backlog")
    assert arrived == b"one"
    assert await gateway.stop() == 0


async def test_the_secondary_may_be_down_at_start(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    await secondary.kill()

    gateway = await gateways.start(pair_config(primary.address, secondary.address))

    assert await send(gateway.address, "orders", b"one") == (201, "primary")
    doubts = [line["text"] for line in gateway.log if line["event"] == "doubtful"]
    assert any(text.startswith("the 10 backlog queues are assumed to exist") for text in doubts)
    assert gateway.count("backlog_ready") == 0


async def test_a_damaged_state_file_stops_the_start_with_a_text(gateways: Gateways) -> None:
    config = """
        [namespaces.east]
        url = "embedded:east.db"
        [namespaces.west]
        url = "embedded:west.db"
        [pairing]
        primary = "east"
        secondary = "west"
        label = "east"
        [[endpoints]]
        protocol = "service-bus-http"
        bind = "127.0.0.1:0"
    """
    gateway = gateways.prepare(config)
    (gateway.folder / "var").mkdir(parents=True)
    (gateway.folder / "var" / "state.json").write_text("{")

    await gateway.start(wait=False)

    assert await gateway.wait() == 1
    assert "state.json" in gateway.garbage[-1]
    assert len(gateway.garbage) == 1


async def test_no_backlog_queue_and_no_right_to_make_one_is_an_error_that_says_what_to_do(
    gateways: Gateways,
) -> None:
    access = f"""
        [[access]]
        name = "RootManageSharedAccessKey"
        key = {{ env = "{KEY_VARIABLE}" }}
        rights = ["Send", "Listen"]
    """
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config() + access, name="secondary")

    gateway = await gateways.start(pair_config(primary.address, secondary.address), wait=False)

    assert await gateway.wait() == 1
    assert "pairgate provision" in " ".join(gateway.garbage)


async def test_wrong_credentials_are_a_wrong_configuration(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    config = pair_config(primary.address, secondary.address)
    config = config.replace("RootManageSharedAccessKey", "Somebody")

    gateway = await gateways.start(config, wait=False)

    assert await gateway.wait() == 2
    assert "credentials" in " ".join(gateway.garbage)


async def test_a_syphon_of_its_own_moves_the_backlog(gateways: Gateways) -> None:
    await bring_home(gateways)


async def test_a_backlog_can_be_moved_to_another_namespace(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    elsewhere = await gateways.start(broker_config("orders"), name="elsewhere")
    config = pair_config(primary.address, secondary.address, enable_syphon=False)
    config += f"""
        [namespaces.elsewhere]
        url = "servicebus+http://{elsewhere.address}"
    """
    gateway = gateways.prepare(config)
    gateway.folder.mkdir()
    gateway.config_file.write_text(config)
    await pairgate(gateway, "provision")
    await gateway.start()
    await primary.kill()
    await send(gateway.address, "orders", b"one")

    await gateways.start(config, command=["syphon", "--to", "elsewhere"])

    assert await take(elsewhere.address, "orders") == b"one"


async def test_the_spool_takes_what_neither_side_takes(gateways: Gateways) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    await secondary.kill()
    config = pair_config(primary.address, secondary.address, spool="spool.db", enable_syphon=False)
    gateway = await gateways.start(config)
    await primary.kill()

    spooled = await send(gateway.address, "orders", b"one")
    await gateway.kill()
    await primary.start()
    await gateway.start()

    assert spooled == (201, "spool")
    assert await take(primary.address, "orders") == b"one"


async def test_the_embedded_default_is_a_pair_that_serves(gateways: Gateways) -> None:
    config = FREE_PORTS.replace('east.db"', 'east.db"\nqueues = ["orders"]')

    gateway = await gateways.start(config)

    assert await send(gateway.address, "orders", b"one") == (201, "primary")
    assert (await gateway.seen("backlog_ready"))["usable"] == 10
    assert await gateway.stop() == 0


async def test_a_pair_imports_what_its_first_send_needs_and_no_more(gateways: Gateways) -> None:
    gateways.environments["pair"] = {"PYTHONPROFILEIMPORTTIME": "1"}
    config = FREE_PORTS.replace('east.db"', 'east.db"\nqueues = ["orders"]')

    gateway = await gateways.start(config, name="pair")
    sent = await send(gateway.address, "orders", b"one")
    imported = {line.rpartition("|")[2].strip() for line in gateway.garbage}

    assert sent == (201, "primary")
    assert {"gateway.app.servers", "gateway.store.embedded.broker"} <= imported
    assert (
        imported
        & {
            "asyncio",
            "cryptography",
            "gateway.brokers.amqp.broker",
            "gateway.brokers.rabbitmq.broker",
            "gateway.brokers.servicebus.broker",
            "gateway.brokers.storage_queue.broker",
            "gateway.extensions.claims.opening",
            "gateway.extensions.cluster.cluster",
            "gateway.extensions.order.sends",
            "gateway.extensions.receive_in_outage.broker",
            "gateway.extensions.sharding.broker",
            "gateway.extensions.take_over.door",
            "gateway.frontends.rabbitmq.relayed_connection",
            "prometheus_client",
            "rich",
            "statistics",
            "structlog",
        }
        == set()
    )


async def test_a_running_pair_of_stores_is_provisioned_and_checked_through_its_endpoint(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(FREE_PORTS)
    text = gateway.config.replace('east.db"', 'east.db"\nqueues = ["orders"]')
    gateway.config_file.write_text(text)

    provisioned = await pairgate(gateway, "provision", "--json")
    checked = await pairgate(gateway, "check")

    assert json.loads(provisioned[1]) == [
        {"namespace": "east", "queues": ["orders"], "problem": None},
        {"namespace": "west", "queues": [], "problem": None},
    ]
    assert await send(gateway.address, "orders", b"one") == (201, "primary")
    assert checked[0] == 0
    assert "has it open" in checked[1]


async def test_check_tells_what_is_missing_and_an_outage_of_one_side_stops_no_other(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config(), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    wanted = pair_config(primary.address, secondary.address).replace(
        "[namespaces.secondary]", 'queues = ["orders"]\n\n[namespaces.secondary]'
    )
    gateway = gateways.prepare(wanted)
    gateway.folder.mkdir()
    gateway.config_file.write_text(gateway.config)

    before = await pairgate(gateway, "check", "--json")
    await primary.kill()
    partly = await pairgate(gateway, "provision", "--json")
    await primary.start()
    await pairgate(gateway, "provision")
    fresh = await pairgate(gateway, "check")
    async with client(secondary) as broker:  # as earlier versions made it
        await broker.delete_queue(backlog.queue_name("east", 3))
        await broker.create_queue(backlog.queue_name("east", 3), backlog.LEGACY_PROPERTIES)
    after = await pairgate(gateway, "check", "--json")
    await secondary.kill()
    down = await pairgate(gateway, "check")
    gateway.config_file.write_text(gateway.config.replace("RootManage", "Somebody"))
    refused = await pairgate(gateway, "check")

    assert (before[0], json.loads(before[1])["good"]) == (1, False)
    assert "queue orders is missing; `pairgate provision` creates it" in before[1]
    down_primary, done_secondary = json.loads(partly[1])
    assert partly[0] == 3
    assert "namespace primary" in down_primary["problem"]
    assert (len(done_secondary["queues"]), done_secondary["problem"]) == (11, None)
    assert (after[0], json.loads(after[1])["good"]) == (0, True)
    assert "missing" not in after[1]
    assert "lock messages for up to" not in fresh[1]
    assert "1 backlog queues lock messages for up to 60 s" in after[1]
    assert down[0] == 1
    assert "namespace secondary" in down[1]
    assert refused[0] == 1


async def test_a_folder_without_a_file_is_not_taken_for_an_empty_gateway(tmp_path: Path) -> None:
    result = await trio.run_process(
        [sys.executable, "-m", "gateway", "send", "orders", "hello", "--port-offset", "20000"],
        cwd=tmp_path,
        env=environment(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )

    assert result.returncode == 2
    assert f"{tmp_path}/var/east.db, which the embedded default names".encode() in result.stderr
    assert not (tmp_path / "var").exists()


async def test_an_unknown_queue_is_a_404(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))

    status, _, _ = await request(broker.address, "POST", "/nope/messages", b"x")

    assert status == 404
