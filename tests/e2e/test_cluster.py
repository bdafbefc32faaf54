"""
Two gateways of one cluster as processes: clients settle at one gateway the deliveries that the
other holds.
"""

import json
import os
import re
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio

from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import LockLost, MessageNotFound
from gateway.domain.message import Message
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Headers, Request, Response
from tests.brokers.storage_queue.azurites import client, url_of
from tests.e2e.azure_python import AZURE_PYTHON, HERE
from tests.e2e.load import pair_before_brokers
from tests.e2e.processes import IMPATIENT, KEY_VARIABLE, GatewayProcess, Gateways, broker_config
from tests.e2e.rest import request, send
from tests.frontends import storage_client
from tests.harness.azurite import KEY, azurite
from tests.harness.patience import PATIENCE
from tests.harness.servers import freeze

pytestmark = pytest.mark.slow

SECRET = "a secret of a cluster, for tests only"
KEY_IN_BASE64 = "YSBrZXkgZm9yIHRlc3RzIG9ubHk="  # storage_client.KEY
ORDERS = EntityPath("orders")
SETTLED = 12  # messages
# A process that a stall of the machine holds up is no peer that is gone.
WAITING = 'connect_timeout = "60s"\ntimeout = "2m"\n'
AMQP = "servicebus:Endpoint=sb://{}/;SharedAccessKeyName=RootManageSharedAccessKey;UseDevelopmentEmulator=true"


def cluster_config(pair: str, own: int, ports: list[int]) -> str:
    peers = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    return f"""{pair}
[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"

[[accounts]]
name = "{storage_client.ACCOUNT}"
key = {{ env = "ACCOUNT_KEY" }}

[cluster]
address = "127.0.0.1:{own}"
peers = [{peers}]
secrets = [{{ env = "CLUSTER_SECRET" }}]
{WAITING}"""


def served(config: str) -> str:
    """The configuration with one port for HTTP and AMQP."""
    return config.replace('"service-bus-http"', '"service-bus"')


async def cluster(gateways: Gateways, config: str) -> list[GatewayProcess]:
    """Start two gateways with that configuration, which know each other."""
    ports = [free_port(), free_port()]
    secrets = {"CLUSTER_SECRET": SECRET, "ACCOUNT_KEY": KEY_IN_BASE64, "AZURITE_KEY": KEY}
    gateways.environments |= {"one": secrets, "two": secrets}
    return [
        await gateways.start(cluster_config(config, own, ports), name=name)
        for name, own in zip(("one", "two"), ports, strict=True)
    ]


@attrs.frozen
class Remote:
    """A front end in another process, for a client that expects it here."""

    http: HttpClient

    async def handle(self, asked: Request, peer: str | None = None) -> Response:
        items = [(name, value) for name, value in asked.headers.items if name.lower() != "host"]
        return await self.http.request(attrs.evolve(asked, headers=Headers.of(items)))


def queue_client(http: HttpClient) -> storage_client.Client:
    remote: Any = Remote(http)
    broker: Any = None
    return storage_client.Client(remote, broker, lambda: datetime.now(UTC))  # type: ignore[arg-type]


async def locked(gateway: GatewayProcess) -> str:
    """Lock the next message, and return the path at which any gateway settles it."""
    status, headers, _ = await request(gateway.address, "POST", "/orders/messages/head?timeout=20")
    assert status == 201
    return urlsplit(headers["location"]).path


