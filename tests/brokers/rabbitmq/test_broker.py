"""RabbitMQ's own behaviour, beyond the contract of every namespace."""

import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.brokers.rabbitmq.broker import open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotSupported,
    Untrusted,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Message
from gateway.net.certs import write_certificates
from gateway.net.tls import ClientTlsOptions, TlsOptions, server_context
from gateway.ports import Receiver
from tests.brokers.rabbitmq.broker import ORDERS, namespace_with_orders, numbered
from tests.brokers.rabbitmq.nodes import Nodes
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.live


async def ids_of(receiver: Receiver, wanted: int) -> list[str]:
    ids: list[str] = []
    with trio.fail_after(PATIENCE):
        while len(ids) < wanted:
            deliveries = await receiver.receive(wanted - len(ids))
            ids += [each.message.message_id for each in deliveries]
    return ids


async def test_each_of_many_sends_under_way_gets_its_own_answer(rabbits: Nodes) -> None:
    found: dict[str, list[int]] = {"orders": [], "missing": []}
    async with namespace_with_orders(rabbits) as namespace:

        async def send(name: str, number: int) -> None:
            try:
                await namespace.send(EntityPath(name), numbered(number))
            except EntityNotFound:
                assert name == "missing"
            found[name].append(number)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(send, "orders" if number % 2 else "missing", number)
        async with namespace.open_receiver(ORDERS) as receiver:
            taken = await ids_of(receiver, 100)

    assert sorted(map(int, taken)) == sorted(found["orders"]) == list(range(1, 200, 2))
    assert len(found["missing"]) == 100


async def test_more_queues_than_channels_are_served(rabbits: Nodes) -> None:
    queues = [EntityPath(f"q{number}") for number in range(4)]
    async with rabbits.namespace("primary", max_lanes=2) as namespace:
        for queue in queues:
            await namespace.create_queue(queue, QueueProperties())
        for number in range(3):
            for queue in queues:
                await namespace.send(queue, numbered(number))
        for queue in queues:
            async with namespace.open_receiver(queue) as receiver:
                assert await ids_of(receiver, 3) == ["0", "1", "2"]


async def test_a_body_of_many_frames_arrives(rabbits: Nodes) -> None:
    body = random.Random(0).randbytes(700_000)
    async with namespace_with_orders(rabbits) as namespace:
        await namespace.send(ORDERS, [Message(body=body)])
        async with namespace.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)

    assert delivery.message.body == body


async def test_a_message_above_the_limit_is_refused_and_the_others_with_it(rabbits: Nodes) -> None:
    async with namespace_with_orders(rabbits, max_message_size=2000) as namespace:
        assert (await namespace.inspect(ORDERS)).max_message_size == 2000
        with pytest.raises(MessageTooLarge, match="at most 2000"):
            await namespace.send(ORDERS, [*numbered(1), Message(body=b"x" * 3000)])

        assert (await namespace.inspect(ORDERS)).active == 0


async def test_a_message_for_later_is_refused_and_one_that_is_due_is_taken(rabbits: Nodes) -> None:
    due = datetime.now(UTC) - timedelta(seconds=1)
    async with namespace_with_orders(rabbits) as namespace:
        with pytest.raises(NotSupported, match="schedule messages"):
            await namespace.send(ORDERS, [Message(scheduled=due + timedelta(hours=1))])
        await namespace.send(ORDERS, [Message(scheduled=due)])


async def test_messages_that_a_receiver_no_longer_asks_for_go_to_others(rabbits: Nodes) -> None:
    async with namespace_with_orders(rabbits) as namespace, namespace.open_receiver(ORDERS) as idle:
        await namespace.send(ORDERS, numbered(*range(20)))
        held = [await ids_of(idle, 1) for _ in range(5)]  # unsettled: the prefetch grows
        async with namespace.open_receiver(ORDERS) as busy:
            others = await ids_of(busy, 15)

    assert held == [["0"], ["1"], ["2"], ["3"], ["4"]]
    assert sorted(others, key=int) == [str(number) for number in range(5, 20)]


async def test_a_lock_ends_after_its_time_and_the_message_comes_again(rabbits: Nodes) -> None:
    async with namespace_with_orders(rabbits, lock_duration=8.0) as namespace:
        await namespace.send(ORDERS, numbered(1))
        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                [first] = await receiver.receive(1)
                [again] = await receiver.receive(1)
            with pytest.raises(LockLost):
                await receiver.settle(first, Complete())
            await receiver.settle(again, Complete())

    assert again.delivery_count == 2
    assert again.sequence_number == first.sequence_number


