"""A benchmark of several ways to a namespace: its report, its table and its options."""

import argparse
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.amqp import FULL, QUICK, WIDTH, WINDOWS, Effort, show_cells
from benchmarks.amqp_figures import Cell, Ratio, Rounds, ratio_of
from benchmarks.report import print_report, show_facts
from benchmarks.targets import Target, show_targets


@attrs.frozen(kw_only=True)
class Comparison:
    ours: str
    theirs: str
    ratio: Ratio


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    comparisons: Sequence[Comparison]
    targets: Sequence[Target]


def compare(rounds: Rounds, compared: Sequence[tuple[str, str]]) -> Sequence[Comparison]:
    """The ratios of each pair of ways, ours to theirs, that were measured alike."""
    return [
        Comparison(ours=ours, theirs=theirs, ratio=ratio_of(window, pairs, rounds[theirs, window]))
        for ours, theirs in compared
        for (way, window), pairs in rounds.items()
        if way == ours and (theirs, window) in rounds
    ]


def run(
    description: str,
    ways: Sequence[str],
    measure: Callable[[Path, Sequence[str], Sequence[int], Effort], Awaitable[Report]],
) -> int:
    """Measure as the command line says, and print the report; return the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=ways, default=ways, help="ways to measure")
    parser.add_argument(
        "--windows", nargs="+", type=int, default=WINDOWS, help="messages in flight"
    )
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up")
    parser.add_argument("--seconds", type=float, help="seconds of sends in each measurement")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    parser.add_argument("--folder", type=Path, help="where the stores are made: choose the disk")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    effort = attrs.evolve(
        effort,
        rounds=arguments.rounds or effort.rounds,
        seconds=arguments.seconds or effort.seconds,
    )
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-", dir=arguments.folder) as folder:
        found = trio.run(measure, Path(folder), arguments.only, arguments.windows, effort)
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    show_cells(found.cells, console)
    table = Table("ours", "theirs", "in flight", "sends", "receives", box=SIMPLE_HEAD)
    for each in found.comparisons:
        ratio = each.ratio
        row = (str(ratio.window), f"{ratio.send:.2f}", f"{ratio.receive:.2f}")
        table.add_row(each.ours, each.theirs, *row)
    console.print(table)
    show_targets(found.targets, console)