async def run_azure_locks(one: GatewayProcess, two: GatewayProcess) -> object:
    """Have the SDK receive at one of them and settle at the other one."""
    program = [str(AZURE_PYTHON), str(HERE / "locks_client.py")]
    command = [*program, one.address, two.address, str(SETTLED // 2)]
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


async def settled(gateway: GatewayProcess, method: str, path: str) -> tuple[int, str]:
    status, headers, _ = await request(gateway.address, method, path)
    return status, headers.get("x-pairgate-error", "")


async def feed(port: int, data: bytes) -> None:
    """Send that, and return when the other side has ended the connection."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        try:
            await stream.send_all(data)
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            return


async def test_any_gateway_settles_what_another_one_holds_until_that_one_is_killed(
    gateways: Gateways,
) -> None:
    one, two = await cluster(gateways, await pair_before_brokers(gateways))
    for number in range(8):
        assert (await send(one.address, "orders", b"%d" % number))[0] == 201

    # Service Bus REST, in both directions.
    assert await settled(two, "DELETE", await locked(one)) == (200, "")
    assert await settled(one, "DELETE", await locked(two)) == (200, "")
    renewed = await locked(one)
    assert await settled(two, "POST", renewed) == (200, "")
    assert await settled(two, "PUT", renewed) == (200, "")
    assert await settled(one, "DELETE", renewed) == (404, "lock-lost")

    async with (
        HttpClient("127.0.0.1", one.ports[1]) as http_one,
        HttpClient("127.0.0.1", two.ports[1]) as http_two,
    ):
        await use_and_kill(one, two, queue_client(http_one), queue_client(http_two))


async def test_a_gateway_suspects_what_another_one_suspects_before_it_has_sent_itself(
    gateways: Gateways,
) -> None:
    one, two = await cluster(gateways, await pair_before_brokers(gateways, **IMPATIENT))
    for gateway in (one, two):
        assert await send(gateway.address, "orders", b"before") == (201, "primary")

    await freeze(gateways.processes[0].pid)
    assert await send(one.address, "orders", b"at one") == (201, "backlog")
    found = await two.seen("entity_state_changed", entity="orders", before="primary")

    assert found["reason"].startswith("advice of 127.0.0.1:")
    assert await send(two.address, "orders", b"at two") == (201, "backlog")
    gateways.processes[0].signal(signal.SIGCONT)
    for gateway in (one, two):
        await gateway.seen("entity_state_changed", entity="orders", after="primary")


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_sdk_settles_at_any_process_of_any_gateway(
    gateways: Gateways, workers: int
) -> None:
    """
    The kernel chooses the worker of a connection, so that most settlements go to another worker.
    """
    broker = await gateways.start(served(broker_config("orders")), name="broker")
    before_it = broker_config(url=f"{AMQP.format(broker.address)}").replace(
        "queues =", f'key = {{ env = "{KEY_VARIABLE}" }}\nqueues ='
    )
    one, two = await cluster(gateways, f"workers = {workers}\n{served(before_it)}")
    for number in range(SETTLED):
        assert (await send(one.address, "orders", b"%d" % number))[0] == 201

    found = await run_azure_locks(one, two)
    among_workers = await run_azure_locks(one, one)

    assert found == among_workers == {"settled": SETTLED // 2, "errors": {}}


async def use_and_kill(
    one: GatewayProcess,
    two: GatewayProcess,
    at_one: storage_client.Client,
    at_two: storage_client.Client,
) -> None:
    # The Queue service.
    (got,) = await at_one.get()
    await at_two.delete(await at_two.update(got, 60))
    with pytest.raises(MessageNotFound):
        await at_one.delete(got)

    # A side that isn't a gateway gets nowhere, and does no harm.
    port = int(re.findall(r'address = "127.0.0.1:(\d+)"', one.config)[0])
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"PGCLUST1" + os.urandom(4096)):
        with trio.fail_after(PATIENCE):
            await feed(port, garbage)
    assert await settled(two, "DELETE", await locked(one)) == (200, "")
    await one.seen("peer_refused")
    assert one.count("connection_crashed") == 0

    # The holder is killed, and started again. With the namespace's own token it isn't needed.
    path, (hidden,) = await locked(one), await at_one.get()
    await one.kill()
    for answer in ((200, ""), (404, "lock-lost")):
        with trio.fail_after(PATIENCE):
            assert await settled(two, "DELETE", path) == answer
            with pytest.raises((LockLost, MessageNotFound)):
                await at_two.delete(hidden)
        if not one.running:
            await two.seen("peer_lost")
            assert two.count("peer_lost") == 1
            await one.start()

    # Nothing that was refused was settled: of eight messages, five are, and one is locked.
    await two.seen("peer_found")
    left = [await locked(gateway) for gateway in (one, two)]
    for path in left:
        assert await settled(two, "DELETE", path) == (200, "")


@pytest.mark.live
async def test_any_gateway_deletes_what_a_killed_one_got_from_a_storage_account(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with azurite(tmp_path / "account") as (_, port), client(port) as account:
        await account.create_queue(ORDERS, QueueProperties())
        await account.send(ORDERS, [Message(body=b"%d" % number) for number in range(4)])
        alone = broker_config("orders", url=f"storage-queue:{url_of(port)}")
        alone = alone.replace("queues =", 'key = { env = "AZURITE_KEY" }\nqueues =')
        one, two = await cluster(gateways, alone)
        async with (
            HttpClient("127.0.0.1", one.ports[1]) as http_one,
            HttpClient("127.0.0.1", two.ports[1]) as http_two,
        ):
            at_one, at_two = queue_client(http_one), queue_client(http_two)
            first, second, third = await at_one.get(limit=3, hidden=300)
            await at_two.delete(first)
            second = await at_two.update(second, 300, "changed")
            await one.kill()
            third = await at_two.update(third, 300)
            await at_two.delete(third)
            with pytest.raises((LockLost, MessageNotFound)):
                await at_two.delete(third)
            await one.start()
            await at_one.delete(second)
            (left,) = await at_one.get(limit=32)
            await at_two.delete(left)
        assert (await account.inspect(ORDERS)).active == 0
        assert two.count("peer_lost") == 0, "no other gateway was asked"
