"""A gateway before a real RabbitMQ, for tests with RabbitMQ's own clients."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pika
import trio

from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rabbitmq_exchange_publisher import COPIES, PREFIX
from tests.harness.blocking import blocking, pika_connection
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import INSTALLED, LastingNode, Release, evaluate
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess, kill

PUBLISHER = Path(__file__).with_name("rabbitmq_publisher.py")
TAKEN = "taken"  # the queue that has a consumer
# Type of an exchange -> its binding to the queue of that name; to another it isn't bound so.
BINDINGS = {
    "topic": ("order.*", {}),
    "direct": ("order", {}),
    "fanout": ("", {}),
    "headers": ("", {"x-match": "all", "vip": True}),
}
STRAYED = "strayed"  # the queue with the other bindings
LOOK = 0.2  # seconds
EMPTY = """
rabbit_vhost:delete(<<"/">>, <<"tests">>),
rabbit_vhost:add(<<"/">>, <<"tests">>),
All = <<".*">>,
rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, All, All, All, <<"tests">>).
"""


@attrs.define(eq=False)
class Site:
    broker: ServerProcess
    broker_port: int
    gateway: GatewayProcess

    def connect(self, *, direct: bool = False, **how: Any) -> pika.BlockingConnection:
        port = self.broker_port if direct else self.gateway.port
        return pika_connection(port, **how)

    async def mend(self) -> None:
        """Start the broker, which is down; return when the outage is over."""
        before = self.gateway.count("outage_over")  # of outages that were stalls of the machine
        await self.broker.start()
        await self.gateway.until(lambda: self.gateway.count("outage_over") > before, PATIENCE)

    async def until_backlog_is_empty(self) -> None:
        """Return when no message is at the backlog, by what the gateway has told last."""
        kinds = ("diverted", "syphoned", "backlog_empty")

        def is_empty() -> bool:
            told = (line["event"] for line in reversed(self.gateway.log) if line["event"] in kinds)
            return next(told, "backlog_empty") == "backlog_empty"

        await self.gateway.until(is_empty, PATIENCE)

    def depth(self, queue: str = "orders") -> int:
        return int(self._declared(queue).message_count)

    def consumers(self, queue: str) -> int:
        return int(self._declared(queue).consumer_count)

    def _declared(self, queue: str) -> Any:
        connection = self.connect(direct=True)
        try:
            return connection.channel().queue_declare(queue, passive=True).method
        finally:
            connection.close()

    def declare(self) -> None:
        """Let the gateway know what publishers use that may still start."""
        connection = self.connect()
        channel = connection.channel()
        channel.queue_declare(TAKEN, durable=True)
        for kind in BINDINGS:
            channel.exchange_declare(PREFIX + kind, kind, durable=True)
        connection.close()

    def start_in_outage(self) -> None:
        """Connect, declare what is known, and publish, as an application that starts."""
        connection = self.connect()
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(TAKEN, durable=True)
        channel.basic_publish("", TAKEN, b"of the outage", pika.BasicProperties(delivery_mode=2))
        connection.close()

    def announce(self) -> None:
        """Publish to the queues that are bound to `amq.topic`."""
        connection = self.connect(direct=True)
        connection.channel().basic_publish("amq.topic", "news", b"news")
        connection.close()

    def drained(self, queue: str = "orders") -> list[tuple[Any, bytes]]:
        """All messages of the queue, taken directly from the broker."""
        connection, found = self.connect(direct=True), []
        channel = connection.channel()
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[1], message[2]))
        connection.close()
        return found


def make_queue(port: int) -> None:
    connection = pika_connection(port)
    channel = connection.channel()
    for queue in ("orders", TAKEN, COPIES, STRAYED, *BINDINGS):
        channel.queue_declare(queue, durable=True)
    for kind, (key, arguments) in BINDINGS.items():
        channel.exchange_declare(PREFIX + kind, kind, durable=True)
        channel.queue_bind(kind, PREFIX + kind, key, arguments)
        if kind != "fanout":
            other = {**arguments, "vip": False} if arguments else {}
            channel.queue_bind(STRAYED, PREFIX + kind, f"{key}.other", other)
    channel.queue_bind(COPIES, f"{PREFIX}topic", COPIES)
    connection.close()


@attrs.define(eq=False)
class SiteNodes:
    """A node of each release, which starts when it's first needed."""

    folder: Path
    _nodes: dict[Release, LastingNode] = attrs.field(factory=dict)

    async def emptied(self, release: Release) -> tuple[ServerProcess, int]:
        """Return a node and its port for AMQP; it runs, and has no queues, exchanges or clients."""
        if release not in self._nodes:
            name = f"site-{len(self._nodes)}"
            self._nodes[release] = LastingNode(folder=self.folder / name, release=release)
            self._nodes[release].begin()
        node = self._nodes[release]
        process = await trio.to_thread.run_sync(lambda: node.process)
        if not await process.is_ready():  # a test has killed it
            await process.kill()
            await process.start()
        await evaluate(process, EMPTY)
        return process, node.port

    def end(self) -> None:
        for node in self._nodes.values():
            node.end()


@attrs.frozen
class Sites:
    """Opens the site of a test."""

    nodes: SiteNodes
    gateways: Gateways
    folder: Path

    @asynccontextmanager
    async def open(self, release: Release = INSTALLED, *, more: str = "") -> AsyncIterator[Site]:
        """`more`: lines of the endpoint, and tables. A test that fails ends its broker."""
        secret = self.folder / "password"
        write_secret(secret, "guest\n")
        node, port = await self.nodes.emptied(release)
        config = f"""
            logging = {{ level = "debug" }}
            [namespaces.first]
            url = "rabbitmq://guest@127.0.0.1:{port}"
            password = {{ file = {json.dumps(str(secret))} }}
            [namespaces.second]
            url = "embedded:second.db"
            [pairing]
            primary = "first"
            secondary = "second"
            label = "own-clients"
            failover_interval = "5s"
            slow_call_duration = "8s"  # longer than the machine stalls
            ping_interval = "1s"
            enable_syphon = true
            [pairing.syphon]
            rescan = "1s"
            retry = {{ first = "500ms", cap = "2s" }}
            queue_retry = {{ first = "500ms", cap = "2s" }}
            [[endpoints]]
            protocol = "rabbitmq"
            bind = "127.0.0.1:0"
            {more}
        """
        await blocking(make_queue, port)
        try:
            yield Site(node, port, await self.gateways.start(config, name="gateway"))
        except BaseException:
            with trio.move_on_after(PATIENCE, shield=True):
                await node.kill()
            raise


async def until_depth(site: Site, least: int, queue: str = "orders") -> None:
    with trio.fail_after(PATIENCE):
        while True:
            if await blocking(site.depth, queue) >= least:
                return
            await trio.sleep(LOOK)


async def published(
    site: Site, name: str, end: trio.Event, password: str = "guest", queue: str = "orders"
) -> dict[str, Any]:
    """The result of a publisher that is told to end."""
    return await result_of(end, PUBLISHER, str(site.gateway.port), queue, name, password)


async def result_of(end: trio.Event, script: Path, *arguments: str) -> dict[str, Any]:
    """The output of a client that is told to end."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                deliver_cancel=kill,
                check=False,
            )
        )
        await end.wait()
        with suppress(trio.BrokenResourceError):  # it has ended by itself
            await process.stdin.send_all(b"end\n")
        output = b"".join([part async for part in process.stdout])
    result: dict[str, Any] = json.loads(output)
    return result
