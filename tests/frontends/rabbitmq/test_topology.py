"""The queues, exchanges and bindings that end with a connection, and are made again."""

import pytest
from pamqp import commands

from gateway.frontends.rabbitmq.topology import ClientTopology
from tests.frontends.rabbitmq.peers import Harness, Peer, harness

OWN = 2047  # the channel that the client doesn't use

EXCHANGE = commands.Exchange.Declare(exchange="news", exchange_type="topic", auto_delete=True)
MINE = commands.Queue.Declare(queue="mine", exclusive=True, arguments={"x-max-length": 5})
BIND = commands.Queue.Bind(queue="mine", exchange="news", routing_key="a")


def names(topology: ClientTopology) -> list[str]:
    return [each.name for each in topology.requests()][1:-1]


def made(*requests: commands.Queue.Declare) -> ClientTopology:
    topology = ClientTopology()
    for each in requests:
        topology.record(each, None)
    return topology


def test_all_is_made_again_in_an_order_that_works():
    topology = made(MINE, EXCHANGE, BIND)

    assert names(topology) == ["Exchange.Declare", "Queue.Declare", "Queue.Bind"]


def test_a_connection_that_made_nothing_of_its_own_asks_for_nothing():
    durable = commands.Queue.Declare(queue="orders", durable=True)
    bind = commands.Queue.Bind(queue="orders", exchange="amq.topic", routing_key="a")

    assert list(made(durable, bind).requests()) == []


@pytest.mark.parametrize(
    "removal",
    [
        [commands.Queue.Delete(queue="mine")],
        [commands.Exchange.Delete(exchange="news"), commands.Queue.Delete(queue="mine")],
        [
            commands.Queue.Unbind(queue="mine", exchange="news", routing_key="a"),
            commands.Queue.Delete(queue="mine"),
        ],
    ],
    ids=["the queue", "both", "unbound"],
)
def test_removed_things_and_those_that_end_with_them_stay_away(removal):
    topology = made(MINE, EXCHANGE, BIND)
    for each in removal:
        topology.record(each, None)

    assert names(topology) == []


def test_an_auto_delete_queue_ends_with_its_last_consumer():
    topology = made(commands.Queue.Declare(queue="replies", durable=True, auto_delete=True))
    consume = commands.Basic.Consume(queue="replies")
    topology.record(consume, None)
    topology.record(consume, None)
    topology.record_end("replies")
    assert names(topology) == ["Queue.Declare"]
    topology.record_end("replies")

    assert names(topology) == []


@pytest.mark.parametrize(
    "more",
    [
        [commands.Basic.Consume(queue="orders")],
        [commands.Queue.Bind(queue="mine", routing_key="last", exchange="amq.topic")],
    ],
    ids=["consumers", "bindings"],
)
def test_a_connection_with_more_than_is_remembered_is_known(more):
    topology = made(commands.Queue.Declare(queue="mine", exclusive=True))
    for number in range(4998):
        key = str(number)
        topology.record(
            commands.Queue.Bind(queue="mine", routing_key=key, exchange="amq.topic"), None
        )
    topology.record(commands.Basic.Consume(queue="mine"), None)
    assert not topology.is_too_large
    topology.record(*more, None)

    assert topology.is_too_large


def test_large_arguments_are_more_than_is_remembered():
    topology = made(commands.Queue.Declare(queue="q", durable=True, arguments={"x": "y" * 2000}))
    assert not topology.is_too_large
    topology.record(commands.Queue.Declare(queue="q", arguments={"x": "y" * 2000}), None)

    assert topology.is_too_large


async def made_again(peer: Peer, *kinds: type) -> list:
    """The requests that the primary gets on the gateway's own channel."""
    await peer.hears(commands.Channel.Open)
    await peer.send(OWN, commands.Channel.OpenOk())
    found = []
    answers = {
        commands.Queue.Declare: commands.Queue.DeclareOk("mine", 0, 0),
        commands.Queue.Bind: commands.Queue.BindOk(),
        commands.Exchange.Declare: commands.Exchange.DeclareOk(),
    }
    for kind in kinds:
        found.append(await peer.hears(kind))
        await peer.send(OWN, answers[kind])
    return found


async def has_own_queue(here: Harness) -> None:
    await here.confirmed_once()
    await here.asks(MINE, commands.Queue.DeclareOk("mine", 0, 0))
    bind = commands.Queue.Bind(exchange="amq.topic")  # by its last queue
    await here.asks(bind, commands.Queue.BindOk())
    await here.consumes(consumer_tag="workers", queue="")


