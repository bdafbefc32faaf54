"""A gateway of several processes, as real processes, from a client's and an operator's view."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from gateway.app.runtime import Runtime
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import open_namespace as open_amqp
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Complete, Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.workers.pool import ANSWER_SECONDS
from gateway.net.certs import write_certificates
from gateway.net.http.client import HttpClient
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.wire.http.messages import Headers, Request, Response
from tests.e2e.commands import ADMIN, call, get, pairgate, samples, status_at, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.plain_rest import KEY, KEY_NAME
from tests.e2e.processes import (
    ENVELOPE_SECRET,
    GatewayProcess,
    Gateways,
    broker_config,
    pair_config,
)
from tests.e2e.workers import Connection
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS: Final = EntityPath("orders")
LOOK: Final = 0.02
CONNECTIONS: Final = 16
DELAY: Final = 1.0  # seconds, of a drill: a send without it takes less, also on a busy machine
MOST_CONNECTIONS: Final = 500


@asynccontextmanager
async def connections(
    gateway: GatewayProcess, number: int = CONNECTIONS
) -> AsyncIterator[list[Connection]]:
    async with AsyncExitStack() as stack:
        made = [Connection(gateway.address) for _ in range(number)]
        for each in made:
            stack.push_async_callback(each.aclose)
        yield made


async def connect_to_all(gateway: GatewayProcess, stack: AsyncExitStack) -> dict[Connection, int]:
    """
    Connections, each of which has sent one message, with the worker that serves it. The kernel
    chooses, so there are as many as it takes for each worker to have some.
    """
    pids, servers = pids_of(gateway), dict[Connection, int]()
    while min(list(servers.values()).count(pid) for pid in pids) < CONNECTIONS // 4:
        assert len(servers) < MOST_CONNECTIONS, "one worker accepts nothing"
        connection = Connection(gateway.address)
        stack.push_async_callback(connection.aclose)
        assert await connection.send(f"first {len(servers)}") == (201, "primary")
        servers[connection] = server_of(gateway.port, connection.client_port, pids)
    return servers


def server_of(gateway_port: int, client_port: int, pids: list[int]) -> int:
    """The one of these processes that has the connection of that client."""
    wanted = (f"{gateway_port:04X}", f"{client_port:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = tuple(field.rpartition(":")[2] for field in fields[1:3])
        if ports == wanted:
            inode = fields[9]
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(descriptor) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("no worker has it")


def pids_of(gateway: GatewayProcess) -> list[int]:
    """The running workers, by their numbers."""
    newest = {
        line["worker"]: line["pid"] for line in gateway.log if line["event"] == "worker_started"
    }
    return [newest[number] for number in sorted(newest)]


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """Wait, by polling, until another process has made the condition true."""
    with trio.fail_after(PATIENCE):
        while True:
            if await happened():
                return
            await trio.sleep(LOOK)


async def until_accepted(number: int, accepted: Sized) -> None:
    async def enough() -> bool:
        await trio.lowlevel.checkpoint()
        return len(accepted) >= number

    await until(enough)


def is_gone(pid: int) -> bool:
    """True if the process has ended, even if its parent hasn't waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def status_of(gateway: GatewayProcess) -> Any:
    return await status_at(gateway.ports[-1])


async def answered_by_all(gateway: GatewayProcess) -> Any:
    """
    A status in time, to which each worker has answered: it has heard of all changes before the
    question.
    """
    with trio.fail_after(PATIENCE):
        while True:
            began = trio.current_time()
            told = await status_of(gateway)
            if trio.current_time() - began < ANSWER_SECONDS:
                return told


def sent_of(status: Any) -> Counter[str]:
    sends = status["pair"]["sends"]
    return Counter({each["accepted_by"]: each["messages"] for each in sends})


async def until_known(gateway: GatewayProcess, state: str) -> None:
    """Wait until the parent knows of one troubled entity, in that state."""

    async def is_known() -> bool:
        told = await status_of(gateway)
        return [each["state"] for each in told["pair"]["entities"]] == [state]

    await until(is_known)


