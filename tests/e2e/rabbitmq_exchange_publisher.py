"""
A publisher with pika: `python rabbitmq_exchange_publisher.py PORT NAME`.

Publishes numbered messages with confirms to the exchanges of `ROUTES` in turn, until a line comes
on its standard input; then prints the numbers that were confirmed, and each error. After an error
it connects again.
"""

import json
import select
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pika

PREFIX: Final = "Shop:"  # of the exchanges' names, which are their types
COPIES: Final = "copies"  # a second routing key, by CC, and the queue that is bound for it
# Type -> routing key, and headers of the message.
ROUTES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "topic": ("order.placed", {"CC": [COPIES]}),
    "direct": ("order", {}),
    "fanout": ("anything", {}),
    "headers": ("", {"vip": True}),
}
PAUSE: Final = 0.02  # seconds
LIMITS: Final = {"socket_timeout": 60.0, "stack_timeout": 120.0}  # of a machine that stalls


def _is_over() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _publish(port: int, name: str, numbers: Iterator[int], confirmed: list[int]) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **LIMITS))
    channel = connection.channel()
    channel.confirm_delivery()
    while not _is_over():
        number = next(numbers)
        kind = list(ROUTES)[number % len(ROUTES)]
        key, headers = ROUTES[kind]
        properties = pika.BasicProperties(
            delivery_mode=2, expiration="3600000", priority=3, headers=headers, user_id="guest"
        )
        channel.basic_publish(PREFIX + kind, key, f"{name} {number}".encode(), properties)
        confirmed.append(number)
        time.sleep(PAUSE)
    connection.close()


def main(port: int, name: str) -> None:
    errors: list[str] = []
    confirmed: list[int] = []
    numbers = iter(range(10**9))
    while not _is_over():
        try:
            _publish(port, name, numbers, confirmed)
        except (pika.exceptions.AMQPError, OSError) as failure:
            errors.append(repr(failure))
            time.sleep(0.2)
    sys.stdout.write(json.dumps({"confirmed": confirmed, "errors": errors, "error": ""}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
