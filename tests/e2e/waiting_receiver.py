"""
A consumer of azure-servicebus 7.15, plain or with asyncio, that goes on receiving whatever happens.

Runs in `.venv-azure`, as a process of its own, and prints a line of JSON for each message that it
gets, and for each error that it sees.
Usage: waiting_receiver.py plain|asyncio CONNECTION_STRING QUEUE
"""

import asyncio
import json
import sys

from azure import servicebus
from azure.servicebus import aio
from azure.servicebus.exceptions import ServiceBusError

KIND, CONNECTION, QUEUE = sys.argv[1:]
WAIT = 5  # seconds of one receive


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def receive():
    with (
        servicebus.ServiceBusClient.from_connection_string(CONNECTION, retry_total=0) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        say(opened=QUEUE)
        while True:
            for message in receiver.receive_messages(max_wait_time=WAIT):
                receiver.complete_message(message)
                say(got=str(message))


async def receive_async():
    async with (
        aio.ServiceBusClient.from_connection_string(CONNECTION, retry_total=0) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        say(opened=QUEUE)
        while True:
            for message in await receiver.receive_messages(max_wait_time=WAIT):
                await receiver.complete_message(message)
                say(got=str(message))


while True:
    try:
        asyncio.run(receive_async()) if KIND == "asyncio" else receive()
    except ServiceBusError as error:
        say(error=type(error).__name__, text=str(error))
