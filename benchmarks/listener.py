"""
How soon a listener in another process begins with a message, and how many it works on in a second.

    .venv/bin/python -m benchmarks.listener [--messages N] [--wakes N] [--json FILE]

Three processes: a `pairgate serve` with a store on disk, a `pairgate listen` whose handler notes
when it was called, and this one, which sends over REST and knows when it began and had its answer.
All of them have one clock. The baseline of the throughput is a receive loop over the same REST, one
message for each request, as a plain client has it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.machine import facts
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from gateway.listener import Item
from gateway.ports import Broker
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, broker_config, open_gateways

ADMIN: Final = '\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
ORDERS: Final = EntityPath("orders")
NOTES: Final = "notes"
REST_SECONDS: Final = 0.1  # of an idle queue before each wake
BATCH: Final = 100
LIMIT: Final = 90.0  # seconds
_LOOK: Final = 0.002


async def handle(item: Item[Message]) -> None:
    """In the listener's process: note when it was called, of all processes' one clock."""
    line = f"{item.message.message_id} {time.clock_gettime(time.CLOCK_MONOTONIC)}\n"
    notes = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(notes, line.encode())
    os.close(notes)


async def nothing(item: Item[Message]) -> None:
    """In the listener's process: what a message costs without any work."""


@attrs.frozen(kw_only=True)
class Wakes:
    """Milliseconds until the handler is called."""

    from_send: Sequence[float]
    from_answer: Sequence[float]  # below 0: it was called before the producer had its answer

    def of(self, share: float, values: Sequence[float]) -> float:
        ordered = sorted(values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@attrs.frozen(kw_only=True)
class Rates:
    """Messages/s."""

    listener: float
    plain: float


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


async def measure_wakes(broker: Broker, listener: GatewayProcess, count: int) -> Wakes:
    """One message at a time into an idle queue."""
    await listener.seen("triggers_regained")
    notes = listener.folder / NOTES
    sent: list[tuple[float, float]] = []
    for number in range(count):
        await trio.sleep(REST_SECONDS)
        began = now()
        await broker.send(ORDERS, [Message(message_id=str(number), body=b"x")])
        sent.append((began, now()))
        await _until_lines(notes, number + 1)
    called = dict(line.split() for line in notes.read_text().splitlines())
    times = [(float(called[str(number)]), *each) for number, each in enumerate(sent)]
    return Wakes(
        from_send=[1000 * (at - began) for at, began, _ in times],
        from_answer=[1000 * (at - answered) for at, _, answered in times],
    )


async def measure_listener(broker: Broker, listener: GatewayProcess, count: int) -> float:
    """From when the messages are all there, and the listener starts, to the empty queue."""
    await _fill(broker, count)
    await listener.start()
    began = trio.current_time()
    with trio.fail_after(LIMIT):
        while True:
            if (await broker.inspect(ORDERS)).active == 0:
                break
            await trio.sleep(_LOOK)
    return count / (trio.current_time() - began)


async def measure_plain(broker: Broker, count: int) -> float:
    """Receive one, complete it, and again, over one connection."""
    await _fill(broker, count)
    began = trio.current_time()
    with trio.fail_after(LIMIT):
        async with broker.open_receiver(ORDERS) as receiver:
            for _ in range(count):
                (delivery,) = await receiver.receive(1)
                await receiver.settle(delivery, Complete())
    return count / (trio.current_time() - began)


async def _fill(broker: Broker, count: int) -> None:
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        await broker.send(ORDERS, [Message(message_id=str(n), body=b"x") for n in numbers])


async def _until_lines(notes: Path, count: int) -> None:
    with trio.fail_after(LIMIT):
        while True:  # another process: nobody here can tell when
            if _lines_of(notes) >= count:
                return
            await trio.sleep(_LOOK)


def _lines_of(notes: Path) -> int:
    return notes.read_bytes().count(b"\n") if notes.exists() else 0


async def measure(folder: Path, wakes: int, messages: int) -> tuple[Wakes, Rates]:
    async with open_gateways(folder) as gateways:
        gateway = await gateways.start(broker_config("orders") + ADMIN, name="gateway")
        command = ("listen", "orders", "--python")
        async with client(gateway) as broker:
            noting = (*command, "benchmarks.listener:handle")
            first = await gateways.start(gateway.config, name="wakes", command=noting)
            woken = await measure_wakes(broker, first, wakes)
            await first.stop()
            plain = await measure_plain(broker, messages)
            doing = (*command, "benchmarks.listener:nothing")
            second = gateways.prepare(gateway.config, name="rate", command=doing)
            rate = await measure_listener(broker, second, messages)
            await second.stop()
    return woken, Rates(listener=rate, plain=plain)


def lines_of(woken: Wakes, rates: Rates) -> list[str]:
    def figures(values: Sequence[float]) -> str:
        shares = [statistics.median(values), woken.of(0.99, values), max(values)]
        return "median {:.1f} ms, p99 {:.1f} ms, longest {:.1f} ms".format(*shares)

    return [
        f"{len(woken.from_send)} wakes of an idle listener in another process",
        f"  from the begin of the send: {figures(woken.from_send)}",
        f"  from the producer's answer: {figures(woken.from_answer)}",
        "embedded namespace behind a gateway, to a handler that does nothing",
        f"  pairgate listen:            {rates.listener:.0f} messages/s",
        f"  a plain receive loop:       {rates.plain:.0f} messages/s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wakes", type=int, default=200)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        machine = facts(Path(name))
        woken, rates = trio.run(measure, Path(name), given.wakes, given.messages)
    for key, value in machine.items():
        print(f"{key}: {value}")
    print("\n".join(lines_of(woken, rates)))
    if given.json:
        value = {"machine": dict(machine), **attrs.asdict(woken), **attrs.asdict(rates)}
        given.json.write_text(json.dumps(value))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
