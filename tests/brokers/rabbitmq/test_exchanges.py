"""
Publishes of RabbitMQ's clients to exchanges: routed by a real broker as if the client published.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import pytest
import trio
from pamqp import commands, header

from gateway.brokers.rabbitmq.broker import RabbitmqBroker
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, InvalidRequest, PartlyAccepted, QuotaExceeded
from gateway.domain.message import Message
from gateway.wire.rabbitmq.exchanges import entity_of_exchange, entity_of_queue
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.properties import message_as_given
from gateway.wire.rabbitmq.relayed import FrameReader
from tests.brokers.rabbitmq.nodes import NEWER, Nodes, client
from tests.harness.blocking import blocking, pika_connection

pytestmark = pytest.mark.live

# A queue's name, and its binding: routing key and arguments.
Bindings = Mapping[str, tuple[str, dict[str, Any]]]
BY_KIND: Final[Mapping[str, Bindings]] = {
    "topic": {"all": ("#", {}), "placed": ("order.placed.*", {}), "others": ("other.*", {})},
    "direct": {"one": ("order.placed.east", {}), "others": ("east", {})},
    "fanout": {"one": ("", {}), "two": ("", {})},
    "headers": {
        "vip": ("", {"x-match": "all", "vip": True}),
        "others": ("", {"x-match": "all", "vip": False}),
    },
}


def publish(exchange: str, key: str, body: bytes = b"x", *, mandatory: bool = False) -> Message:
    """A message as the front end has it."""
    method = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    [frame] = FrameReader().feed(method_frame(1, method))
    properties = commands.Basic.Properties(
        delivery_mode=2, expiration="60000", headers={"vip": True, "CC": ["copied"]}
    )
    head = header.ContentHeader(body_size=len(body), properties=properties).marshal()
    return message_as_given(head, body, frame.payload)


@attrs.frozen(kw_only=True)
class Bound:
    """An exchange with bound queues on a real broker."""

    broker: RabbitmqBroker
    port: int
    exchange: str
    entity: EntityPath
    queues: Sequence[str]

    async def bodies(self) -> dict[str, list[bytes]]:
        """The bodies in each queue, which are taken from it."""
        return await _on_channel(self.port, self._bodies)

    def _bodies(self, channel: Any) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for queue in self.queues:
            while (got := channel.basic_get(f"{self.exchange}-{queue}", auto_ack=True))[0]:
                found.setdefault(queue, []).append(got[2])
        return found


async def _on_channel(port: int, act: Callable[[Any], Any]) -> Any:
    def run() -> Any:
        connection = pika_connection(port)
        try:
            return act(connection.channel())
        finally:
            connection.close()

    return await blocking(run)


def _declare(exchange: str, kind: str, bindings: Bindings, full: str, channel: Any) -> None:
    channel.exchange_declare(exchange, kind, durable=True)
    for queue, (key, arguments) in bindings.items():
        name = f"{exchange}-{queue}"
        limit = {"x-max-length": 1, "x-overflow": "reject-publish"} if queue == full else {}
        channel.queue_declare(name, durable=True, arguments=limit)
        channel.queue_bind(name, exchange, key, arguments)


def _delete(exchange: str, bindings: Bindings, channel: Any) -> None:
    channel.exchange_delete(exchange)
    for queue in bindings:
        channel.queue_delete(f"{exchange}-{queue}")


@asynccontextmanager
async def bound(
    rabbits: Nodes, kind: str, node: str = "primary", full: str = ""
) -> AsyncIterator[Bound]:
    exchange, bindings, port = f"Shop:{kind} {node}", BY_KIND[kind], rabbits.port(node)
    entity = entity_of_exchange(exchange)
    assert entity is not None
    async with client(port) as broker:
        await _on_channel(port, partial(_declare, exchange, kind, bindings, full))
        try:
            yield Bound(
                broker=broker, port=port, exchange=exchange, entity=entity, queues=[*bindings]
            )
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(10):
                await _on_channel(port, partial(_delete, exchange, bindings))


@pytest.mark.parametrize("node", ["primary", NEWER], ids=["RabbitMQ 3", "RabbitMQ 4"])
@pytest.mark.parametrize("exchange", BY_KIND)
async def test_a_message_is_routed_by_its_exchange(
    rabbits: Nodes, exchange: str, node: str
) -> None:
    async with bound(rabbits, exchange, node) as here:
        one, two = (publish(here.exchange, "order.placed.east", body) for body in (b"1", b"2"))
        verdicts = await here.broker.send_many(here.entity, [[one], [two]])
        found = await here.bodies()

    assert list(verdicts) == [None, None]
    assert found == {queue: [b"1", b"2"] for queue in BY_KIND[exchange] if queue != "others"}


async def test_a_message_without_a_queue_is_refused_alone_if_it_is_mandatory(
    rabbits: Nodes,
) -> None:
    async with bound(rabbits, "direct") as here:
        good = publish(here.exchange, "east")
        lost = publish(here.exchange, "nobody", mandatory=True)
        dropped = publish(here.exchange, "nobody")
        verdicts = await here.broker.send_many(here.entity, [[good], [lost], [dropped]])
        with pytest.raises(PartlyAccepted) as partly:
            await here.broker.send(here.entity, [good, lost])

    assert [type(verdict) for verdict in verdicts] == [type(None), InvalidRequest, type(None)]
    assert "NO_ROUTE" in str(verdicts[1])
    assert partly.value.has_accepted(good)
    assert isinstance(partly.value.why, InvalidRequest)


async def test_a_missing_exchange_is_not_found_until_it_is_there(rabbits: Nodes) -> None:
    missing = EntityPath("$exchange/nowhere")
    async with client(rabbits.port("primary")) as broker:
        for _ in range(2):
            with pytest.raises(EntityNotFound, match="no exchange 'nowhere'"):
                await broker.send(missing, [publish("nowhere", "key"), publish("nowhere", "key")])
        with pytest.raises(EntityNotFound):
            await broker.probe(missing)
        with pytest.raises(EntityNotFound):
            await broker.inspect(missing)


async def test_an_exchange_is_probed_and_described_without_counts(rabbits: Nodes) -> None:
    async with bound(rabbits, "topic") as here:
        await here.broker.probe(here.entity)
        for info in (
            await here.broker.inspect(here.entity),
            await here.broker.describe(here.entity),
        ):
            assert (info.path, info.active) == (here.entity, None)


async def test_a_queue_that_refuses_is_told_as_full_and_asked_again(rabbits: Nodes) -> None:
    async with bound(rabbits, "direct", full="one") as here:
        message = publish(here.exchange, "order.placed.east")
        await here.broker.send(here.entity, [message])
        with pytest.raises(QuotaExceeded):
            await here.broker.send(here.entity, [message])
        assert await here.bodies() == {"one": [b"x"]}
        await here.broker.send(here.entity, [message])


async def test_only_a_client_of_rabbitmq_can_publish_to_an_exchange(rabbits: Nodes) -> None:
    async with client(rabbits.port("primary")) as broker:
        with pytest.raises(InvalidRequest):
            await broker.send(EntityPath("$exchange/amq.topic"), [Message(body=b"x")])
        with pytest.raises(InvalidRequest):
            await broker.send(EntityPath("orders"), [publish("amq.topic", "key")])


@pytest.mark.parametrize("node", ["primary", NEWER], ids=["RabbitMQ 3", "RabbitMQ 4"])
async def test_a_queue_of_any_name_is_reached_through_the_default_exchange(
    rabbits: Nodes, node: str
) -> None:
    queue, port = "Orders: höchste", rabbits.port(node)
    entity = entity_of_queue(queue)
    await _on_channel(port, lambda channel: channel.queue_declare(queue, exclusive=False))
    try:
        async with client(port) as broker:
            await broker.probe(entity)
            here = publish("", queue, b"1", mandatory=True)
            gone = publish("", "Orders: gone", mandatory=True)
            verdicts = await broker.send_many(entity, [[here], [gone]])
        _, _, body = await _on_channel(port, lambda each: each.basic_get(queue, auto_ack=True))
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(10):
            await _on_channel(port, lambda channel: channel.queue_delete(queue))

    assert [type(verdict) for verdict in verdicts] == [type(None), InvalidRequest]
    assert body == b"1"