async def until_sent(gateway: GatewayProcess, **messages: int) -> Any:
    """
    Wait until the status has these counts, and return it. A worker without the processor for a
    second answers late, and its last counts are taken.
    """
    seen: list[Any] = []

    async def is_counted() -> bool:
        seen.append(await status_of(gateway))
        return sent_of(seen[-1]) == messages

    await until(is_counted)
    return seen[-1]


@attrs.frozen
class Installed:
    primary: GatewayProcess
    secondary: GatewayProcess
    gateway: GatewayProcess


async def install(gateways: Gateways, more: str = "", **pairing: object) -> Installed:
    """Two brokers, and a gateway of two workers with an admin endpoint as its last."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    backlog = [f"east/x-servicebus-transfer/{index}" for index in range(3)]
    secondary = await gateways.start(broker_config(*backlog), name="secondary")
    pairing = {"backlog_queues": 3, **pairing}
    pair = pair_config(primary.address, secondary.address, **pairing)
    config = f"workers = 2\n{pair}{more}{ADMIN}"
    return Installed(primary, secondary, await gateways.start(config, name="gateway"))


async def kept_of(broker: GatewayProcess, queue: EntityPath = ORDERS) -> Counter[str]:
    """The bodies of all messages in a queue."""
    async with client(broker) as service:
        found = await service.peek(queue, limit=100_000)
    return Counter(each.message.body.decode() for each in found)


async def test_a_killed_worker_ends_its_connections_alone_and_nothing_that_was_accepted(
    gateways: Gateways,
) -> None:
    installed = await install(gateways)
    gateway = installed.gateway
    accepted: set[str] = set()
    broken: set[Connection] = set()
    stopping = trio.Event()

    async def produce(name: int, connection: Connection) -> None:
        number = 0
        while not stopping.is_set():
            text = f"{name}-{number}"
            number += 1
            try:
                status, _ = await connection.send(text)
            except BrokerError:
                broken.add(connection)
                return
            assert status == 201
            accepted.add(text)

    pids = pids_of(gateway)
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        servers = await connect_to_all(gateway, stack)
        for name, connection in enumerate(servers):
            nursery.start_soon(produce, name, connection)
        await until_accepted(200, accepted)
        os.kill(pids[0], signal.SIGKILL)
        await gateway.seen("worker_lost", worker=1, reason="signal 9")
        await gateway.until(lambda: gateway.count("worker_started", worker=1) == 2)
        await until_accepted(len(accepted) + 100, accepted)
        stopping.set()
    after = Connection(gateway.address)
    last = await after.send("after")
    await after.aclose()
    kept = await kept_of(installed.primary)

    assert broken == {each for each, pid in servers.items() if pid == pids[0]}
    assert last == (201, "primary")
    assert accepted <= kept.keys()
    assert await gateway.stop() == 0
    assert gateway.garbage == []


async def test_a_failover_that_one_worker_decides_is_every_workers(gateways: Gateways) -> None:
    installed = await install(gateways, failover_interval="0s", enable_syphon=False)
    gateway = installed.gateway
    async with connections(gateway) as made:
        healthy = [await each.send("before") for each in made]
        await installed.primary.kill()
        first = await made[0].send("first")
        await until_known(gateway, "secondary")
        for _ in range(2):
            told = await answered_by_all(gateway)
        others = [await each.send("after") for each in made]

        async def all_are_told() -> bool:
            """Histograms and connections of all workers; one that is busy answers later."""
            status = await status_of(gateway)
            lasted = {each["accepted_by"]: each["seconds"] for each in status["pair"]["durations"]}
            counts = {name: sum(seconds["counts"]) for name, seconds in lasted.items()}
            served = {each["protocol"]: each["open"] for each in status["connections"]}
            wanted = {"primary": CONNECTIONS, "backlog": CONNECTIONS + 1}
            return counts == wanted and served["service-bus-http"] == CONNECTIONS

        await until(all_are_told)

    assert healthy == [(201, "primary")] * CONNECTIONS
    assert first == (201, "backlog")
    assert others == [(201, "backlog")] * CONNECTIONS
    assert [each["state"] for each in told["pair"]["entities"]] == ["secondary"]
    assert gateway.count("entity_state_changed", after="secondary") == 1

    await installed.primary.start()
    await gateway.seen("entity_state_changed", after="primary")
    async with connections(gateway) as made:

        async def all_returned() -> bool:
            return {await each.send("again") for each in made} == {(201, "primary")}

        await until(all_returned)


async def test_a_new_worker_knows_what_has_failed_over(gateways: Gateways) -> None:
    installed = await install(gateways, failover_interval="0s", enable_syphon=False)
    gateway = installed.gateway
    async with connections(gateway, 1) as made:
        assert await made[0].send("before") == (201, "primary")
        await installed.primary.kill()
        assert await made[0].send("first") == (201, "backlog")
        await until_known(gateway, "secondary")
    for pid in pids_of(gateway):
        os.kill(pid, signal.SIGKILL)
    await gateway.until(lambda: gateway.count("worker_started") == 4)
    async with connections(gateway) as made:
        answers = [await each.send("after") for each in made]

    assert answers == [(201, "backlog")] * CONNECTIONS
    assert gateway.count("entity_state_changed") == 1


async def test_a_drill_cuts_the_way_of_all_workers_and_of_one_that_starts_meanwhile(
    gateways: Gateways,
) -> None:
    """Each send to the primary is late in each worker. (A failover would be every worker's.)"""
    allowed = "\n[drill]\nallowed = true\n"
    gateway = (await install(gateways, allowed)).gateway

    async def steer(path: str, order: object) -> Any:
        asked = await trio.to_thread.run_sync(call, gateway.ports[-1], "POST", path, order)
        assert asked[0] == 200, asked
        return json.loads(asked[1])

    async def all_are(late: bool, servers: dict[Connection, int]) -> bool:
        """True if each worker's next send is late, or none is."""
        sends: dict[int, list[bool]] = {}

        async def send_one(connection: Connection, pid: int) -> None:
            began = trio.current_time()
            assert await connection.send("one") == (201, "primary")
            sends.setdefault(pid, []).append(trio.current_time() - began >= DELAY)

        async with trio.open_nursery() as nursery:
            for connection, pid in servers.items():
                nursery.start_soon(send_one, connection, pid)
        assert sends.keys() == set(pids_of(gateway))
        return {each for several in sends.values() for each in several} == {late}

    async with AsyncExitStack() as stack:
        servers = await connect_to_all(gateway, stack)
        began = await steer("/v1/drill", {"seconds": 600, "fault": "slow", "delay": DELAY})
        await until(partial(all_are, True, servers))
        told = await status_of(gateway)
        os.kill(pids_of(gateway)[0], signal.SIGKILL)
        await gateway.until(lambda: gateway.count("worker_started") == 3)
        others = await connect_to_all(gateway, stack)
        assert await all_are(True, others)
        ended = await steer("/v1/end-drill", {})
        await until(partial(all_are, False, others))

    assert (began["changed"], ended["changed"]) == (True, True)
    assert told["pair"]["drill"]["fault"] == "slow"
    assert (gateway.count("drill_began"), gateway.count("drill_ended")) == (1, 1)


async def test_workers_need_no_parent_to_send_and_to_fail_over(gateways: Gateways) -> None:
    installed = await install(gateways, failover_interval="0s", enable_syphon=False)
    gateway = installed.gateway
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        async with connections(gateway) as made:
            healthy = [await each.send("before") for each in made]
            await installed.primary.kill()
            diverted = [await each.send("after") for each in made]
    finally:
        os.kill(gateway.pid, signal.SIGCONT)

    await until_known(gateway, "secondary")
    await until_sent(gateway, primary=CONNECTIONS, backlog=CONNECTIONS)

    assert healthy == [(201, "primary")] * CONNECTIONS
    assert diverted == [(201, "backlog")] * CONNECTIONS


async def test_an_unknown_entity_is_known_to_all_workers_once_one_has_sent_to_it(
    gateways: Gateways,
) -> None:
    installed = await install(
        gateways, failover_interval="0s", enable_syphon=False, unknown_entity="refuse"
    )
    gateway = installed.gateway
    async with connections(gateway, 1) as made:
        assert await made[0].send("before") == (201, "primary")
    state = gateway.folder / "var" / "state.json"

    async def is_saved_by_the_parent() -> bool:
        await trio.lowlevel.checkpoint()
        return state.exists() and bool(json.loads(state.read_text())["known"])

    await until(is_saved_by_the_parent)
    for pid in pids_of(gateway):
        os.kill(pid, signal.SIGKILL)
    await gateway.until(lambda: gateway.count("worker_started") == 4)
    await installed.primary.kill()
    async with connections(gateway) as made:
        answers = [await each.send("after") for each in made]

    assert answers == [(201, "backlog")] * CONNECTIONS


async def test_status_and_metrics_are_of_all_workers_also_of_those_that_ended(
    gateways: Gateways,
) -> None:
    gateway = (await install(gateways)).gateway
    async with connections(gateway) as made:
        for each in made:
            assert await each.send("one") == (201, "primary")
        await until_sent(gateway, primary=CONNECTIONS)
        _, metrics = await trio.to_thread.run_sync(get, gateway.ports[-1], "/metrics")
    os.kill(pids_of(gateway)[1], signal.SIGTERM)  # the worker drains, and reports all its counts
    await gateway.until(lambda: gateway.count("worker_started", worker=2) == 2)
    async with connections(gateway) as made:
        for each in made:
            await each.send("two")
        after = await until_sent(gateway, primary=2 * CONNECTIONS)

    assert samples(metrics)["messaging_client_sent_messages_total"] == CONNECTIONS
    assert after["events"]["worker_lost"] == 1
    usage = {each["name"]: each["usage"] for each in after["namespaces"]}
    assert usage["primary"]["sent"] == 2 * CONNECTIONS
    assert after["pair"]["max_inflight"] <= 64 * 1024 * 1024


async def test_sigterm_drains_all_workers(gateways: Gateways) -> None:
    installed = await install(gateways)
    gateway = installed.gateway
    accepted: set[str] = set()
    refused: list[Connection] = []

    async def produce(name: int, connection: Connection) -> None:
        number = 0
        with suppress(BrokerError):
            while True:
                number += 1
                status, _ = await connection.send(f"{name}-{number}")
                # The request arrived just when the connection ended, and was never begun.
                if status == 408:
                    break
                assert status == 201
                accepted.add(f"{name}-{number}")
        refused.append(connection)

    async with connections(gateway) as made, trio.open_nursery() as nursery:
        for name, connection in enumerate(made):
            nursery.start_soon(produce, name, connection)
        await until_accepted(100, accepted)
        pids = pids_of(gateway)
        code = await gateway.stop()

    assert code == 0
    assert all(map(is_gone, pids))
    assert len(refused) == CONNECTIONS
    assert gateway.count("draining") == 3
    assert gateway.count("worker_lost") == 0
    assert gateway.log[-1]["event"] == "stopped"
    assert accepted <= (await kept_of(installed.primary)).keys()


async def test_sighup_reaches_all_workers_and_those_that_come_later(gateways: Gateways) -> None:
    gateway = (await install(gateways)).gateway
    access = """
[[access]]
name = "sender"
key = { env = "PAIRGATE_TEST_ENVELOPE_KEY" }
rights = ["Send"]
"""
    gateway.config_file.write_text(gateway.config + access)
    gateway.signal(signal.SIGHUP)
    await gateway.until(lambda: gateway.count("reloaded") == 3)
    first = await asked_with_the_new_key(gateway)
    os.kill(pids_of(gateway)[0], signal.SIGKILL)
    await gateway.until(lambda: gateway.count("reloaded") == 4)
    later = await asked_with_the_new_key(gateway)

    assert first == later == {"sender": {201}, KEY_NAME: {401}}
    assert {line.get("worker") for line in gateway.log if line["event"] == "reloaded"} == {
        None,
        1,
        2,
    }


async def asked_with_the_new_key(gateway: GatewayProcess) -> dict[str, set[int]]:
    keys = {"sender": ENVELOPE_SECRET, KEY_NAME: KEY}
    found: dict[str, set[int]] = {}
    for name, key in keys.items():
        made = [Connection(gateway.address, name, key) for _ in range(CONNECTIONS)]
        found[name] = {(await each.send("one"))[0] for each in made}
        for each in made:
            await each.aclose()
    return found


async def test_workers_without_their_parent_finish_and_end(gateways: Gateways) -> None:
    gateway = (await install(gateways)).gateway
    pids = pids_of(gateway)
    async with connections(gateway) as made:
        for each in made:
            assert await each.send("one") == (201, "primary")
        await gateway.kill()

        async def all_are_gone() -> bool:
            await trio.lowlevel.checkpoint()
            return all(map(is_gone, pids))

        await until(all_are_gone)

    # The last process has ended, and its last lines may not be read yet.
    await gateway.until(lambda: gateway.count("draining", reason="the parent has ended") == 2)


async def test_a_lock_that_one_worker_gave_is_settled_at_another(gateways: Gateways) -> None:
    gateway = (await install(gateways)).gateway
    statuses = []
    async with connections(gateway) as made:
        for number, each in enumerate(made):
            assert await each.send(str(number)) == (201, "primary")
        for each, other in zip(made, reversed(made), strict=True):
            received = await each.ask("POST", "/orders/messages/head?timeout=20")
            properties = json.loads(received.headers.get("BrokerProperties") or "{}")
            path = f"/orders/messages/{properties['MessageId']}/{properties['LockToken']}"
            settled = await other.ask("DELETE", path)
            statuses.append((received.status, settled.status))
        empty = await made[0].ask("POST", "/orders/messages/head?timeout=0")

    assert statuses == [(201, 200)] * CONNECTIONS
    assert empty.status == 204


EMBEDDED = """
workers = 2
logging = { level = "debug" }

[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]

[namespaces.west]
url = "memory:"

[pairing]
primary = "east"
secondary = "west"
label = "east"
enable_syphon = true

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"
"""


async def test_workers_share_the_stores_of_their_parent(gateways: Gateways) -> None:
    gateway = await gateways.start(EMBEDDED + ADMIN)
    async with connections(gateway) as made:
        sent = [await each.send(str(number)) for number, each in enumerate(made)]
        os.kill(pids_of(gateway)[0], signal.SIGKILL)
        await gateway.until(lambda: gateway.count("worker_started", worker=1) == 2)
        told = await status_of(gateway)
    kept = await kept_of(gateway)
    code = await gateway.stop()

    assert sent == [(201, "primary")] * CONNECTIONS
    assert kept == Counter(str(number) for number in range(CONNECTIONS))
    assert told["namespaces"][0]["usage"]["sent"] == CONNECTIONS
    assert code == 0
    assert gateway.garbage == []


async def test_an_amqp_client_of_a_worker_uses_sessions_and_topics_of_a_store(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(EMBEDDED + ADMIN)
    options = ServiceBusOptions(key=KEY)
    name = f"Endpoint=sb://{gateway.address};SharedAccessKeyName={KEY_NAME};"
    namespace = open_amqp(
        f"{name}UseDevelopmentEmulator=true", options, Runtime.now, random.Random(1)
    )
    with_sessions = QueueProperties(requires_session=True)
    with trio.fail_after(PATIENCE):
        async with namespace as service:
            await service.create_queue(EntityPath("carts"), with_sessions)
            await service.create_topic(EntityPath("news"), TopicProperties())
            await service.create_subscription(EntityPath("news"), "all", SubscriptionProperties())
            await service.send(EntityPath("carts"), [Message(body=b"one", session_id="a")])
            await service.send(EntityPath("news"), [Message(body=b"two")])
            later = datetime.now(UTC) + timedelta(hours=1)
            (number,) = await service.schedule(
                ORDERS, [Message(body=b"three", message_id="3", scheduled=later)]
            )
            async with service.open_session(EntityPath("carts"), "a") as session:
                await session.set_state(b"half full")
                state = await session.get_state()
                (first,) = await session.receive(1)
                await session.settle(first, Complete())
            async with service.open_receiver(EntityPath("news/subscriptions/all")) as receiver:
                (second,) = await receiver.receive(1)
                await receiver.renew(second)
                await receiver.settle(second, Complete())
            await service.cancel_scheduled(ORDERS, [number])

    assert (first.message.body, state, second.message.body) == (b"one", b"half full", b"two")


CERTIFIED = """
tls = { certificate = "tls/server.pem", key = "tls/server.key", client_ca = "tls/ca.pem" }

[[access]]
name = "by-certificate"
certificates = ["CN=pairgate-client"]
rights = ["Manage"]
"""


async def test_a_certificate_gives_its_rights_in_every_request_of_a_worker(
    gateways: Gateways,
) -> None:
    gateway = gateways.prepare(f"workers = 2\n{broker_config('orders')}{CERTIFIED}")
    folder = gateway.folder / "tls"
    write_certificates(folder, now=datetime.now(UTC))
    await gateway.start()
    files = {"certificate": folder / "client.pem", "key": folder / "client.key"}
    tls = client_context(ClientTlsOptions(ca=folder / "ca.pem", **files))
    clients = [HttpClient("localhost", gateway.port, tls=tls) for _ in range(4)]
    statuses = []

    async def ask(client: HttpClient, method: str, target: str, **fields: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        request = Request(method=method, target=target, headers=Headers.of(named))
        answer = await client.request(request)
        statuses.append(answer.status)
        return answer

    with trio.fail_after(PATIENCE):
        for each, other in zip(clients, reversed(clients), strict=True):
            await ask(each, "POST", "/orders/messages")
            received = await ask(each, "POST", "/orders/messages/head?timeout=20")
            properties = json.loads(received.headers.get("BrokerProperties") or "{}")
            path = f"/orders/messages/{properties['MessageId']}/{properties['LockToken']}"
            await ask(other, "DELETE", path)
            await ask(each, "GET", "/$Resources/Queues")
        await ask(clients[0], "GET", "/$Resources/Queues", Authorization="SharedAccessSignature x")
        for each in clients:
            await each.aclose()

    assert statuses == [201, 201, 200, 200] * len(clients) + [401]


async def test_workers_send_to_the_spool_of_their_parent(gateways: Gateways) -> None:
    installed = await install(gateways, failover_interval="0s", spool="spool.db")
    gateway = installed.gateway
    async with connections(gateway) as made:
        healthy = {await each.send("before") for each in made}
        await installed.primary.kill()
        await installed.secondary.kill()
        answers = [await each.send(str(number)) for number, each in enumerate(made)]
        told = await status_of(gateway)
    await installed.primary.start()

    async def all_are_back() -> bool:
        return set(map(str, range(CONNECTIONS))) <= (await kept_of(installed.primary)).keys()

    await until(all_are_back)
    assert healthy == {(201, "primary")}
    assert answers == [(201, "spool")] * CONNECTIONS
    assert told["pair"]["spool"]["pending"] == CONNECTIONS
    assert told["pair"]["spool"]["rate_in"] > 0


async def test_workers_without_an_endpoint_are_refused(gateways: Gateways) -> None:
    gateway = gateways.prepare(EMBEDDED.replace('"service-bus"', '"admin"'))
    gateway.folder.mkdir(parents=True)
    await with_fixed_port(gateway)
    for command in ("check", "serve"):
        code, _, errors = await pairgate(gateway, command)

        assert code == 2
        assert "workers: 1 expected" in errors
