"""
A consumer with pika: `python rabbitmq_consumer.py PORT QUEUE`.

Acknowledges each message of the queue, and of one of its own that is bound to `amq.topic`, until a
line comes on its standard input; then prints the bodies that it got, and the first error.
"""

import json
import select
import sys
from typing import Any, Final

import pika

LIMITS: Final = {"socket_timeout": 60.0, "stack_timeout": 120.0}  # of a machine that stalls


def main(port: int, queue: str) -> None:
    bodies: list[str] = []
    error = ""

    def take(channel: Any, method: Any, _: Any, body: bytes) -> None:
        bodies.append(body.decode())
        channel.basic_ack(method.delivery_tag)

    try:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **LIMITS))
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.queue_declare("own", exclusive=True)
        channel.queue_bind("own", "amq.topic", "news")
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume("own", take, exclusive=True)
        channel.basic_consume(queue, take)  # the last: a consumer there shows that it is ready
        while not select.select([sys.stdin], [], [], 0)[0]:
            connection.process_data_events(time_limit=0.2)
        before = -1
        while before < len(bodies):  # until nothing comes any more
            before = len(bodies)
            connection.process_data_events(time_limit=5)
        connection.close()
    except pika.exceptions.AMQPError as failure:
        error = repr(failure)
    sys.stdout.write(json.dumps({"bodies": bodies, "error": error}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
