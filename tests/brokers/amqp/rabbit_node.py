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
    folder.mkdir(parents=True, exist_ok=True)
    http = free_port()
    settings = ("management.tcp.ip = 127.0.0.1", f"management.tcp.port = {http}")
    async with rabbitmq(folder, plugins=PLUGINS, settings=settings) as (_, port):
        print(json.dumps([port, http]), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]))
