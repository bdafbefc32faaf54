"""
Measures what a ledger adds to a send in this process, and the bytes of a fact.

    .venv/bin/python -m benchmarks.ledger [--sends 20000] [--rounds 5]

    a send ──▶ a namespace that accepts at once                                  without
    a send ──▶ InterceptedBroker with a recorder ──▶ the same; a thread writes    with a ledger

The rows take turns, and each has the least processor time of its rounds, its writing included.
"""

import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import click
import trio

from benchmarks.machine import facts_of_processor
from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.extensions.ledger.file import LedgerFile
from gateway.extensions.ledger.ledger import Ledger
from gateway.extensions.ledger.recorder import Recorder
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.log import LogObserver

ORDERS: Final = EntityPath("orders")
LIMIT: Final = 1 << 30  # bytes: nothing is forgotten
MOST: Final = 15.0  # us of the processor a send: a tenth of what a durable one takes over HTTP


class Accepting(MemoryBroker):
    """A namespace that accepts each message in one turn of the loop, and forgets it."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """Return after a checkpoint."""
        await trio.lowlevel.checkpoint()


async def _measure(
    broker: Broker, sends: int, numbers: Sequence[str], write: Callable[[], Awaitable[None]]
) -> float:
    began = time.process_time()
    for number in range(sends):
        await broker.send(ORDERS, [Message(message_id=numbers[number], body=b"x" * 100)])
    await write()
    return time.process_time() - began


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


async def _run(sends: int, rounds: int) -> None:
    runtime = Runtime()
    numbers = [runtime.new_id() for _ in range(sends)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.db")
        ledger = Ledger(
            file=LedgerFile.open(path, LIMIT, "benchmark", runtime.now()),
            clock=runtime.now,
            observer=LogObserver(click.echo, as_json=True, level="info", clock=runtime.now),
        )
        plain = Accepting(runtime.now, random.Random(0))
        recorded = InterceptedBroker(plain, [Recorder(ledger.record, runtime.now)])
        least = [float("inf")] * 2
        async with trio.open_nursery() as nursery:
            await nursery.start(ledger.run)
            for _ in range(rounds):
                least[0] = min(least[0], await _measure(plain, sends, numbers, _nothing))
                least[1] = min(least[1], await _measure(recorded, sends, numbers, ledger.write))
            nursery.cancel_scope.cancel()
        ledger.close()
        size = (await trio.Path(path).stat()).st_size / (sends * rounds)
    without, with_ledger = (1e6 * each / sends for each in least)
    added = with_ledger - without
    click.echo(f"{'without':14} {without:6.2f} us of the processor a send")
    click.echo(f"{'with a ledger':14} {with_ledger:6.2f} us, {added:.2f} us added")
    click.echo(f"{size:.0f} bytes a fact")
    click.echo("; ".join(f"{name}: {value}" for name, value in facts_of_processor().items()))
    click.echo(f"{'reached' if added <= MOST else 'MISSED'}: at most {MOST:g} us added a send")


@click.command()
@click.option("--sends", default=20_000, help="Sends of a round.")
@click.option("--rounds", default=5, help="Rounds; the best of each row counts.")
def main(sends: int, rounds: int) -> None:
    """Measure sends with and without a ledger."""
    trio.run(_run, sends, rounds)


if __name__ == "__main__":
    main()
