"""The namespace `storage-queue` on a real Azurite, also over connections that break."""

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import attrs
import pytest
import trio

from gateway.capabilities import ChangesBody, Updates
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    MessageTooLarge,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Abandon, Complete, Message
from gateway.domain.storage_queue import UNLIMITED
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.offering import required
from gateway.pairing.options import Oversized
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.body import MAX_ENCODED
from gateway.wire.storage_queue.metadata import Notes, write_notes
from tests.brokers.kinds import real_date
from tests.brokers.pairs import pair_of
from tests.brokers.storage_queue.azurites import Azurites, client
from tests.extensions.sharding.harness import sharded
from tests.harness.chaos_proxy import ChaosProxy, ResetDuring, SwallowResponse, Truncate
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
PAST_ITS_KEEP_ALIVE = 6.5  # seconds: Azurite closes what is idle after six


def text(body: bytes) -> Message:
    return Message(body=body)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", "<&> ü \U0001f600 ]]>".encode(), b"x" * storage.MAX_MESSAGE, b"a\nb\tc"],
    ids=["nothing", "a word", "markup", "the most", "lines"],
)
async def test_a_text_is_there_as_it_is(azurites: Azurites, body: bytes) -> None:
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [text(body)])
        queue = namespace.broker._queue_of(namespace.inside(ORDERS))
        peeked = await queue.peer.run(storage.PeekMessages(queue=queue.name))
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                [delivery] = await receiver.receive(1)

        assert isinstance(peeked, storage.Messages)
        assert [each.body for each in peeked.items] == [body]
        assert delivery.message.body == body
        assert delivery.message.message_id == peeked.items[0].message_id


async def test_a_sender_deletes_its_message_that_nobody_has_received(azurites: Azurites) -> None:
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        queue, broker = namespace.inside(ORDERS), namespace.broker
        receipts = [await broker.send_deletable(queue, text(each)) for each in (b"1", b"2")]
        await broker.peek(queue, limit=2)
        await broker.delete_sent(queue, receipts[0])
        left = [each.message.body for each in await broker.peek(queue, limit=2)]
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                await receiver.receive(1)
            for receipt in receipts:  # one is deleted, the other received
                with pytest.raises(BrokerError) as refused:
                    await broker.delete_sent(queue, receipt)
                assert refused.value.outcome is Outcome.NOT_SENT

    assert left == [b"2"]


@pytest.mark.parametrize(
    "body", [b"\x00\xff", b"a\r\nb", b" a ", b"\x0b", "\ufffe".encode(), b"\n"], ids=repr
)
async def test_text_that_xml_would_change_or_refuse_comes_back(
    azurites: Azurites, body: bytes
) -> None:
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [text(body)])
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                [delivery] = await receiver.receive(1)

        assert delivery.message.body == body


async def test_a_pair_passes_what_the_account_takes_to_the_primary_alone(
    azurites: Azurites,
) -> None:
    put = partial(Message, message_id=str(UUID(int=1)), creation_time=real_date())
    largest = put(body=b"x" * storage.MAX_MESSAGE)
    too_large = put(body=b"x" * (storage.MAX_MESSAGE + 1))
    async with (
        azurites.namespace("primary") as primary,
        azurites.namespace("secondary") as secondary,
        pair_of(primary, secondary, real_date, oversized=Oversized.PRIMARY_ONLY) as pair,
    ):
        await pair.broker.create_queue(ORDERS, QueueProperties())
        await pair.broker.send(ORDERS, [largest])
        with pytest.raises(MessageTooLarge):
            await pair.broker.send(ORDERS, [too_large])
        pair.states.force_over(ORDERS)
        with pytest.raises(MessageTooLarge, match="in an outage"):
            await pair.broker.send(ORDERS, [largest])

        assert (await primary.inspect(ORDERS)).active == 1


@pytest.mark.parametrize("char", [b"x", b"&"], ids=["letters", "markup"])
async def test_as_many_and_as_large_messages_as_there_can_be_come_at_once(
    azurites: Azurites, char: bytes
) -> None:
    most = MAX_ENCODED - 100 if char == b"&" else storage.MAX_MESSAGE
    body = char * most
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [text(body)] * storage.MAX_MESSAGES)
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                taken = await receiver.receive(100)

        assert [each.message.body for each in taken] == [body] * storage.MAX_MESSAGES


async def test_properties_that_a_queue_was_made_with_are_kept_there(azurites: Azurites) -> None:
    wanted = attrs.evolve(
        UNLIMITED,
        lock_duration=timedelta(seconds=90),
        max_delivery_count=3,
        user_metadata="mine ü",
    )
    async with azurites.namespace("primary") as namespace:
        created = await namespace.create_queue(EntityPath("a/b.c_d"), wanted)
        listed = await namespace.list_queues()

        assert created.properties == wanted
        assert [(each.path.key, each.properties) for each in listed] == [("a/b.c_d", wanted)]


