"""
The steps of the official emulator's samples, with the SDK, from another container.

    python emulator_client.py PORT

The name `servicebus` leads to this machine, as the network of the containers has it.
"""

import json
import socket
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

NAME = "servicebus"
TEXT = "Hello, Azure Service Bus!"
look_up = socket.getaddrinfo


def in_the_network(host: object, *rest: object, **named: object) -> object:
    return look_up("127.0.0.1" if host == NAME else host, *rest, **named)


def connection_string(port: str) -> str:
    return (
        f"Endpoint=sb://{NAME}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )


def main(port: str) -> list[str]:
    socket.getaddrinfo = in_the_network
    with ServiceBusClient.from_connection_string(connection_string(port)) as client:
        with client.get_queue_sender("queue.1") as sender:
            sender.send_messages(ServiceBusMessage(TEXT))
        with client.get_topic_sender("topic.1") as sender:
            sender.send_messages(ServiceBusMessage(TEXT, subject="subject1"))
        got = []
        for receiver in (
            client.get_queue_receiver("queue.1", max_wait_time=10),
            client.get_subscription_receiver("topic.1", "subscription.1", max_wait_time=10),
        ):
            with receiver:
                [message] = receiver.receive_messages()
                receiver.complete_message(message)
                got.append(str(message))
    return got


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
