"""RabbitMQ's own shovel, in another broker, to and from the gateway, through an outage."""

import json
import os
import signal
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
import trio

from tests.e2e.processes import Gateways
from tests.harness import servers
from tests.harness.blocking import blocking, pika_connection
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import RABBITMQ_4, control, rabbitmq
from tests.harness.secret_files import write_secret

pytestmark = [pytest.mark.live, pytest.mark.slow]

SHOVEL = "rabbitmq_shovel"  # the plugin
MANY = 300  # messages, of which a third is under way in the outage
LOOK = 0.2  # seconds
ORDERS, TASKS = "orders", "tasks"
CONFIG = """
    [namespaces.first]
    url = "rabbitmq://guest@127.0.0.1:{port}"
    password = {{ file = "{secret}" }}
    [namespaces.second]
    url = "embedded:second.db"
    [pairing]
    primary = "first"
    secondary = "second"
    label = "shovel"
    enable_syphon = true
    [[endpoints]]
    protocol = "rabbitmq"
    bind = "127.0.0.1:0"
"""


def at(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/{quote('/', safe='')}"


def publish(port: int, queue: str, first: int) -> None:
    connection = pika_connection(port)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    for number in range(first, first + MANY // 3):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    connection.close()


def taken(port: int, queue: str) -> list[int]:
    """The numbers on a queue, which is there and empty afterwards."""
    connection = pika_connection(port)
    channel, found = connection.channel(), []
    channel.queue_declare(queue, durable=True)
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(int(message[2]))
    connection.close()
    return found


async def test_a_shovel_moves_to_and_from_the_gateway_through_an_outage(
    gateways: Gateways, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    write_secret(secret, "guest\n")
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    came: dict[str, list[int]] = {"in": [], ORDERS: []}

    async with (
        rabbitmq(tmp_path / "near", "near", release=RABBITMQ_4) as (near, near_port),
        rabbitmq(tmp_path / "far", "far", release=RABBITMQ_4, plugins=[SHOVEL]) as (far, far_port),
    ):
        for queue in (ORDERS, TASKS):
            await blocking(taken, near_port, queue)
        config = CONFIG.format(port=near_port, secret=secret)
        gateway = await gateways.start(config, name="gateway")

        async def until_came(many: int) -> None:
            with trio.fail_after(PATIENCE):
                while not all(set(each) == set(range(many)) for each in came.values()):
                    await trio.sleep(LOOK)
                    for queue, port in (("in", far_port), (ORDERS, near_port)):
                        came[queue] += await blocking(taken, port, queue)

        ways = {
            "out": (at(far_port), "out", at(gateway.port), ORDERS),
            "home": (at(gateway.port), TASKS, at(far_port), "in"),
        }
        for first in range(0, MANY, MANY // 3):
            await blocking(publish, far_port, "out", first)
            await blocking(publish, gateway.port, TASKS, first)
            if first == 0:
                for name, (source, queue, target, into) in ways.items():
                    each = {"src-protocol": "amqp091", "src-uri": source, "src-queue": queue}
                    each |= {"dest-protocol": "amqp091", "dest-uri": target, "dest-queue": into}
                    settings = json.dumps({**each, "ack-mode": "on-confirm"})
                    await control(far, "set_parameter", "shovel", name, settings)
            elif first == MANY // 3:
                await until_came(2 * first)
                await servers.freeze(near.pid)
        await gateway.seen("entity_state_changed")
        os.kill(near.pid, signal.SIGCONT)
        await until_came(MANY)
        with trio.fail_after(PATIENCE):
            while True:  # one may just have lost its connection
                if (await control(far, "shovel_status")).count("running") == len(ways):
                    break
                await trio.sleep(LOOK)
