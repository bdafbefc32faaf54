"""
A cluster of three RabbitMQs, of which a node is killed, another is cut off, and all are restarted.

It is the primary of one gateway and the secondary of another one at the same time, both under load
of the official Service Bus SDK: producers notice nothing, and nothing is lost. The chaos scenarios
`cluster-node-killed` and `cluster-partition` do it to each node in turn.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from gateway.brokers.rabbitmq.broker import RabbitmqBroker
from gateway.brokers.rabbitmq.receiver import RabbitmqReceiver
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.identity import RABBITMQ
from gateway.domain.message import Complete, Message
from tests.e2e.installation import client
from tests.e2e.processes import (
    ENVELOPE_VARIABLE,
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    broker_config,
)
from tests.e2e.queue_home import restart_unnoticed
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.e2e.rabbitmq_nodes import Listed
from tests.e2e.rabbitmq_pair import ORDERS, Installation, judged, sending
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq_cluster import NAMES, TICK

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.long]

SOME = 50  # messages
GENTLE = 0.25  # seconds between two sends of a sender while a node joins: it needs the processor
QUEUES = 6  # of each backlog
ATTEMPTS = 10  # of a send on queues that hang: 3 s each, of its 30 s
# Copies that are legal, since nobody could know: of what 8 senders and the syphon's batches of 10
# had on their way in each of two faults, and of the trials until a failover. A send of a sender may
# leave a copy with each attempt.
SPARE = 2 * (8 * ATTEMPTS + 10 + 10)


def pair(primary: str, secondary: str, label: str) -> str:
    """A gateway with times of seconds."""
    options = {
        "label": label,
        "failover_interval": "2s",
        "attempt_timeout": "3s",
        "send_timeout": "30s",
        "ping_interval": "1s",
        "backlog_cooldown": "1s",
        "backlog_queues": QUEUES,
        "enable_syphon": True,
    }
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    hold = '{ first = "500ms", cap = "2s" }'
    return f"""
logging = {{ level = "debug" }}

[namespaces.primary]
{primary}

[namespaces.secondary]
{secondary}

[pairing]
primary = "primary"
secondary = "secondary"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]
{lines}

