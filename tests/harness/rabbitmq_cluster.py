"""
A cluster of RabbitMQs on this machine, whose nodes can be killed, and cut off from each other.

Each node finds the others by a name service of its own, which names proxies: the traffic between
nodes goes through them, and can be dropped there.

    a ──(a to b)──▶ b      a partition drops what goes through all proxies to a node, and from it
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.demo.ports import free_port
from tests.harness.chaos_proxy import BlackHole, ChaosProxy, Pass
from tests.harness.erlang_names import NameService
from tests.harness.rabbitmq import (
    INSTALLED,
    Release,
    evaluate,
    keep_queues,
    node_environment,
    node_process,
    prepare,
)
from tests.harness.servers import STOP_LIMIT, ServerProcess, running

NAMES: Final = ("a", "b", "c")
_COOKIE: Final = "the-tests-of-pairgate"
TICK: Final = 8  # seconds after which a node that isn't heard is down: Erlang's net_ticktime
_PAUSE: Final = 0.5
# A node that is running may still start its listeners, or rewrite its list of nodes: then it fails.
_READY: Final = (
    "try [Node || Node <- rabbit_nodes:all_running(), rabbit:is_booted(Node)] catch _:_ -> [] end."
)
_LEADER: Final = (
    '{{ok, Queue}} = rabbit_amqqueue:lookup({{resource, <<"/">>, queue, <<"{}">>}}),'
    " {{_, Node}} = amqqueue:get_pid(Queue), Node."
)


@attrs.define(eq=False)
class Cluster:
    """The nodes by name, and the proxies by the connecting node and the other."""

    nodes: dict[str, ServerProcess] = attrs.field(factory=dict)
    ports: dict[str, int] = attrs.field(factory=dict)  # for AMQP
    naming: dict[str, NameService] = attrs.field(factory=dict)  # each node's own
    between: dict[tuple[str, str], ChaosProxy] = attrs.field(factory=dict)

    async def leader_of(self, queue: str) -> str:
        """The node that leads that quorum queue of the vhost `/`. All nodes must run."""
        node = next(iter(self.nodes.values()))
        return (await evaluate(node, _LEADER.format(queue))).strip("'").partition("@")[0]

    async def wait_whole(self) -> None:
        """Return when each node runs and is with all others."""
        await trio.lowlevel.checkpoint()
        for node in self.nodes.values():
            while (await evaluate(node, _READY)).count("@") < len(self.nodes):  # noqa: ASYNC110 no event reports it
                await trio.sleep(_PAUSE)

    @property
    def hosts(self) -> str:
        """All nodes, as a URL lists them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    async def kill(self, name: str) -> None:
        """SIGKILL; return when it is gone."""
        await self.nodes[name].kill()

    async def stop(self, name: str) -> None:
        """SIGTERM, as for an upgrade; return when it is gone."""
        await self.nodes[name].stop()

    async def start(self, name: str) -> None:
        """
        Start a node again after `kill` or `stop`; return when it's ready. Raises ServerFailed.
        """
        await self.nodes[name].start()

    def cut_off(self, name: str) -> None:
        """Drop all traffic between that node and the others from now on."""
        self._set(name, BlackHole())

    def heal(self, name: str) -> None:
        """Let the nodes hear each other again, by new connections."""
        self._set(name, Pass())

    async def keep_queues(self) -> None:
        """As `rabbitmq.keep_queues`, of all nodes."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                nursery.start_soon(keep_queues, node)

    def port_of(self, asking: str, name: str) -> int | None:
        """
        Return the port at which the node `asking` finds the node `name`; None if that doesn't run.
        """
        runs = name in self.naming and name in self.naming[name].names
        return self.between[asking, name].port if runs else None

    def _set(self, name: str, fault: Pass) -> None:
        for ends, proxy in self.between.items():
            if name in ends:
                proxy.fault = fault
                if not isinstance(fault, BlackHole):
                    proxy.reset_all()  # a connection that has lost bytes can't be used again


@asynccontextmanager
async def rabbitmq_cluster(
    folder: Path,
    names: Sequence[str] = NAMES,
    *,
    plugins: Sequence[str] = (),
    release: Release = INSTALLED,
) -> AsyncIterator[Cluster]:
    """
    Run nodes with their data in `folder`; they are killed in the end, and their data stay.

    Raises:
        ServerFailed: RabbitMQ isn't installed, or a node didn't start.
    """
    cluster = Cluster()
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    cookie = home / ".erlang.cookie"
    cookie.write_text(_COOKIE)
    cookie.chmod(0o400)
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        doors = {name: free_port() for name in names}  # where nodes listen for each other
        for one, other in permutations(names, 2):
            proxy = ChaosProxy("127.0.0.1", doors[other], rng=random.Random(0))
            await nursery.start(proxy.serve)
            cluster.between[one, other] = proxy
        for name in names:
            naming = NameService(partial(cluster.port_of, name))
            await nursery.start(naming.serve)
            cluster.naming[name] = naming
            cluster.ports[name] = free_port()
            prepare(folder / name, plugins, _settings(names[0]))
            cluster.nodes[name] = node_process(
                folder / name,
                cluster.ports[name],
                _environment(cluster, folder, name, doors[name], release),
                release,
            )
        # The first node is the cluster, which the others join.
        await stack.enter_async_context(running(cluster.nodes[names[0]]))
        async with trio.open_nursery() as starting:
            for name in names[1:]:
                stack.push_async_callback(_end, cluster.nodes[name])
                starting.start_soon(cluster.start, name)
        yield cluster


async def _end(node: ServerProcess) -> None:
    with trio.move_on_after(STOP_LIMIT, shield=True):
        await node.kill()


def _settings(first: str) -> Sequence[str]:
    return (
        "cluster_partition_handling = pause_minority",
        "cluster_formation.peer_discovery_backend = classic_config",
        f"cluster_formation.classic_config.nodes.1 = {first}@localhost",
    )


def _environment(
    cluster: Cluster, folder: Path, name: str, door: int, release: Release
) -> dict[str, str]:
    found = node_environment(
        folder / name,
        f"{name}@localhost",
        cluster.ports[name],
        cluster.naming[name].port,
        release,
    )
    arguments = found["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    return {
        **found,
        "HOME": str(folder / "home"),  # all nodes have the same cookie
        "RABBITMQ_DIST_PORT": str(door),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{arguments} -kernel net_ticktime {TICK} +S 1:1",
    }
