"""RabbitMQ's own shovel sends to the gateway as a client of AMQP 1.0."""

import json
import random
from functools import partial
from pathlib import Path

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Delivery, Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import EMULATOR_POLICY, Authorizer
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker
from tests.brokers.rabbitmq.nodes import client
from tests.frontends.rest_client import ORDERS, wall_clock
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import control, rabbitmq

pytestmark = pytest.mark.live

SOURCE = EntityPath("source")
TOO_LARGE = 3  # the number of that message
MOST = 10_000  # bytes of a message
TO = "amqp://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{}?sasl=plain"


async def test_a_shovel_moves_a_queue_although_one_message_is_too_large(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    broker = MemoryBroker(wall_clock, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties(max_message_size=MOST))
    leases = Leases(broker, wall_clock)
    await nursery.start(leases.run)
    authorizer = Authorizer([EMULATOR_POLICY], wall_clock=wall_clock)
    frontend = AmqpFrontend(
        broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
    )
    serve = partial(trio.serve_tcp, frontend.serve_connection, 0, host="127.0.0.1")
    [listener] = await nursery.start(serve)
    plugins = ["rabbitmq_shovel", "rabbitmq_amqp1_0"]
    wanted = {f"{number}" for number in range(10)} - {f"{TOO_LARGE}"}

    async with rabbitmq(tmp_path, plugins=plugins) as (node, port), client(port) as source:
        await source.create_queue(SOURCE, QueueProperties())
        for number in range(10):
            body = bytes(2 * MOST) if number == TOO_LARGE else b"small"
            await source.send(SOURCE, [Message(message_id=f"{number}", body=body)])
        shovel = {
            **{"src-protocol": "amqp091", "src-queue": SOURCE.name, "ack-mode": "on-confirm"},
            **{"src-uri": f"amqp://guest:guest@127.0.0.1:{port}", "dest-protocol": "amqp10"},
            **{"dest-address": ORDERS.name, "reconnect-delay": 1},
            "dest-uri": TO.format(listener.socket.getsockname()[1]),
        }
        await control(node, "set_parameter", "shovel", "to-us", json.dumps(shovel))
        moved: list[Delivery] = []
        with trio.fail_after(PATIENCE):
            async with broker.open_receiver(ORDERS) as receiver:
                while len(moved) < len(wanted):
                    moved += await receiver.receive(10)

    assert {each.message.message_id for each in moved} == wanted
    assert {each.message.body for each in moved} == {b"small"}
