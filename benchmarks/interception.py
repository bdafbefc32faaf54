"""
Measures what interceptors add to a send in this process.

    .venv/bin/python -m benchmarks.interception [--sends 20000] [--rounds 5]

    a send ──▶ a namespace that accepts at once                       bare
    a send ──▶ InterceptedBroker, 0 to all interceptors ──▶ the same    intercepted

The rows take turns, and each has the least processor time of its rounds, so that other programs on
the machine disturb them alike.
"""

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import click
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import Message
from gateway.extensions.announcements.interceptor import Announcing
from gateway.extensions.drill.interceptor import Cut
from gateway.interception import Interceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import (
    AbilityInterceptor,
    AbilityWatch,
    ReceiveInterceptor,
    SendInterceptor,
)

ORDERS: Final = EntityPath("orders")
MESSAGES: Final = [Message(body=b"x" * 100)]


class Accepting(MemoryBroker):
    """A namespace that accepts each message at once and forgets it."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """Return at once."""


@attrs.frozen
class Row:
    name: str
    make: Callable[[Broker], Broker]


def _now() -> datetime:
    return datetime.now(UTC)


def _all() -> list[Interceptor]:
    """The interceptors of a namespace without a pair and without traces, and those of a drill."""
    watch = AbilityWatch(clock=_now)
    return [
        SendInterceptor(SendCounters()),
        AbilityInterceptor(watch),
        ReceiveInterceptor(watch),
        Cut(),
        Announcing(lambda _queue, _size: None),
    ]


ROWS: Final = (
    Row("bare", lambda broker: broker),
    Row("no interceptor", lambda broker: InterceptedBroker(broker, ())),
    Row("all but traces", lambda broker: InterceptedBroker(broker, _all())),
)


async def _measure(broker: Broker, sends: int) -> float:
    """The processor seconds of that many sends."""
    began = time.process_time()
    for _ in range(sends):
        await broker.send(ORDERS, MESSAGES)
    return time.process_time() - began


async def _run(sends: int, rounds: int) -> None:
    made = [row.make(Accepting(_now, random.Random(0))) for row in ROWS]
    least = [float("inf")] * len(ROWS)
    for _ in range(rounds):
        for index, broker in enumerate(made):
            least[index] = min(least[index], await _measure(broker, sends))
    for row, seconds in zip(ROWS, least, strict=True):
        added = 1e6 * (seconds - least[0]) / sends
        click.echo(f"{row.name:16} {1e6 * seconds / sends:7.2f} us a send, {added:6.2f} us added")


@click.command()
@click.option("--sends", default=20_000, help="Sends of a round.")
@click.option("--rounds", default=5, help="Rounds; the best of each row counts.")
def main(sends: int, rounds: int) -> None:
    """Measure sends through interceptors."""
    trio.run(_run, sends, rounds)


if __name__ == "__main__":
    main()
