"""Brokers that end connections and links again and again: on a socket, with a script."""

from collections.abc import Sequence

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.domain.message import Delivery, Message
from gateway.wire.amqp.events import AmqpError, ConnectionOpened, LinkAttached
from gateway.wire.amqp.message import encode_message
from tests.brokers.amqp.scripted import Served, client, open_connection, scripted, take
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")
ONE = [Message(message_id="1", body=b"x")]
FORCED = AmqpError(condition="amqp:connection:forced", description="go away")


@pytest.mark.slow
async def test_a_peer_that_ends_each_connection_is_not_stormed():
    def send_away(served: Served, attached: LinkAttached) -> None:
        served.engine.close(FORCED)

    async with scripted() as server, client(server.port) as broker:
        server.on_attach = send_away
        for _ in range(50):
            with pytest.raises(Unavailable):
                await broker.try_send(ORDERS, ONE)

        assert len(server.connections) < 10
        opened, began = len(server.connections), trio.current_time()
        for _ in range(20):
            with pytest.raises(Unavailable):
                await broker.send(ORDERS, ONE)

        assert len(server.connections) - opened <= 1 + 10 * (trio.current_time() - began)


async def test_a_receiver_whose_callers_have_little_time_is_attached_again():
    def detach(served: Served, attached: LinkAttached) -> None:
        take(served, attached)
        served.detach_all(FORCED)

    def hand_out(served: Served, attached: LinkAttached) -> None:
        take(served, attached)
        served.engine.send(attached.link, b"t", encode_message(ONE[0]))

    async with scripted() as server, client(server.port) as broker:
        async with broker.open_receiver(ORDERS) as receiver:
            server.on_attach = detach
            server.connections[0].detach_all(FORCED)
            for _ in range(4):
                with pytest.raises(Unavailable):
                    await receiver.receive(1)
            server.on_attach = hand_out
            taken: Sequence[Delivery] = ()
            with trio.move_on_after(60):
                while not taken:
                    with trio.move_on_after(0.1):
                        taken = await receiver.receive(1)

        assert [each.message.message_id for each in taken] == ["1"]


async def test_a_connection_that_takes_longer_than_its_callers_have_is_opened_for_the_next():
    async with trio.open_nursery() as nursery, scripted() as server, client(server.port) as broker:

        async def open_late(served: Served, opened: ConnectionOpened) -> None:
            await trio.sleep(1.0)
            open_connection(served, opened)

        server.on_open = lambda served, opened: nursery.start_soon(open_late, served, opened)
        sent = False
        with trio.fail_after(PATIENCE):
            while not sent:
                with trio.move_on_after(0.4):
                    await broker.send(ORDERS, ONE)
                    sent = True

        nursery.cancel_scope.cancel()
