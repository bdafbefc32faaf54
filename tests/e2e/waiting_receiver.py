"""
A consumer of azure-servicebus 7.15, plain, with asyncio or of sessions, that goes on receiving
whatever happens.

Runs in `.venv-azure`, as a process of its own, and prints a line of JSON for each message that it
gets, and for each error that it sees.
Usage: waiting_receiver.py plain|asyncio|sessions CONNECTION_STRING QUEUE
"""

import asyncio
import json
import sys

from azure import servicebus
from azure.servicebus import aio
from azure.servicebus.exceptions import ServiceBusError

KIND, CONNECTION, QUEUE = sys.argv[1:]
WAIT = 5  # seconds of one receive
IDLE = 1  # seconds without a message, after which another session has its turn


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


def receive_sessions():
    with servicebus.ServiceBusClient.from_connection_string(CONNECTION, retry_total=0) as client:
        say(opened=QUEUE)
        while True:
            with client.get_queue_receiver(
                QUEUE, session_id=servicebus.NEXT_AVAILABLE_SESSION, max_wait_time=WAIT
            ) as receiver:
                while messages := receiver.receive_messages(max_wait_time=IDLE):
                    for message in messages:
                        receiver.complete_message(message)
                        say(got=str(message), session=receiver.session.session_id)


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
        if KIND == "asyncio":
            asyncio.run(receive_async())
        elif KIND == "sessions":
            receive_sessions()
        else:
            receive()
    except ServiceBusError as error:
        say(error=type(error).__name__, text=str(error))
