"""
Senders of azure-servicebus 7.15 that send numbered messages at once, as fast as they are answered.

Runs in `.venv-azure`, as a process of its own. Commands are lines: `rest` (until all sends under
way are answered), `go`, `pause SECONDS` (of a sender after each answer), `stop`. Each line that it
prints is a list in JSON: the kind of event, the message, and of an error its class and text. Usage:
amqp_senders.py CONNECTION_STRING QUEUE SENDERS PAUSE
"""

import asyncio
import json
import sys

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

CONNECTION, QUEUE, SENDERS, PAUSE = sys.argv[1:]


def tell(*what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Senders:
    def __init__(self):
        self.may_send = asyncio.Event()
        self.at_rest = 0
        self.pause = float(PAUSE)
        self.stopped = False

    async def obey(self):
        loop = asyncio.get_running_loop()
        while not self.stopped:
            match (await loop.run_in_executor(None, sys.stdin.readline)).split():
                case ["rest"]:
                    self.may_send.clear()
                case ["go"]:
                    self.may_send.set()
                case ["pause", seconds]:
                    self.pause = float(seconds)
                case _:
                    self.stopped = True
                    self.may_send.set()

    async def rest(self):
        if self.may_send.is_set():
            return
        self.at_rest += 1
        if self.at_rest == int(SENDERS):
            tell("at rest")
        await self.may_send.wait()
        self.at_rest -= 1

    async def send(self, name):
        """Each has a connection of its own, and no error is tried again."""
        number = 0
        service = ServiceBusClient.from_connection_string(CONNECTION, retry_total=0)
        async with service, service.get_queue_sender(QUEUE) as sender:
            while True:
                await self.rest()
                if self.stopped:
                    return
                number += 1
                await send_one(sender, f"{name}-{number}", number)
                await asyncio.sleep(self.pause)


async def send_one(sender, name, number):
    message = ServiceBusMessage(
        f"order {number}",
        message_id=name,
        subject="order",
        session_id=name.rpartition("-")[0],
        content_type="text/plain",
        application_properties={"number": number, "sender": name},
    )
    tell("invoked", name, number)
    try:
        await sender.send_messages(message)
    except AzureError as error:
        tell("refused", name, type(error).__name__, str(error))
    else:
        tell("acknowledged", name)


async def main():
    senders = Senders()
    async with asyncio.TaskGroup() as group:
        group.create_task(senders.obey())
        for name in range(int(SENDERS)):
            group.create_task(senders.send(f"sender-{name}"))


asyncio.run(main())
