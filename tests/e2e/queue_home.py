"""
RabbitMQ's own client through a gateway before a cluster, where the node is restarted that alone
has a queue: parts of the tests on both releases.
"""

import threading
from collections.abc import Sequence
from typing import Any

import pika
import trio

from gateway.domain.entity import EntityPath
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.harness.blocking import blocking, pika_connection
from tests.harness.patience import PATIENCE

QUEUE = EntityPath("at-home")
SOME = 20  # messages
CONFIG = """
logging = {{ level = "debug" }}

[namespaces.first]
{cluster}

[namespaces.second]
url = "embedded:second.db"

[pairing]
primary = "first"
secondary = "second"
label = "queue-home"
failover_interval = "1s"
ping_interval = "1s"
backlog_cooldown = "1s"
enable_syphon = true

[pairing.syphon]
rescan = "1s"
retry = {{ first = "500ms", cap = "2s" }}
queue_retry = {{ first = "500ms", cap = "2s" }}

[[endpoints]]
protocol = "rabbitmq"
bind = "127.0.0.1:0"
"""


class Publisher:
    """A connection that declares the queue before each publish, as Celery does."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.connection = pika_connection(gateway.port)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def publish(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.channel.queue_declare(QUEUE.name, durable=True)
            properties = pika.BasicProperties(delivery_mode=2)
            self.channel.basic_publish("", QUEUE.name, body, properties, mandatory=True)


class Consumer:
    """Takes messages in a thread until it is told to end."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.port = gateway.port
        self.bodies: list[bytes] = []
        self.error = ""
        self.is_ending = threading.Event()

    def run(self) -> None:
        try:
            connection = pika_connection(self.port)
            channel = connection.channel()
            channel.add_on_cancel_callback(self._note_cancel)
            channel.basic_qos(prefetch_count=5)
            channel.basic_consume(QUEUE.name, self._take, consumer_tag="only")
            while not self.is_ending.is_set():
                connection.process_data_events(time_limit=0.2)
            connection.close()
        except pika.exceptions.AMQPError as error:
            self.error = repr(error)

    def _take(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        self.bodies.append(body)
        channel.basic_ack(method.delivery_tag)

    def _note_cancel(self, frame: Any) -> None:
        self.error = f"cancelled: {frame}"

    async def has(self, bodies: Sequence[bytes]) -> None:
        """Return when each of these has come."""
        with trio.fail_after(PATIENCE):
            while not (set(bodies) <= set(self.bodies) or self.error):  # noqa: ASYNC110 a thread does it
                await trio.sleep(0.1)
        assert not self.error


def numbered(kind: str) -> list[bytes]:
    return [f"{kind} {number}".encode() for number in range(SOME)]


async def restart_unnoticed(cluster: SharedCluster, gateways: Gateways) -> None:
    """Restart the queue's node under a publisher and a consumer, who notice nothing."""
    async with cluster.client("b", "c") as others:
        await cluster.make_classic(QUEUE, "a", others)
    config = CONFIG.format(cluster=cluster.url)
    gateway = await gateways.start(config, name="gateway")
    publisher = await blocking(Publisher, gateway)
    consumer = Consumer(gateway)
    before, down, after = map(numbered, ("before", "down", "after"))

    async def publish(bodies: Sequence[bytes]) -> None:
        await blocking(publisher.publish, bodies)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, consumer.run)
        try:
            await publish(before)
            await consumer.has(before)
            await cluster.stop("a")
            try:
                await gateway.seen("entity_state_changed")
                await publish(down)
            finally:
                with trio.move_on_after(PATIENCE, shield=True):
                    await cluster.start("a")
            await consumer.has(down)
            await gateway.until(lambda: gateway.count("outage_over") > 0, PATIENCE)
            await publish(after)
            await consumer.has(after)
        finally:
            consumer.is_ending.set()
    await blocking(publisher.connection.close)

    assert consumer.error == ""
    assert set(consumer.bodies) == {*before, *down, *after}
