"""A cluster of RabbitMQs for all tests of a module; at its end the three nodes are gone."""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import trio
from pamqp import commands

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.broker import open_namespace as open_amqp_namespace
from gateway.brokers.amqp.options import AmqpNamespaceOptions
from gateway.brokers.rabbitmq.broker import RabbitmqBroker, open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound, OutcomeUnknown, Unavailable
from tests.harness.lasting import Lasting
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import INSTALLED, USER, Release
from tests.harness.rabbitmq_cluster import NAMES, Cluster, rabbitmq_cluster
from tests.harness.secret_files import write_secret

APART = 60.0  # seconds after which nodes that run aren't expected to meet any more
# A node that is killed resets its connections, and one that is cut off from the others still hears
# its clients: nothing needs a heartbeat that is shorter than the machine stalls.
HEARTBEAT = 15.0  # seconds
_PAUSE = 0.5  # seconds


@attrs.define(eq=False)
class SharedCluster:
    """The cluster starts when a test first needs it; its nodes belong to a Trio of their own."""

    folder: Path
    release: Release = INSTALLED
    _lasting: Lasting[Cluster] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        plugins = ("rabbitmq_amqp1_0",)
        self._lasting = Lasting(
            "the cluster",
            lambda: rabbitmq_cluster(self.folder, plugins=plugins, release=self.release),
        )

    @property
    def cluster(self) -> Cluster:
        return self._lasting.value

    async def ready(self) -> None:
        """
        Return when all nodes run, and are together.

        Nodes that heard nothing of each other for less than a tick may stay apart for good, since
        none of them counts the others as lost. Such nodes are restarted.
        """
        await trio.to_thread.run_sync(lambda: self.cluster)
        with trio.move_on_after(APART):
            await self.cluster.wait_whole()
            return
        for name in NAMES[1:]:
            await self.kill(name)
            await self._lasting.there(partial(self.cluster.start, name))
        with trio.fail_after(PATIENCE):
            await self.cluster.wait_whole()

    async def kill(self, name: str) -> None:
        await self._lasting.there(partial(self.cluster.kill, name))

    async def stop(self, name: str) -> None:
        await self._lasting.there(partial(self.cluster.stop, name))

    async def start(self, name: str) -> None:
        """Return when it's with the others again."""
        await self._lasting.there(partial(self.cluster.start, name))
        await self.ready()

    async def cut_off(self, name: str) -> None:
        async def act() -> None:
            await trio.lowlevel.checkpoint()
            self.cluster.cut_off(name)

        await self._lasting.there(act)

    async def heal(self, name: str) -> None:
        async def act() -> None:
            await trio.lowlevel.checkpoint()
            self.cluster.heal(name)

        await self._lasting.there(act)

    async def make(self, queues: Sequence[EntityPath], properties: QueueProperties) -> None:
        """Queues that are empty, and outlive a kill."""
        await self.ready()
        async with self.client() as broker:
            for queue in queues:
                await _patiently(partial(_delete, broker, queue))
                await _patiently(partial(broker.create_queue, queue, properties))
        await self.cluster.keep_queues()

    async def make_classic(self, queue: EntityPath, home: str, others: RabbitmqBroker) -> None:
        """
        A durable classic queue at the node `home`, which `others` see.

        A CI run saw a queue that the others did not know, right after the partition of the test
        before: so it is declared until they do.
        """
        declare = commands.Queue.Declare(queue=queue.name, durable=True)

        async def act() -> None:
            async with self.client(home) as broker:
                await broker._channels.ask(declare)
            await others.probe(queue)

        await self.ready()
        await _patiently(act)

    def client(self, *names: str, begins_with: int | None = None) -> RabbitmqBroker:
        """
        Return a client of all nodes, or of those with these names.

        `begins_with`: the index of the node that it tries first; None: a random one.
        """
        hosts = ",".join(f"127.0.0.1:{self.cluster.ports[name]}" for name in names or NAMES)
        rest = f"//{USER}:{USER}@{hosts}/"
        rng = random.Random()
        if begins_with is not None:
            rng = next(
                random.Random(seed)
                for seed in range(1000)
                if random.Random(seed).randrange(len(names)) == begins_with
            )
        options = RabbitmqOptions(heartbeat=HEARTBEAT, connect_timeout=HEARTBEAT)
        return open_namespace("rabbitmq", rest, options, lambda: datetime.now(UTC), rng)

    def client_of_amqp(self, *names: str) -> AmqpBroker:
        """The same over AMQP 1.0."""
        hosts = ",".join(f"127.0.0.1:{self.cluster.ports[name]}" for name in names or NAMES)
        options = AmqpNamespaceOptions(password=USER, connect_timeout=HEARTBEAT)
        return open_amqp_namespace(
            "amqp", f"//{USER}@{hosts}", options, lambda: datetime.now(UTC), random.Random()
        )

    @property
    def url(self) -> str:
        """As a section of a gateway's configuration has it."""
        secret = self.folder / "secret"
        write_secret(secret, USER)
        return (
            f'url = "rabbitmq://{USER}@{self.cluster.hosts}/"\n'
            f"password = {{ file = {json.dumps(str(secret))} }}\n"
            f'heartbeat = "{HEARTBEAT:g}s"\nconnect_timeout = "2s"'
        )

    def end(self) -> None:
        self._lasting.end()


async def _delete(broker: RabbitmqBroker, queue: EntityPath) -> None:
    try:
        await broker.delete_queue(queue)
    except EntityNotFound:
        await trio.lowlevel.checkpoint()


async def _patiently(change: Callable[[], Awaitable[object]]) -> None:
    """
    Make a change that may be made twice; return once the cluster has accepted it.

    For some moments after its nodes are together again, a cluster may end the connection with
    INTERNAL_ERROR when it's told to change a queue, or not know one that a node has.
    """
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await change()
            except (EntityNotFound, OutcomeUnknown, Unavailable):
                await trio.sleep(_PAUSE)
            else:
                return
