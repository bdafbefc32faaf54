"""
Runs outages and prints, for each process and signal, the seconds for which it said what wasn't so.
The goal is 0. Usage: python -m benchmarks.honesty [--only TEXT] [--seconds N] [--told]
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import open_fleet
from benchmarks.honesty.judge import Lie, lies_of, seconds_of
from benchmarks.honesty.scene import Run, Scene

KINDS: Final = ("embedded", "amqp", "rabbitmq", "rabbitmq-management")
PROCESSES: Final = ("own", "separate", "two")
OUTAGES: Final = ("killed", "frozen", "slow")
WIDTH: Final = 150  # characters of the table
MOST_FAILURES: Final = 5  # texts


async def run(scene: Scene, folder: Path) -> tuple[Run, Sequence[Lie]]:
    """Perform the scene; return everything that was seen, and the lies in it."""
    async with open_fleet(folder) as fleet:
        performed = Run(scene, fleet)
        story = await performed.perform()
        found = lies_of(story, performed.answers, performed.drawn)
        fleet.nursery.cancel_scope.cancel()
    return performed, found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default="", help="scenes whose names have this text")
    arguments.add_argument("--seconds", type=float, default=20.0, help="of each outage")
    arguments.add_argument("--told", action="store_true", help="print each lie")
    options = arguments.parse_args()
    scenes = [
        Scene(kind=kind, processes=processes, outage=outage, seconds=options.seconds)
        for kind, processes, outage in product(KINDS, PROCESSES, OUTAGES)
    ]
    console = Console(width=WIDTH)
    table = Table("scene", "process", "lies: seconds by signal", "watched", box=SIMPLE_HEAD)
    count = 0.0
    for scene in (each for each in scenes if options.only in each.name):
        with tempfile.TemporaryDirectory() as folder:
            performed, lies = trio.run(run, scene, Path(folder))
        count += _add(table, performed, lies)
        for lie in lies if options.told else ():
            console.print(f"{lie.at:.1f} {lie.process} {lie.signal}: {lie.text}", markup=False)
    console.print(table)
    sys.exit(1 if count else 0)


def _add(table: Table, performed: Run, lies: Sequence[Lie]) -> float:
    """A row for each process; return the seconds of lies."""
    sums = seconds_of(lies)
    for process in performed.watched:
        own = {signal: seconds for (name, signal), seconds in sums.items() if name == process.name}
        told = ", ".join(f"{signal} {seconds:.0f}" for signal, seconds in own.items())
        heard = [each.seconds for each in performed.answers if each.process == process.name]
        table.add_row(performed.scene.name, process.name, told or "none", f"{sum(heard):.0f} s")
    for failure in sorted(set(performed.failures))[:MOST_FAILURES]:
        table.add_row("", "", failure, "")
    return sum(sums.values())


if __name__ == "__main__":
    main()
