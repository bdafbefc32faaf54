"""Runs a benchmark and prints its report: as tables for people, as JSON for machines."""

import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio
from rich.console import Console

Report = TypeVar("Report", bound=attrs.AttrsInstance)


def print_report(
    report: Report, show: Callable[[Report, Console], None], *, as_json: bool, width: int
) -> None:
    """Print the report as one JSON object, or by `show` on a console of `width` characters."""
    if as_json:
        print(json.dumps(attrs.asdict(report), indent=2))
    else:
        show(report, Console(width=width))


def show_facts(facts: Mapping[str, str], console: Console) -> None:
    """Print each fact on a line."""
    for name, value in facts.items():
        console.print(f"{name}: {value}", highlight=False)


def show_medians(rounds: int, machine: Mapping[str, str], console: Console, note: str = "") -> None:
    """Print below a table that it has the medians of the rounds, then a note and all facts."""
    facts = ", ".join(f"{name}: {value}" for name, value in machine.items())
    console.print(f"Medians of {rounds} rounds{note}. {facts}")


def report_of(
    measure: Callable[[Path], Awaitable[Report]],
    show: Callable[[Report, Console], None],
    *,
    as_json: bool,
    width: int,
) -> Report:
    """Measure in a folder that is removed at the end; print the report, and return it."""
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as folder:
        report = trio.run(measure, Path(folder))
    print_report(report, show, as_json=as_json, width=width)
    return report