async def test_a_queue_of_another_case_is_found_as_it_is_written(rabbits: Nodes) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.declare(EntityPath("Orders"), {"x-queue-type": "quorum"})
        await namespace.send(EntityPath("Orders"), numbered(1))
        with pytest.raises(EntityNotFound):
            await namespace.send(EntityPath("orders"), numbered(2))
        async with namespace.open_receiver(EntityPath("Orders")) as receiver:
            assert await ids_of(receiver, 1) == ["1"]


async def test_a_name_that_no_queue_can_have_is_refused(rabbits: Nodes) -> None:
    async with rabbits.namespace("primary") as namespace:
        for name in ("x" * 256, "topic/Subscriptions/s", "a$b"):
            with pytest.raises(InvalidRequest):
                await namespace.broker.send(EntityPath(name), numbered(1))


async def test_new_properties_go_with_a_dead_letter_and_not_with_an_abandonment(
    rabbits: Nodes,
) -> None:
    async with namespace_with_orders(rabbits) as namespace:
        await namespace.send(ORDERS, numbered(1))
        async with namespace.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            with pytest.raises(NotSupported):
                await receiver.settle(delivery, Abandon(properties={"seen": 1}))
            await receiver.settle(delivery, DeadLetter(reason="bad", properties={"seen": 1}))
        async with namespace.open_receiver(ORDERS.dead_letter) as receiver:
            [dead] = await receiver.receive(1)

    assert dead.message.properties["seen"] == 1


@asynccontextmanager
async def in_tls(port: int, options: TlsOptions) -> AsyncIterator[int]:
    """A port that ends TLS and passes on the plain bytes."""
    context = server_context(options)

    async def forward(source: trio.abc.Stream, target: trio.abc.Stream) -> None:
        try:
            while data := await source.receive_some(65536):
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(target)

    async def serve(stream: trio.SocketStream) -> None:
        inside = trio.SSLStream(stream, context, server_side=True)
        try:
            await inside.do_handshake()
        except (trio.BrokenResourceError, ssl.SSLError):
            return
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as broker,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(forward, inside, broker)
            await forward(broker, inside)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        listeners: Sequence[trio.SocketListener] = await nursery.start(
            partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        )
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_tls_is_spoken_to_who_is_trusted(rabbits: Nodes, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        write_certificates(folder, now=datetime.now(UTC))
    server = TlsOptions(certificate=ours / "server.pem", key=ours / "server.key")
    async with namespace_with_orders(rabbits) as namespace, in_tls(namespace.port, server) as port:
        for folder in (ours, theirs):
            options = RabbitmqOptions(password="guest", tls=ClientTlsOptions(ca=folder / "ca.pem"))
            broker = open_namespace(
                "rabbitmqs",
                f"//guest@localhost:{port}",
                options,
                lambda: datetime.now(UTC),
                random.Random(0),
            )
            async with broker:
                if folder is theirs:
                    with pytest.raises(Untrusted):
                        await broker.probe(namespace.inside(ORDERS))
                else:
                    await broker.send(namespace.inside(ORDERS), numbered(1))
        async with namespace.open_receiver(ORDERS) as receiver:
            assert await ids_of(receiver, 1) == ["1"]


async def test_a_receiver_that_works_between_two_receives_gets_each_message_once(
    rabbits: Nodes,
) -> None:
    seen: list[tuple[str, int]] = []
    # Any machine is quick enough.
    async with namespace_with_orders(rabbits, work=float(PATIENCE)) as namespace:
        large = [attrs.evolve(each, body=bytes(4096)) for each in numbered(*range(600))]
        await namespace.send(ORDERS, large)

        async with namespace.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                while len(seen) < 600:
                    deliveries = await receiver.receive(1000)
                    seen += [(each.message.message_id, each.delivery_count) for each in deliveries]
                    await trio.sleep(0.06)  # longer than a consumer outlives a receive
                    for each in deliveries:
                        await receiver.settle(each, Complete())

    assert len(seen) == 600
    assert len({name for name, _ in seen}) == 600
    # Nobody else wants them: none had to be given back, which counts as a delivery.
    assert {count for _, count in seen} == {1}