async def test_changes_of_a_queue_keep_the_metadata_of_its_clients(azurites: Azurites) -> None:
    team = write_notes(Notes(metadata={"team": "blue"}))
    async with azurites.namespace("primary") as namespace:
        updates, orders = required(namespace.broker, Updates), namespace.inside(ORDERS)
        created = await namespace.create_queue(ORDERS, QueueProperties(user_metadata=team))
        with pytest.raises(NotSupported, match="no versions"):
            await updates.update_queue(orders, created.properties, if_version=created.version)
        wanted = attrs.evolve(created.properties, lock_duration=timedelta(seconds=5))
        updated = await updates.update_queue(orders, wanted)
        found = await namespace.inspect(ORDERS)

        assert updated.properties == found.properties == wanted
        with pytest.raises(EntityNotFound):
            await updates.update_queue(orders.dead_letter, wanted)
        with pytest.raises(EntityNotFound):
            await updates.update_queue(namespace.inside(EntityPath("missing")), wanted)


async def test_the_text_of_a_locked_message_changes_and_its_other_fields_stay(
    azurites: Azurites,
) -> None:
    message = Message(body=b"first", message_id="a", properties={"n": 1})
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [message])
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                [delivery] = await receiver.receive(1)
            changes = required(receiver, ChangesBody)
            await changes.change_body(delivery, b"second")
            with pytest.raises(MessageTooLarge):
                await changes.change_body(delivery, b"x" * 70_000)
            await receiver.settle(delivery, Abandon())
            with trio.fail_after(PATIENCE):
                [again] = await receiver.receive(1)
            await receiver.settle(again, Complete())
            with pytest.raises(LockLost):
                await changes.change_body(again, b"third")

    assert again.message == attrs.evolve(delivery.message, body=b"second")


async def test_shards_on_two_servers(azurites: Azurites) -> None:
    table = ShardTable.of(
        [ShardingRule(queue="orders", shards=3, namespaces=("one", "other", "one"))]
    )
    async with azurites.namespace("primary") as one, azurites.namespace("secondary") as other:
        places = ShardPlaces(home=one, others={"other": other}, table=table)
        namespace = sharded(places, table, lambda: datetime.now(UTC))
        await namespace.create_queue(ORDERS, QueueProperties())
        for first in range(0, 60, 3):
            await namespace.send(ORDERS, [text(str(first + n).encode()) for n in range(3)])
        info = await namespace.inspect(ORDERS)
        got: set[int] = set()
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                while len(got) < 60:
                    for delivery in await receiver.receive(32):
                        got.add(int(delivery.message.body))
                        await receiver.settle(delivery, Complete())

        assert info.active == 60
        assert got == set(range(60))


# --- broken connections


@pytest.mark.parametrize(
    ("fault", "arrived"),
    [(ResetDuring(40), 0), (SwallowResponse(), 1), (Truncate(10), 1)],
    ids=["request cut", "no answer", "answer cut"],
)
async def test_a_put_on_a_connection_that_breaks_is_unknown(
    azurites: Azurites, fault: object, arrived: int
) -> None:
    proxy = ChaosProxy("127.0.0.1", azurites.port("primary"), rng=random.Random(0))
    async with azurites.namespace("primary") as namespace, trio.open_nursery() as nursery:
        await namespace.create_queue(ORDERS, QueueProperties())
        async with client(await nursery.start(proxy.serve)) as broker:
            proxy.fault = fault
            with pytest.raises(OutcomeUnknown) as caught, trio.fail_after(PATIENCE):
                await broker.send(namespace.inside(ORDERS), [text(b"x")])

        assert caught.value.outcome is Outcome.UNKNOWN
        assert (await namespace.inspect(ORDERS)).active == arrived
        nursery.cancel_scope.cancel()


async def test_a_refused_connection_means_nothing_was_sent() -> None:
    async with client(free_port()) as broker:
        with pytest.raises(Unavailable):
            await broker.send(ORDERS, [text(b"x")])


async def test_a_connection_that_the_server_would_close_is_not_used_again(
    azurites: Azurites,
) -> None:
    async with azurites.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [text(b"x")])
        for pause in (3.9, 4.1, PAST_ITS_KEEP_ALIVE):
            await trio.sleep(pause)
            await namespace.send(ORDERS, [text(b"x")])

        assert (await namespace.inspect(ORDERS)).active == 4
