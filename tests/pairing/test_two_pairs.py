"""Two pairs with one label, one key and one secondary, on real stores."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import attrs
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.message import AcceptedBy, Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.ports import Broker
from gateway.store.embedded.broker import EmbeddedBroker
from tests.brokers.pairs import BACKLOG_QUEUES, LABEL, pair_of, syphon_of

ORDERS = EntityPath("orders")
PATIENCE = 30.0  # seconds
MESSAGES = 20


def real_date() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class Primary(ForwardingBroker):
    """A primary that can be down."""

    store: Broker
    is_down: bool = False

    @property
    def inner(self) -> Broker:
        return self.store

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        if self.is_down:
            await trio.lowlevel.checkpoint()
            raise Unavailable("down")
        await self.store.send(entity, messages)


async def arrived(store: Broker) -> list[str]:
    found = await store.peek(ORDERS, limit=1000)
    return sorted(str(delivery.message.message_id) for delivery in found)


async def until_all_arrived(*stores: Broker) -> None:
    while True:
        counts = [len(await arrived(store)) for store in stores]
        if sum(counts) >= len(stores) * MESSAGES:
            return
        await trio.sleep(0.05)


async def test_twenty_of_twenty_messages_stay_for_their_own_syphon(tmp_path):
    async with AsyncExitStack() as stack:

        async def store(name: str) -> EmbeddedBroker:
            made = EmbeddedBroker(tmp_path / name / "a.db", real_date, random.Random(name))
            return await stack.enter_async_context(made)

        eu, us, secondary = await store("eu"), await store("us"), await store("west")
        short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=1))
        for index in range(BACKLOG_QUEUES):
            await secondary.create_queue(backlog.queue_name(LABEL, index), short)
        primaries = [Primary(eu, is_down=True), Primary(us, is_down=True)]
        sent: list[list[str]] = [[], []]
        for number, primary in enumerate(primaries):
            await primary.store.create_queue(ORDERS, QueueProperties())
            async with pair_of(primary, secondary, real_date) as pair:
                for index in range(MESSAGES):
                    message = Message(message_id=f"{number}-{index}")
                    sent[number].append(str(message.message_id))
                    assert (
                        await send_accepted_by(pair.broker, ORDERS, [message]) is AcceptedBy.BACKLOG
                    )
        async with trio.open_nursery() as nursery:
            for primary in primaries:
                primary.is_down = False
                nursery.start_soon(syphon_of(primary, secondary, real_date).run)
            with trio.move_on_after(PATIENCE):
                await until_all_arrived(eu, us)
            nursery.cancel_scope.cancel()

        assert await arrived(eu) == sorted(sent[0])
        assert await arrived(us) == sorted(sent[1])
