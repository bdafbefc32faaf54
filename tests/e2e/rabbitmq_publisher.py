"""
A publisher with pika: `python rabbitmq_publisher.py PORT QUEUE NAME [PASSWORD]`.

Publishes numbered messages until a line comes on its standard input; then prints their number, and
the first error. With a name that ends with "?" it asks for no confirms.
"""

import json
import select
import sys
import time
from typing import Final

import pika

LIMITS: Final = {"socket_timeout": 60.0, "stack_timeout": 120.0}  # of a machine that stalls


def main(port: int, queue: str, name: str, password: str = "guest") -> None:
    login = pika.PlainCredentials("guest", password)
    parameters = pika.ConnectionParameters("127.0.0.1", port, credentials=login, **LIMITS)
    try:
        connection = pika.BlockingConnection(parameters)
    except pika.exceptions.AMQPError as failure:
        sys.stdout.write(json.dumps({"sent": 0, "error": repr(failure)}))
        return
    channel = connection.channel()
    if not name.endswith("?"):
        channel.confirm_delivery()
    sent, error = 0, ""
    while not select.select([sys.stdin], [], [], 0)[0]:
        properties = pika.BasicProperties(
            delivery_mode=2,
            content_type="text/plain",
            correlation_id=f"{sent}",
            headers={"retries": [1, None, {"deep": True}], "task": "orders.place"},
        )
        try:
            channel.basic_publish("", queue, f"{name} {sent}".encode(), properties)
        except pika.exceptions.AMQPError as failure:
            error = repr(failure)
            break
        sent += 1
        time.sleep(0.02)
    if not error:
        connection.close()
    sys.stdout.write(json.dumps({"sent": sent, "error": error}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