async def test_an_exclusive_queue_is_made_again_before_its_consumers(autojump_clock):
    locked = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine'"
    async with harness() as here:
        await has_own_queue(here)
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(OWN, commands.Channel.OpenOk())
        await again.hears(commands.Queue.Declare)
        await again.send(OWN, commands.Channel.Close(405, locked, 50, 10))  # the old connection
        await again.hears(commands.Channel.CloseOk)
        declare, bind = await made_again(again, commands.Queue.Declare, commands.Queue.Bind)
        await again.hears(commands.Channel.Close)
        await again.send(OWN, commands.Channel.CloseOk())

        assert (declare.queue, declare.exclusive) == ("mine", True)
        assert declare.arguments == {"x-max-length": 5}
        assert (bind.queue, bind.exchange, bind.routing_key) == ("mine", "amq.topic", "mine")
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await again.hears(commands.Basic.Qos)
        await again.send(1, commands.Basic.QosOk())
        assert (await again.hears(commands.Basic.Consume)).queue == "mine"


async def test_a_server_named_queue_that_is_gone_ends_the_connection_at_the_return(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        declare = commands.Queue.Declare(exclusive=True)
        await here.asks(declare, commands.Queue.DeclareOk("amq.gen-x", 0, 0))
        await here.primary.stream.aclose()
        await here.client.publish(b"second")
        await here.client.hears(commands.Basic.Ack)
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(OWN, commands.Channel.OpenOk())
        looked_for = await again.hears(commands.Queue.Declare)
        assert (looked_for.queue, looked_for.passive) == ("amq.gen-x", True)
        await again.send(OWN, commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 10))

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320


async def test_the_consumer_of_a_server_named_queue_that_is_gone_is_cancelled(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        declare = commands.Queue.Declare(exclusive=True)
        await here.asks(declare, commands.Queue.DeclareOk("amq.gen-x", 0, 0))
        await here.asks(MINE, commands.Queue.DeclareOk("mine", 0, 0))
        await here.consumes(queue="amq.gen-x")
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(OWN, commands.Channel.OpenOk())
        await again.hears(commands.Queue.Declare)
        await again.send(OWN, commands.Channel.Close(404, "NOT_FOUND - no queue", 50, 10))

        cancel = await here.client.hears(commands.Basic.Cancel)
        assert (cancel.consumer_tag, cancel.nowait) == ("workers", True)
        await again.hears(commands.Channel.CloseOk)
        [declared] = await made_again(again, commands.Queue.Declare)
        assert declared.queue == "mine"
        await again.hears(commands.Channel.Close)
        await again.send(OWN, commands.Channel.CloseOk())
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        assert (await again.hears(commands.Basic.Qos)).prefetch_count == 5


async def test_an_exclusive_queue_that_was_being_declared_is_waited_for(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(1, MINE)
        await here.primary.hears(commands.Queue.Declare)
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await made_again(again, commands.Queue.Declare)
        await again.hears(commands.Channel.Close)
        await again.send(OWN, commands.Channel.CloseOk())
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await again.hears(commands.Queue.Declare)
        await again.send(1, commands.Queue.DeclareOk("mine", 0, 0))

        await here.client.hears(commands.Queue.DeclareOk)


async def test_a_queue_that_is_declared_while_others_are_made_again_is_made_too(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.asks(MINE, commands.Queue.DeclareOk("mine", 0, 0))
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await here.client.send(1, commands.Queue.Declare(queue="second", exclusive=True))
        await here.client.hears(commands.Queue.DeclareOk)
        await again.send(OWN, commands.Channel.OpenOk())
        await again.hears(commands.Queue.Declare)
        await again.send(OWN, commands.Queue.DeclareOk("mine", 0, 0))
        await again.hears(commands.Channel.Close)
        await again.send(OWN, commands.Channel.CloseOk())

        declares = await made_again(again, commands.Queue.Declare, commands.Queue.Declare)
        assert [each.queue for each in declares] == ["mine", "second"]


async def test_a_client_that_uses_every_channel_is_told_instead(autojump_clock):
    async with harness(channel_max=1) as here:
        await here.confirmed_once()
        await here.asks(MINE, commands.Queue.DeclareOk("mine", 0, 0))
        await here.primary.stream.aclose()
        await here.next_primary()

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
