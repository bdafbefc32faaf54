"""Packs of messages on a live node, whose receiver renews the locks itself."""

import random
import uuid
from datetime import UTC, datetime

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Message
from gateway.extensions.claims.claim_check import MessageCodec
from gateway.extensions.claims.options import PackingRule
from gateway.extensions.claims.packing import PackedBroker
from gateway.wire.amqp.message import decode_message, encode_message
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
LOCK = 12.0  # seconds: longer than the machine stalls
WORK = 1.5  # seconds for each message
MANY = 12


async def test_a_pack_handled_for_longer_than_a_lock_comes_to_its_end_and_only_once(
    rabbits: Nodes,
) -> None:
    found: list[tuple[str | None, int]] = []
    messages = [Message(message_id=str(n), body=b"small %d" % n) for n in range(MANY)]
    async with (
        rabbits.namespace("primary") as maker,
        client(maker.port, lock_duration=LOCK) as broker,
        trio.open_nursery() as nursery,
    ):
        namespace = Namespace(broker, maker.name, maker.port)
        await maker.create_queue(ORDERS, QueueProperties(max_delivery_count=2))
        packed = PackedBroker(
            broker=namespace,
            rules=(PackingRule(match="*"),),
            codec=MessageCodec(encode=encode_message, decode=decode_message),
            clock=lambda: datetime.now(UTC),
            new_id=lambda: str(uuid.UUID(int=random.getrandbits(128))),
        )
        await nursery.start(packed.run)
        await packed.send(ORDERS, messages)
        async with packed.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                while len(found) < MANY:
                    for each in await receiver.receive(1):
                        await trio.sleep(WORK)
                        await receiver.settle(each, Complete())
                        found.append((each.message.message_id, each.delivery_count))
        left = (await namespace.inspect(ORDERS)).active
        nursery.cancel_scope.cancel()

    assert found == [(each.message_id, 1) for each in messages]
    assert left == 0