[pairing.syphon]
batch = 10
attempt_timeout = "3s"
unknown_retry = {hold}
retry = {hold}
queue_retry = {hold}
rescan = "2s"

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
"""


def of(process: GatewayProcess) -> str:
    """A broker of ours, as a namespace."""
    url = f"servicebus+http://RootManageSharedAccessKey@{process.address}"
    return f'url = "{url}"\nkey = {{ env = "{KEY_VARIABLE}" }}'


async def harm(cluster: SharedCluster, runs: list[Installation]) -> None:
    """
    Kill the node that leads the queue, cut off the next that does, and restart all nodes in turn,
    as for an upgrade; all go on sending.
    """
    killed = await cluster.cluster.leader_of(ORDERS.name)
    await cluster.kill(killed)
    await acknowledged(runs)
    async with gentle(runs):
        await cluster.start(killed)
    await acknowledged(runs)
    alone = await cluster.cluster.leader_of(ORDERS.name)
    await cluster.cut_off(alone)
    try:
        await acknowledged(runs)
        async with gentle(runs):
            await trio.sleep(1.5 * TICK)  # until the others, and the node itself, have noticed
        await acknowledged(runs)
    finally:
        with trio.move_on_after(PATIENCE, shield=True):
            await cluster.heal(alone)
    async with gentle(runs):
        await cluster.ready()
    await acknowledged(runs)
    for name in NAMES:
        await cluster.stop(name)
        await acknowledged(runs)
        async with gentle(runs):
            await cluster.start(name)
        await acknowledged(runs)


async def come_home(run: Installation) -> None:
    """Return when the backlog is empty, of uncounted copies too, and all work has ended."""
    await run.came_back()
    await run.senders.stop()
    await run.drained()
    assert await run.gateway.stop() == 0


@asynccontextmanager
async def gentle(runs: list[Installation]) -> AsyncIterator[None]:
    """Within the scope all go on sending, but seldom."""
    for run in runs:
        await run.senders.slow_down(GENTLE)
    yield
    for run in runs:
        await run.senders.speed_up()


async def acknowledged(runs: list[Installation]) -> None:
    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(run.senders.acknowledge, SOME)


async def test_no_producer_notices_what_happens_to_the_nodes_of_a_cluster(
    shared_cluster: SharedCluster, gateways: Gateways
) -> None:
    own = [backlog.queue_name("north", index) for index in range(QUEUES)]
    kept = [backlog.queue_name("west", index) for index in range(QUEUES)]
    await shared_cluster.make([ORDERS], QueueProperties())
    await shared_cluster.make(kept, backlog.QUEUE_PROPERTIES)
    store = await gateways.start(broker_config(*(queue.name for queue in own)), name="store")
    home = await gateways.start(broker_config(ORDERS.name), name="home")
    north = await gateways.start(pair(shared_cluster.url, of(store), "north"), name="north")
    west = await gateways.start(pair(of(home), shared_cluster.url, "west"), name="west")
    async with sending(north) as first, sending(west) as second:
        runs = [first, second]
        await acknowledged(runs)
        await home.kill()
        await second.failed_over()
        await harm(shared_cluster, runs)
        await home.start()
        await come_home(first)
        await come_home(second)
        async with shared_cluster.client() as cluster, client(store) as other:
            verdict = await judged(first, Listed(cluster, [ORDERS]), other, SPARE)
        said = first.describe(verdict)
        print(said)  # noqa: T201 the figures of a good run
        async with shared_cluster.client() as cluster, client(home) as other:
            another = await judged(second, other, Listed(cluster, kept), SPARE)
        said_too = second.describe(another)
        print(said_too)  # noqa: T201

    assert verdict.passed, said
    assert another.passed, said_too
    assert not first.senders.errors, said
    assert not second.senders.errors, said_too


async def test_a_message_that_a_killed_node_had_in_hand_comes_again_and_is_never_called_lost(
    shared_cluster: SharedCluster,
) -> None:
    """Locks and confirms are at the node that a client is connected to."""
    await shared_cluster.make([ORDERS], QueueProperties())
    async with (
        shared_cluster.client("a") as doomed,
        shared_cluster.client("b", "c") as others,
    ):
        await others.send(ORDERS, [numbered(number) for number in range(20)])
        async with doomed.open_receiver(ORDERS) as receiver:
            held = await receiver.receive(10)
            # The confirm can't come: the node hears of no majority any more.
            await shared_cluster.cut_off("a")
            outcomes: list[BrokerError | None] = []
            async with trio.open_nursery() as nursery:
                for number in range(20, 25):
                    nursery.start_soon(send_noting, doomed, number, outcomes)
                await until_in_flight(doomed, 5)
                await shared_cluster.kill("a")
            await shared_cluster.heal("a")
            with pytest.raises(LockLost):
                await receiver.settle(held[0], Complete())

            taken = await taken_from(others, 20)

        await shared_cluster.start("a")

    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 5
    assert taken >= {str(number) for number in range(20)}


async def test_a_message_that_a_paused_receiver_holds_comes_again_once_its_killed_node_is_back(
    shared_cluster: SharedCluster,
) -> None:
    """A quorum queue forgets a channel whose consumers were all cancelled when the node went."""
    queue = backlog.queue_name("kept", 0)
    await shared_cluster.make([queue], backlog.QUEUE_PROPERTIES)
    leader = await shared_cluster.cluster.leader_of(queue.name)
    doomed = next(name for name in NAMES if name != leader)
    others = [name for name in NAMES if name != doomed]
    async with shared_cluster.client(*others) as rest:
        await rest.send(queue, [numbered(number) for number in range(20)])
        async with (
            shared_cluster.client(doomed) as broker,
            broker.open_receiver(queue) as receiver,
        ):
            await receiver.receive(10)
            await until_paused(receiver)
            await shared_cluster.kill(doomed)
            await shared_cluster.start(doomed)
        taken = await taken_from(rest, 20, queue)

    assert taken == {str(number) for number in range(20)}


async def test_a_node_that_confirms_nothing_is_left_for_another_one(
    shared_cluster: SharedCluster,
) -> None:
    """
    A node that is cut off from the others continues to take messages, for as long as a minute.
    """
    await shared_cluster.make([ORDERS], QueueProperties())
    async with shared_cluster.client(*NAMES, begins_with=0) as broker:
        await broker.send(ORDERS, [numbered(0)])
        await shared_cluster.cut_off(NAMES[0])
        try:
            with trio.move_on_after(3) as attempt:
                await broker.send(ORDERS, [numbered(1)])
            await broker._sender.check()  # the gateway connects
            used = str(broker._sender._connections.current)
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await shared_cluster.heal(NAMES[0])
                await shared_cluster.ready()

    assert attempt.cancelled_caught
    assert not used.endswith(f":{shared_cluster.cluster.ports[NAMES[0]]}")


async def test_a_queue_whose_node_is_down_is_an_outage_and_not_missing(
    shared_cluster: SharedCluster,
) -> None:
    """A classic queue is on one node; the others know that it is there, and say 404."""
    queue = EntityPath("classic")
    async with shared_cluster.client("b", "c") as others:
        await shared_cluster.make_classic(queue, "a", others)
        await others.send(queue, [numbered(1)])
        await shared_cluster.kill("a")
        try:
            with pytest.raises(Unavailable, match="down or inaccessible"):
                await others.probe(queue)
            with pytest.raises(Unavailable, match="down or inaccessible"):
                await others.send(queue, [numbered(2)])
            with pytest.raises(Unavailable, match="down or inaccessible"):
                async with others.open_receiver(queue) as receiver:
                    await receiver.receive(1)
            with pytest.raises(EntityNotFound):
                await others.send(EntityPath("nowhere"), [numbered(2)])
            async with shared_cluster.client_of_amqp("b", "c") as over_amqp:
                with pytest.raises(Unavailable, match="down or inaccessible"):
                    await over_amqp.send(queue, [numbered(2)])
                with pytest.raises(EntityNotFound):
                    await over_amqp.send(EntityPath("nowhere"), [numbered(2)])
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await shared_cluster.start("a")
        await others.delete_queue(queue)


async def test_a_queue_without_a_leader_is_not_taken_for_a_full_one(
    shared_cluster: SharedCluster,
) -> None:
    """RabbitMQ refuses the first message on a channel until a leader is elected."""
    await shared_cluster.make([ORDERS], QueueProperties())
    leader = await shared_cluster.cluster.leader_of(ORDERS.name)
    others = [name for name in NAMES if name != leader]
    sent = 0
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(shared_cluster.client(*others)) for _ in range(5)
        ]
        for each in clients:
            await each.probe(ORDERS)  # connected, and nothing sent yet
        await shared_cluster.kill(leader)
        for each in clients:
            await each.send(ORDERS, [numbered(sent)])
            sent += 1
        await shared_cluster.start(leader)

    assert sent == 5


def numbered(number: int) -> Message:
    return Message(message_id=str(number), body=b"x")


async def send_noting(
    broker: RabbitmqBroker, number: int, outcomes: list[BrokerError | None]
) -> None:
    try:
        await broker.send(ORDERS, [numbered(number)])
    except BrokerError as error:
        outcomes.append(error)
    else:
        outcomes.append(None)


async def until_in_flight(broker: RabbitmqBroker, wanted: int) -> None:
    """Return when the given number of messages was handed over and isn't confirmed."""
    with trio.fail_after(PATIENCE):
        while True:
            if sum(len(lane.in_flight) for lane in broker._sender._lanes.values()) >= wanted:
                return
            await trio.sleep(0.02)


