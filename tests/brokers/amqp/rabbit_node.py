"""
A RabbitMQ node for tests of several event loops: `python -m tests.brokers.amqp.rabbit_node FOLDER`.

It prints its ports, for AMQP and for HTTP, and lives until its input ends.
"""

import json
import sys
from pathlib import Path

import trio

from gateway.testing.rabbitmq import rabbitmq
from gateway.testing.servers import free_port

PLUGINS = ("rabbitmq_amqp1_0", "rabbitmq_management")


async def run(folder: Path) -> None:
    http = free_port()
    settings = ("management.tcp.ip = 127.0.0.1", f"management.tcp.port = {http}")
    async with rabbitmq(folder, plugins=PLUGINS, settings=settings) as (_, port):
        sys.stdout.write(json.dumps([port, http]) + "\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    trio.run(run, place)
