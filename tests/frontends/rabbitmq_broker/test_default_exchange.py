"""Queues by the default exchange, before a namespace in memory."""

import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from pamqp import commands

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.interception import Call, CallKind, Interceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import ReceiveMode
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.receiver import LocalReceiver
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER
from tests.frontends.rabbitmq.peers import with_content
from tests.frontends.rabbitmq_broker.site import Client, site
from tests.harness.clocks import VirtualClock


async def test_a_queue_gives_what_was_published_with_all_properties(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.confirms()
        how = {
            "headers": {"retries": 1, "deep": {"list": [1, "two", None]}, "x-own": "y"},
            "content_type": "text/plain",
            "delivery_mode": 2,
            "priority": 3,
            "message_id": "m-1",
            "correlation_id": "c-1",
            "app_id": "shop",
            "message_type": "order",
        }
        await client.publish(b"first", "orders", **how)
        ack = (await client.hears(commands.Basic.Ack)).method

        got = await client.gets("orders")
    assert ack.delivery_tag == 1
    assert got is not None
    assert (got.body, got.method.redelivered, got.method.exchange) == (b"first", False, "")
    assert {name: getattr(got.properties, name) for name in how} == how


async def test_other_clients_read_the_fields_that_both_protocols_have(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.confirms()
        await client.publish(
            b"x", "orders", headers={"a": 1}, content_type="text/plain", correlation_id="c"
        )
        await client.hears(commands.Basic.Ack)
        async with here.broker.open_receiver(EntityPath("orders")) as receiver:
            [delivery] = await receiver.receive(1)

    message = delivery.message
    assert (message.body, message.properties) == (b"x", {"a": 1})
    assert (message.content_type, message.correlation_id) == ("text/plain", "c")


async def test_a_message_of_another_client_has_its_fields_as_properties(autojump_clock) -> None:
    orders = EntityPath("orders")
    message = Message(
        message_id="m", subject="order", reply_to="back", properties={"a": 1}, body=b"x"
    )
    async with site() as here:
        await here.broker.create_queue(orders, QueueProperties())
        await here.broker.send(orders, [message])
        client = await here.connect()
        got = await client.gets("orders")

    assert got is not None
    found = got.properties
    assert (got.body, found.headers, found.message_id) == (b"x", {"a": 1}, "m")
    assert (found.message_type, found.reply_to, got.method.routing_key) == (
        "order",
        "back",
        "orders",
    )


async def test_a_declaration_with_other_arguments_is_refused(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        other = commands.Queue.Declare(queue="orders", durable=True)
        await client.is_refused(other, 406, "inequivalent arg 'durable' for queue 'orders'")
        missing = commands.Queue.Declare(queue="nothing", passive=True)
        await client.is_refused(missing, 404, "no queue 'nothing' in vhost '/'")
        own = commands.Queue.Declare(queue="amq.own")
        await client.is_refused(own, 403, "reserved prefix")


@pytest.mark.parametrize(("name", "value"), [("x-max-priority", 5), ("x-queue-type", "stream")])
async def test_an_argument_that_no_namespace_has_is_refused_by_name(
    autojump_clock, name: str, value: object
) -> None:
    async with site() as here:
        client = await here.connect()
        request = commands.Queue.Declare(queue="orders", arguments={name: value})
        close = await client.asks(request, commands.Connection.Close)

    assert close.reply_code == 540
    assert close.reply_text.startswith(f"NOT_IMPLEMENTED - {name}")


async def test_a_publish_without_queue_is_returned_before_its_confirm(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.confirms()
        await client.publish(b"lost", "nowhere", mandatory=True, app_id="shop")
        returned = await client.hears(commands.Basic.Return)
        await client.hears(commands.Basic.Ack)
        await client.publish(b"lost", "nowhere")
        await client.hears(commands.Basic.Ack)

    assert (returned.body, returned.properties.app_id) == (b"lost", "shop")
    assert (returned.method.reply_code, returned.method.routing_key) == (312, "nowhere")


async def test_a_confirm_says_whether_it_is_for_several_publishes(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.confirms()
        await client.publish(b"1", "orders")
        first = (await client.hears(commands.Basic.Ack)).method
        together = with_content(commands.Basic.Publish(routing_key="orders"), b"x")
        await client.stream.send_all(together * 3)
        others = (await client.hears(commands.Basic.Ack)).method

    assert (first.delivery_tag, first.multiple) == (1, False)
    assert (others.delivery_tag, others.multiple) == (4, True)


async def test_publishes_and_other_methods_of_a_channel_keep_their_order(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        for number in range(20):
            await client.publish(b"%d" % number, "orders")
            got = await client.gets("orders")
            assert got is not None
            assert got.body == b"%d" % number


async def consume(client: Client, queue: str, **how: object) -> str:
    request = commands.Basic.Consume(queue=queue, **how)
    tag: str = (await client.asks(request, commands.Basic.ConsumeOk)).consumer_tag
    return tag


async def test_prefetch_bounds_what_a_consumer_has(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        for number in range(5):
            await client.publish(b"%d" % number, "orders")
        await client.asks(commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
        await consume(client, "orders")
        first, second = await client.next(), await client.next()
        await trio.sleep(5)
        assert client.arrived == []
        await client.send(commands.Basic.Ack(delivery_tag=2, multiple=True))
        third = await client.next()

    assert [each.body for each in (first, second, third)] == [b"0", b"1", b"2"]


async def test_a_rejected_delivery_comes_again_as_redelivered(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.publish(b"x", "orders")
        got = await client.gets("orders", no_ack=False)
        assert got is not None
        await client.send(commands.Basic.Nack(delivery_tag=1, requeue=True))
        again = await client.gets("orders", no_ack=False)
        assert again is not None
        await client.send(commands.Basic.Reject(delivery_tag=2, requeue=False))
        assert await client.gets("orders") is None

    assert (again.body, again.method.redelivered) == (b"x", True)


async def test_unsettled_deliveries_go_back_with_their_channel(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.publish(b"x", "orders")
        await client.gets("orders", no_ack=False)
        assert await other.count("orders") == 0
        await client.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

        assert (await other.until_it_gets("orders")).method.redelivered


async def test_a_lock_is_renewed_as_long_as_the_client_has_the_message(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.publish(b"x", "orders")
        await client.gets("orders", no_ack=False)
        await trio.sleep(3600)
        assert await other.gets("orders") is None
        await client.send(commands.Basic.Ack(delivery_tag=1))
        assert await client.count("orders") == 0

        assert await here.bodies("orders") == []


async def test_an_unknown_delivery_tag_closes_the_channel(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.is_refused(commands.Basic.Ack(delivery_tag=7), 406, "unknown delivery tag 7")


async def test_a_consumer_hears_that_its_queue_is_gone(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        tag = await consume(client, "orders")
        in_use = commands.Queue.Delete(queue="orders", if_unused=True)
        await other.is_refused(in_use, 406, "in use")
        await other.asks(commands.Queue.Delete(queue="orders"), commands.Queue.DeleteOk)

        assert (await client.hears(commands.Basic.Cancel)).method.consumer_tag == tag


async def test_queues_of_a_connection_end_with_it(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        own = await client.asks(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)
        passive = commands.Queue.Declare(queue=own.queue, passive=True)
        await other.is_refused(passive, 405, "exclusive access")
        await client.stream.aclose()
        await trio.sleep(5)
        await other.is_refused(passive, 404, "no queue")

        assert await here.broker.list_queues() == []


async def test_a_queue_that_deletes_itself_ends_with_its_last_consumer(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        request = commands.Queue.Declare(queue="news", auto_delete=True)
        await client.asks(request, commands.Queue.DeclareOk)
        tag = await consume(client, "news")
        await client.asks(commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)
        passive = commands.Queue.Declare(queue="news", passive=True)

        await client.is_refused(passive, 404, "no queue 'news'")


async def test_a_purge_and_a_deletion_count_messages(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        for _ in range(3):
            await client.publish(b"x", "orders")
        not_empty = commands.Queue.Delete(queue="orders", if_empty=True)
        await client.is_refused(not_empty, 406, "queue 'orders' in vhost '/' not empty")
        purged = await client.asks(commands.Queue.Purge(queue="orders"), commands.Queue.PurgeOk)
        await client.publish(b"x", "orders")
        request = commands.Queue.Delete(queue="orders")
        deleted = await client.asks(request, commands.Queue.DeleteOk)

    assert (purged.message_count, deleted.message_count) == (3, 1)


async def test_names_that_no_entity_has_are_names_of_queues(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        for name in ("Shop:Orders", "a b", "..", "/a//b"):
            await client.declares(name)
            await client.publish(name.encode(), name)
            got = await client.gets(name)
            assert got is not None
            assert (got.body, got.method.routing_key) == (name.encode(), name)
        request = commands.Queue.Declare(queue="shop:orders")
        close = await client.asks(request, commands.Connection.Close)

    assert close.reply_code == 540
    assert "case alone differs" in close.reply_text


async def test_a_policy_gives_a_client_its_rights(autojump_clock) -> None:
    rights = frozenset({Right.SEND})
    policy = AccessPolicy(name="shop", keys=("key",), rights=rights, entities=("orders",))
    async with site(policies=(policy,)) as here:
        await here.broker.create_queue(EntityPath("orders"), QueueProperties())
        client = await here.connect(user="shop", password="key")
        await client.confirms()
        await client.publish(b"x", "orders")
        await client.hears(commands.Basic.Ack)
        get = commands.Basic.Get(queue="orders")
        await client.is_refused(get, 403, "'Listen' claim(s) are required")
        with pytest.raises(AssertionError, match=r"Connection\.Close|has ended"):
            await here.connect(user="shop", password="wrong")


async def test_a_transaction_is_done_at_its_commit(autojump_clock) -> None:
    async with site() as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.asks(commands.Tx.Select(), commands.Tx.SelectOk)
        await client.publish(b"forgotten", "orders")
        await client.asks(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        await client.publish(b"kept", "orders")
        assert await client.count("orders") == 0
        await client.asks(commands.Tx.Commit(), commands.Tx.CommitOk)
        assert await client.gets("orders", no_ack=False) is not None
        await client.send(commands.Basic.Ack(delivery_tag=1))
        await client.asks(commands.Tx.Rollback(), commands.Tx.RollbackOk)
        await client.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)

        got = await other.until_it_gets("orders")
    assert (got.body, got.method.redelivered) == (b"kept", True)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", "\0guest\0guest"),
        ("AMQPLAIN", "\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"),
    ],
)
async def test_a_guest_logs_in_as_in_rabbitmq(
    autojump_clock, mechanism: str, response: str
) -> None:
    async with site() as here:
        client = here.opened()
        await client.stream.send_all(PROTOCOL_HEADER)
        start = (await client.hears(commands.Connection.Start)).method
        await client.send(commands.Connection.StartOk({}, mechanism, response), channel=0)
        await client.hears(commands.Connection.Tune)
        tune = commands.Connection.TuneOk(0, 0, 0)
        await client.send(tune, commands.Connection.Open("/"), channel=0)
        await client.hears(commands.Connection.OpenOk)

    assert start.mechanisms == "PLAIN AMQPLAIN"


@pytest.mark.parametrize("announces", [True, False])
async def test_a_wrong_password_is_told_to_clients_that_hear_it(
    autojump_clock, announces: bool
) -> None:
    able = {"capabilities": {"authentication_failure_close": announces}}
    async with site() as here:
        client = here.opened()
        await client.stream.send_all(PROTOCOL_HEADER)
        await client.hears(commands.Connection.Start)
        start = commands.Connection.StartOk(able, "PLAIN", "\0guest\0wrong")
        await client.send(start, channel=0)
        if announces:
            close = (await client.hears(commands.Connection.Close)).method
            assert close.reply_code == 403
            assert "ACCESS_REFUSED - Login was refused" in close.reply_text
        with trio.fail_after(60):
            assert not await client.stream.receive_some()


async def test_an_unknown_vhost_is_refused(autojump_clock) -> None:
    async with site() as here:
        client = here.opened()
        await client.stream.send_all(PROTOCOL_HEADER)
        await client.hears(commands.Connection.Start)
        start = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest")
        await client.send(start, channel=0)
        await client.hears(commands.Connection.Tune)
        opens = commands.Connection.Open("other")
        await client.send(commands.Connection.TuneOk(0, 0, 0), opens, channel=0)
        close = (await client.hears(commands.Connection.Close)).method

    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost other not found")


async def test_a_deletion_is_answered_before_its_consumers_hear_it(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await consume(client, "orders")
        await trio.testing.wait_all_tasks_blocked()
        await client.asks(commands.Queue.Delete(queue="orders"), commands.Queue.DeleteOk)

        await client.hears(commands.Basic.Cancel)


async def test_unsettled_deliveries_come_again_by_a_recovery(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await client.publish(b"x", "orders")
        await consume(client, "orders")
        first = await client.hears(commands.Basic.Deliver)
        await client.send(commands.Basic.Recover(requeue=True))
        answers = [await client.next(), await client.next()]

    [again] = [each for each in answers if isinstance(each.method, commands.Basic.Deliver)]
    assert (first.method.redelivered, again.method.redelivered) == (False, True)
    assert (again.body, again.method.delivery_tag) == (b"x", 2)


async def test_a_queue_that_others_have_deleted_is_made_again(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")
        await here.broker.delete_queue(EntityPath("orders"))

        await client.declares("orders")
        await client.confirms()
        await client.publish(b"x", "orders")
        await client.hears(commands.Basic.Ack)

        assert (await here.broker.inspect(EntityPath("orders"))).active == 1


class SlowSettlements(Interceptor):
    kinds = frozenset({CallKind.SETTLE})

    def before(self, call: Call) -> Awaitable[None]:
        return _a_second()


async def _a_second() -> None:
    await trio.sleep(1)


async def test_deliveries_that_a_consumer_has_come_before_the_answer_to_its_cancel(autojump_clock):
    store = MemoryBroker(VirtualClock(), random.Random(0))
    broker = InterceptedBroker(store, [SlowSettlements()])
    async with site(broker=broker) as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        consume = commands.Basic.Consume(queue="orders", consumer_tag="c", no_ack=True)
        await client.asks(consume, commands.Basic.ConsumeOk)
        await other.publish(b"hello", "orders")
        await trio.sleep(0.5)  # while it is settled
        await client.send(commands.Basic.Cancel(consumer_tag="c"))

        assert (await client.hears(commands.Basic.Deliver)).body == b"hello"
        await client.hears(commands.Basic.CancelOk)


class SlowToReturn(MemoryBroker):
    """A namespace to which the deliveries of a receiver come back a second after its end."""

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        async with super().open_receiver(entity, mode) as receiver:
            try:
                yield receiver
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)


async def test_a_close_is_answered_when_the_deliveries_are_back(autojump_clock):
    broker = SlowToReturn(VirtualClock(), random.Random(0))
    async with site(broker=broker) as here:
        client, other = await here.connect(), await here.connect()
        await client.declares("orders")
        await client.publish(b"hello", "orders")
        await client.asks(commands.Basic.Consume(queue="orders"), commands.Basic.ConsumeOk)
        await client.hears(commands.Basic.Deliver)
        await client.send(commands.Connection.Close(200, "", 0, 0), channel=0)
        await client.hears(commands.Connection.CloseOk)

        assert (await other.gets("orders")) is not None
