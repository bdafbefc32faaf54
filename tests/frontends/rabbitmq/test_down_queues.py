"""
A queue whose node is down, while the primary itself is well: an outage of that queue alone, in
virtual time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from pamqp import base, commands

from gateway.domain.failover import State
from tests.frontends.rabbitmq.peers import Harness, Peer, harness

# As RabbitMQ 3.10.8 and 4.0.5 say.
DOWN = (
    "NOT_FOUND - home node 'a@localhost' of durable queue '{}' in vhost '/' is down or inaccessible"
)
GONE = "NOT_FOUND - no queue '{}' in vhost '/'"
DECLARE = commands.Queue.Declare(queue="orders", durable=True)
CONSUME = commands.Basic.Consume(queue="orders", consumer_tag="workers")
CANCEL = commands.Basic.Cancel("workers", nowait=True)
ANSWERS = {
    commands.Basic.Qos: commands.Basic.QosOk(),
    commands.Channel.Close: commands.Channel.CloseOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Queue.Bind: commands.Queue.BindOk(),
    commands.Queue.Declare: commands.Queue.DeclareOk("", 7, 0),
    commands.Queue.Purge: commands.Queue.PurgeOk(0),
}
SOON = 0.5  # seconds
LATER = 3.0  # seconds, in which the gateway asks again


@attrs.define(eq=False)
class Node:
    """A primary that answers by itself, and says which queues have their node down."""

    peer: Peer
    down: set[str] = attrs.field(factory=set)
    gone: set[str] = attrs.field(factory=set)
    asked: list[base.Frame] = attrs.field(factory=list)  # on the client's channel
    looked: int = 0  # how often a queue was asked for on another

    async def run(self) -> None:
        with suppress(trio.ClosedResourceError):
            while data := await self.peer.stream.receive_some():
                for frame in self.peer.reader.feed(bytes(data)):
                    if frame.kind == 1:
                        await self._answer(frame.channel, frame.method())

    async def _answer(self, channel: int, method: base.Frame) -> None:
        queue = getattr(method, "queue", None)
        if channel == 1:
            self.asked.append(method)
        else:
            self.looked += queue is not None
        if queue in self.down | self.gone:
            text = (DOWN if queue in self.down else GONE).format(queue)
            close = commands.Channel.Close(404, text, *divmod(method.index, 0x10000))
            await self.peer.send(channel, close)
        elif isinstance(method, commands.Basic.Consume):
            if not method.nowait:
                await self.peer.send(channel, commands.Basic.ConsumeOk(method.consumer_tag))
        elif (answer := ANSWERS.get(type(method))) is not None:
            await self.peer.send(channel, answer)

    def kinds(self) -> list[str]:
        return [method.name for method in self.asked]


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Harness, Node]]:
    """A client that has published on its channel; from then on the primary answers by itself."""
    async with harness() as here:
        await here.confirmed_once()
        node = Node(here.primary)
        here.nursery.start_soon(node.run)
        yield here, node


async def asked(here: Harness, request: base.Frame, answer: type[base.Frame]) -> base.Frame:
    await here.client.send(1, request)
    found: base.Frame = await here.client.hears(answer)
    return found


async def hears_nothing(client: Peer, seconds: float = SOON) -> None:
    with trio.move_on_after(seconds) as scope:
        await client.next()
    assert scope.cancelled_caught


async def test_a_known_queue_is_declared_from_memory_while_its_node_is_down(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        declared = await asked(here, DECLARE, commands.Queue.DeclareOk)
        await hears_nothing(here.client)

        assert (declared.queue, declared.message_count) == ("orders", 0)
        assert here.states.evidence[-1] == "orders failed"
        assert node.kinds()[-3:] == ["Queue.Declare", "Channel.CloseOk", "Channel.Open"]


async def test_a_channel_that_was_opened_again_takes_requests_and_publishes(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        await here.client.send(1, DECLARE, commands.Queue.Declare(queue="others"))
        await here.client.hears(commands.Queue.DeclareOk)
        await here.client.hears(commands.Queue.DeclareOk)
        await here.client.publish(b"second", "others")
        await trio.testing.wait_all_tasks_blocked()

        assert node.kinds()[-2:] == ["Confirm.Select", "Basic.Publish"]
        await node.peer.send(1, commands.Basic.Ack(1))
        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2


async def test_a_declared_queue_reaches_the_primary_again_once_its_node_is_back(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        await trio.sleep(LATER)
        before, looked = len(node.asked), node.looked
        away = await asked(here, DECLARE, commands.Queue.DeclareOk)
        assert len(node.asked) == before
        assert looked > 1
        node.down = set()
        await trio.sleep(LATER)
        looked = node.looked
        home = await asked(here, DECLARE, commands.Queue.DeclareOk)
        await trio.sleep(LATER)

        assert (away.message_count, home.message_count) == (0, 7)
        assert node.looked == looked


async def test_a_queue_that_was_declared_while_its_node_was_down_is_its_channel_s_last(
    autojump_clock,
):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        await asked(here, commands.Queue.Declare(queue="others"), commands.Queue.DeclareOk)
        await asked(here, DECLARE, commands.Queue.DeclareOk)  # the primary doesn't hear of it
        node.down = set()
        await trio.sleep(LATER)
        await asked(here, commands.Queue.Purge(), commands.Queue.PurgeOk)

        assert node.kinds()[-2:] == ["Queue.Declare", "Queue.Purge"]
        assert [each.queue for each in node.asked[-2:]] == ["others", "orders"]


async def test_a_queue_that_no_client_has_shown_has_the_primary_s_own_answer(autojump_clock):
    async with cluster() as (here, node):
        node.down = {"orders"}

        close = await asked(here, DECLARE, commands.Channel.Close)
        assert close.reply_text == DOWN.format("orders")


async def test_a_connection_with_more_than_is_remembered_has_the_primary_s_own_answer(
    autojump_clock,
):
    large = {f"x-{number}": "x" * 100 for number in range(20)}
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        consume = commands.Basic.Consume(queue="others", consumer_tag="others", arguments=large)
        await asked(here, consume, commands.Basic.ConsumeOk)
        node.down = {"orders"}

        close = await asked(here, DECLARE, commands.Channel.Close)
        assert close.reply_text == DOWN.format("orders")


async def test_a_purge_has_the_primary_s_own_answer(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        await asked(here, DECLARE, commands.Queue.DeclareOk)

        close = await asked(here, commands.Queue.Purge(queue="orders"), commands.Channel.Close)
        assert close.reply_text == DOWN.format("orders")


async def test_other_arguments_than_the_known_ones_are_refused(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        node.down = {"orders"}
        other = commands.Queue.Declare(queue="orders", durable=False)

        assert (await asked(here, other, commands.Channel.Close)).reply_code == 406
        await here.client.send(1, commands.Channel.CloseOk())
        await asked(here, commands.Channel.Open(), commands.Channel.OpenOk)
        assert node.kinds()[-2:] == ["Channel.CloseOk", "Channel.Open"]


async def test_a_publish_without_a_confirm_goes_to_the_pair(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, DECLARE, commands.Queue.DeclareOk)
        await here.client.publish(b"second")
        await trio.testing.wait_all_tasks_blocked()
        node.down = {"orders"}
        here.states.state = State.SUSPECT
        await here.client.send(1, DECLARE)
        await here.client.hears(commands.Queue.DeclareOk)

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]


async def test_a_queue_without_an_answer_is_got_as_empty(autojump_clock):
    async with cluster() as (here, node):
        node.down = {"orders"}

        await asked(here, commands.Basic.Get(queue="orders"), commands.Basic.GetEmpty)


async def test_a_consumer_that_begins_waits_for_its_queue(autojump_clock):
    async with cluster() as (here, node):
        node.down = {"orders"}
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        await trio.sleep(LATER)
        assert node.kinds()[-1] == "Channel.Open"
        node.down = set()
        await hears_nothing(here.client, LATER)

        assert node.kinds()[-2:] == ["Basic.Cancel", "Basic.Consume"]
        await node.peer.deliver(1, b"home")
        assert (await here.client.hears(commands.Basic.Deliver)).delivery_tag == 1


async def test_a_consumer_that_wants_no_answer_gets_none(autojump_clock):
    async with cluster() as (here, node):
        node.down = {"orders"}
        silent = commands.Basic.Consume(queue="orders", consumer_tag="workers", nowait=True)
        await here.client.send(1, silent)
        await hears_nothing(here.client, LATER)
        node.down = set()
        await hears_nothing(here.client, LATER)

        assert node.kinds()[-1] == "Basic.Consume"


async def test_a_consumer_that_the_primary_cancels_waits_for_its_queue(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        node.down = {"orders"}
        await node.peer.send(1, CANCEL)
        await hears_nothing(here.client, LATER)
        assert here.states.evidence[-1] == "orders failed"
        node.down = set()
        await hears_nothing(here.client, LATER)

        assert node.kinds()[-1] == "Basic.Consume"


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_consumer_ends_by_the_primary_s_cancel_if_its_queue_is_not_down(
    autojump_clock, is_gone
):
    async with cluster() as (here, node):
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        node.gone = {"orders"} if is_gone else set()
        await node.peer.send(1, CANCEL)

        assert (await here.client.hears(commands.Basic.Cancel)).consumer_tag == "workers"


async def test_a_consumer_that_the_client_ends_meanwhile_does_not_come_back(autojump_clock):
    async with cluster() as (here, node):
        node.down = {"orders"}
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        await trio.sleep(LATER)
        await here.client.send(1, commands.Basic.Cancel("workers"))
        await trio.testing.wait_all_tasks_blocked()
        await node.peer.send(1, commands.Basic.CancelOk("workers"))
        await here.client.hears(commands.Basic.CancelOk)
        node.down = set()
        await trio.sleep(LATER)

        assert node.kinds()[-1] == "Basic.Cancel"


async def test_a_consumer_goes_on_with_its_own_prefetch(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, commands.Basic.Qos(prefetch_count=5), commands.Basic.QosOk)
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        await asked(here, commands.Basic.Qos(prefetch_count=9), commands.Basic.QosOk)
        node.down = {"orders"}
        await node.peer.send(1, CANCEL)
        await trio.sleep(LATER)
        node.down = set()
        await hears_nothing(here.client, LATER)

        assert node.kinds()[-3:] == ["Basic.Qos", "Basic.Consume", "Basic.Qos"]
        assert [node.asked[at].prefetch_count for at in (-3, -1)] == [5, 9]


async def test_a_consumer_whose_queue_is_deleted_meanwhile_ends(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        node.down = {"orders"}
        await node.peer.send(1, CANCEL)
        await trio.sleep(LATER)
        node.down, node.gone = set(), {"orders"}

        assert (await here.client.hears(commands.Basic.Cancel)).consumer_tag == "workers"


async def test_a_return_leaves_out_only_the_consumer_whose_queue_is_down(autojump_clock):
    async with cluster() as (here, _):
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        others = commands.Basic.Consume(queue="others", consumer_tag="others")
        await asked(here, others, commands.Basic.ConsumeOk)
        await here.primary.stream.aclose()
        again = Node(await here.next_primary(), down={"orders"})
        here.nursery.start_soon(again.run)
        await trio.sleep(LATER)
        laid = [each.queue for each in again.asked if isinstance(each, commands.Basic.Consume)]
        assert laid == ["orders", "others"]
        again.down = set()
        await hears_nothing(here.client, LATER)

        assert again.asked[-1].queue == "orders"


async def test_a_return_makes_a_queue_of_the_client_once_its_node_is_back(autojump_clock):
    async with cluster() as (here, _):
        mine = commands.Queue.Declare(queue="mine", durable=True, auto_delete=True)
        await asked(here, mine, commands.Queue.DeclareOk)
        await asked(
            here, commands.Queue.Bind(queue="mine", exchange="amq.topic"), commands.Queue.BindOk
        )
        await here.primary.stream.aclose()
        again = Node(await here.next_primary(), down={"mine"})
        here.nursery.start_soon(again.run)
        await trio.sleep(LATER)
        assert again.kinds() == ["Channel.Open"]
        looked, again.down = again.looked, set()
        await hears_nothing(here.client, LATER)

        assert again.looked == looked + 3  # once asked for, then declared and bound


async def test_a_channel_number_that_the_gateway_uses_is_the_client_s_afterwards(autojump_clock):
    async with cluster() as (here, node):
        await asked(here, CONSUME, commands.Basic.ConsumeOk)
        node.down = {"orders"}
        await node.peer.send(1, CANCEL)
        with trio.fail_after(SOON):
            while not node.looked:
                await trio.lowlevel.checkpoint()
        await here.client.send(2047, commands.Channel.Open())

        await here.client.hears(commands.Channel.OpenOk)
