"""
The cost of a gateway's entities: memory, and the time from its start to its first answer.

    python -m benchmarks.entities [--few 10] [--many 100000]

A store with a number of queues, all empty, is made in this process. Then a gateway is started on
it, and a message is sent to one of its queues.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console

from benchmarks.fleet import client_of, open_fleet
from benchmarks.in_process import open_broker
from benchmarks.machine import facts_of_processor
from benchmarks.memory import resident
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.demo.machines import broker_config
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.store.embedded.broker import EmbeddedOptions

_AT_ONCE: Final = 2000  # queues that are made in one transaction, roughly
_STORE: Final = "broker.db"
LONGEST: Final = 3.0  # seconds until the first answer
MOST: Final = 1024  # bytes for an entity: a million of them in a GiB
_WIDTH: Final = 120


@attrs.frozen(kw_only=True)
class Start:
    """A start of a gateway with a number of entities."""

    entities: int
    seconds: float  # until its first answer
    processor: float  # seconds of processor time until then
    resident: int  # bytes of its memory then


@attrs.frozen
class Report:
    facts: dict[str, str]
    starts: list[Start]

    @property
    def each(self) -> float:
        """Bytes for one entity."""
        few, many = self.starts
        return (many.resident - few.resident) / (many.entities - few.entities)

    @property
    def targets(self) -> list[Target]:
        many = self.starts[-1]
        return [
            Target(
                text=f"with {many.entities} entities at most {LONGEST:.0f} s to the first answer",
                reached=many.seconds <= LONGEST,
                found=f"{many.seconds:.2f} s",
            ),
            Target(
                text=f"at most {MOST} bytes for an entity",
                reached=self.each <= MOST,
                found=f"{self.each:.0f} bytes",
            ),
        ]


async def start(folder: Path, entities: int) -> Start:
    """Make the store, and start a gateway on it."""
    name = f"with-{entities}"
    (folder / name).mkdir()
    options = EmbeddedOptions(max_queues=entities)
    async with open_broker(folder / name / _STORE, options) as broker:
        for first in range(0, entities, _AT_ONCE):
            async with trio.open_nursery() as nursery:
                for index in range(first, min(first + _AT_ONCE, entities)):
                    nursery.start_soon(broker.create_queue, _queue(index), QueueProperties())
    config = broker_config().replace("queues =", f"max_queues = {entities}\nqueues =")
    async with open_fleet(folder) as fleet:
        began = time.perf_counter()
        machine = await fleet.start(name, config)
        async with client_of(machine.port) as client:
            await client.send(_queue(0), [Message(body=b"first")])
            return Start(
                entities=entities,
                seconds=time.perf_counter() - began,
                processor=processor_time(machine.pid),
                resident=resident(machine.pid),
            )


def _queue(index: int) -> EntityPath:
    return EntityPath(f"queue-{index:07d}")


async def measure(folder: Path, few: int, many: int) -> Report:
    about = dict(facts_of_processor())
    starts = [await start(folder, number) for number in (few, many)]
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return Report(about, starts)


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    for each in found.starts:
        console.print(
            f"{each.entities} entities: first answer after {each.seconds:.2f} s, of which"
            f" {each.processor:.2f} s of processor time; {each.resident / 2**20:.0f} MiB",
            highlight=False,
        )
    show_targets(found.targets, console)


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory and start of many entities.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--few", type=int, default=10, help="entities of the start to compare with")
    parser.add_argument("--many", type=int, default=100_000, help="entities of the measured start")
    arguments = parser.parse_args()
    report_of(
        lambda folder: measure(folder, arguments.few, arguments.many),
        _show,
        as_json=arguments.json,
        width=_WIDTH,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
