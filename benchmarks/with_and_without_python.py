"""
The program that is measured, with azure-servicebus: senders with the SDK's own retries.

Usage, in .venv-azure: with_and_without_python.py CONNECTION_STRING QUEUE SECONDS SENDERS PAUSE
"""

import asyncio
import json
import sys
import time

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

CONNECTION, QUEUE, SECONDS, SENDERS, PAUSE = sys.argv[1:]
accepted, failed, longest = [], [], [0.0]


async def send_until(ends, name):
    client = ServiceBusClient.from_connection_string(CONNECTION)
    async with client, client.get_queue_sender(QUEUE) as sender:
        number = 0
        while time.monotonic() < ends:
            number += 1
            begun, id_ = time.monotonic(), f"{name}-{number}"
            try:
                await sender.send_messages(ServiceBusMessage("hello", message_id=id_))
                accepted.append(id_)
            except Exception as error:
                failed.append(type(error).__name__)
            longest[0] = max(longest[0], time.monotonic() - begun)
            await asyncio.sleep(float(PAUSE))


async def main():
    ends = time.monotonic() + float(SECONDS)
    await asyncio.gather(*(send_until(ends, f"python-{n}") for n in range(int(SENDERS))))


asyncio.run(main())
json.dump({"accepted": accepted, "failed": failed, "longest": longest[0]}, sys.stdout)