async def until_paused(receiver: RabbitmqReceiver) -> None:
    """Return when the broker has cancelled its consumer."""
    with trio.fail_after(PATIENCE):
        while receiver._consumer is not None:  # noqa: ASYNC110 no event reports it
            await trio.sleep(0.02)
        channel = receiver._channel
        assert channel is not None
        await receiver._deliveries.flush(channel)


async def taken_from(broker: RabbitmqBroker, least: int, queue: EntityPath = ORDERS) -> set[str]:
    """Consume at least `least` messages; return the ids of all."""
    ids: set[str] = set()
    async with broker.open_receiver(queue) as receiver:
        with trio.fail_after(PATIENCE):
            while len(ids) < least:
                for delivery in await receiver.receive(100):
                    ids.add(str(delivery.message.message_id))
                    await receiver.settle(delivery, Complete())
    return ids


async def test_no_node_leads_all_backlog_queues(shared_cluster: SharedCluster) -> None:
    """A node that is cut off, but not yet missed, has no confirm for the queues that it leads."""
    queues = [backlog.queue_name("spread", index) for index in range(40)]
    await shared_cluster.make(queues, backlog.QUEUE_PROPERTIES)
    # The first ones may all go to one node: to that which leads nothing since its last restart.
    last = queues[-QUEUES:]
    leaders = Counter([await shared_cluster.cluster.leader_of(queue.name) for queue in last])

    assert max(leaders.values()) < QUEUES, leaders


async def test_a_cluster_with_the_default_name_is_known_by_its_hosts(
    shared_cluster: SharedCluster,
) -> None:
    """Each of the cluster's nodes may report a name of its own after a failure."""
    await shared_cluster.ready()
    async with shared_cluster.client() as broker:
        with pytest.raises(NotSupported, match="set_cluster_name"):
            await broker.identity()
    async with shared_cluster.client("a") as broker:
        alone = await broker.identity()

    assert alone.kind == RABBITMQ


async def test_neither_publishers_nor_consumers_notice_the_restart_of_a_queues_node(
    shared_cluster: SharedCluster, gateways: Gateways
) -> None:
    await restart_unnoticed(shared_cluster, gateways)
