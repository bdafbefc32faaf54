"""
A send, and a receive with its completion, in process: this version beside an earlier one's sources.

    python -m benchmarks.versions SOURCES [--rounds N] [--messages N]

64 tasks send to one queue of a store, and then receive and complete all. Each version has a store
and a process of its own, and they take turns.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from rich.console import Console

from benchmarks.figures import GrowthRatio, report
from benchmarks.machine import facts
from benchmarks.report import report_of, show_facts
from benchmarks.sizes import Sides, grow
from benchmarks.targets import Target, show_targets

FASTER: Final = 1.4  # times as many messages a second as before: the goal of issue 49
_WIDTH: Final = 110


@attrs.frozen
class Report:
    facts: dict[str, str]
    ratios: list[GrowthRatio]  # few: the earlier version; many: this one

    @property
    def targets(self) -> list[Target]:
        return [
            Target(
                text=f"{one.operation}: {FASTER} times as many a second as before",
                reached=1 / one.ratio >= FASTER,
                found=f"{1 / one.ratio:.2f} times, by processor time"
                f" {1 / one.processor_ratio:.2f}; {1e6 * one.few_cost:.0f} us before,"
                f" {1e6 * one.many_cost:.0f} us now",
            )
            for one in self.ratios
        ]


async def measure(sources: Path, rounds: int, messages: int, folder: Path) -> Report:
    sides = Sides(kind="entities", few=1, many=1, before=sources)
    growth = await grow(folder, sides, rounds=rounds, messages=messages)
    return Report(dict(facts(folder)), [*report({}, {}, [growth]).growths])


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    show_targets(found.targets, console)


def main() -> int:
    parser = argparse.ArgumentParser(description="This version beside an earlier one, in process.")
    parser.add_argument("sources", type=Path, help="the folder of the earlier version's sources")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=5000, help="of a round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    measured = partial(measure, arguments.sources, arguments.rounds, arguments.messages)
    report_of(measured, _show, as_json=arguments.json, width=_WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
