"""
Judges a recorded run: `python -m benchmarks.chaos.checker FOLDER`.

The folder has a file of JSON lines (`wire/history.py`) of each process that took part. Exit codes:
0 nothing is broken, 1 something is, 2 it can't be decided.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.checker.history import Killed, Opened
from gateway.checker.invariants import Judgement, judge_run
from gateway.checker.judgements import Validity
from gateway.checker.operations import Record
from gateway.checker.records import build, parse
from gateway.checker.verdict import Violation

PASSED: Final = 0
VIOLATED: Final = 1
UNDECIDED: Final = 2
SHOWN: Final = 10  # problems of one invariant, on the screen
WIDTH: Final = 140
STYLES: Final = {
    Validity.HOLDS: "green",
    Validity.BROKEN: "red",
    Validity.UNDECIDED: "yellow",
    Validity.IDLE: "dim",
}
# The fates of messages, in the words of the plan: fates that break a rule, and fates that are
# counted.
CLASSES: Final = {
    "lost": Violation.LOST,
    "unexpected": Violation.UNEXPECTED,
    "aborted-read": Violation.ABORTED,
    "misrouted": Violation.MISROUTED,
    "corrupt": Violation.CORRUPT,
    "resurrected": Violation.RESURRECTED,
    "stuck": Violation.STUCK,
    "dup-over-budget": Violation.DUPLICATED,
    "badly dead-lettered": Violation.DEAD_LETTERED,
}
COUNTED: Final = (
    *("acked", "failed", "unknown", "duplicated", "allowed"),
    *("redelivered", "recovered", "vanished", "expired", "dead_lettered", "perished"),
)


@attrs.frozen(kw_only=True)
class Folder:
    """All records of a run; `problems` names the records that couldn't be read."""

    records: tuple[Record, ...]
    problems: tuple[str, ...]


def read(folder: Path) -> Folder:
    """All files of that folder; one that a killed process left may end within a line."""
    records: list[Record] = []
    problems: list[str] = []
    torn: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines, _, rest = path.read_bytes().rpartition(b"\n")
        try:
            mine = list(parse(lines + b"\n" if lines else b""))
        except ValueError as error:
            problems.append(f"{path.name}: {error}")
            continue
        records += mine
        if rest:
            torn[path.name] = {one.process for one in mine if isinstance(one, Opened)}
    killed = {one.process for one in records if isinstance(one, Killed)}
    problems += [f"{name} is cut off" for name, who in torn.items() if not who or who - killed]
    if not records:
        problems.append(f"{folder} has no records")
    return Folder(records=tuple(records), problems=tuple(problems))


def write(folder: Path, process: str, records: Sequence[Record]) -> Path:
    """Write all records of this process; return the file."""
    path = folder / f"{process}.jsonl"
    path.write_bytes(b"".join(build(records)))
    return path


def check(folder: Path) -> Judgement:
    """Judge the run in the folder; records that can't be read can't be judged."""
    found = read(folder)
    judgement = judge_run(found.records)
    if found.problems:
        undecided = (*found.problems, *judgement.undecided)
        return attrs.evolve(judgement, undecided=undecided, decisions=())
    return judgement


def exit_code(judgement: Judgement) -> int:
    if judgement.undecided:
        return UNDECIDED
    if judgement.with_validity(Validity.BROKEN):
        return VIOLATED
    return UNDECIDED if judgement.with_validity(Validity.UNDECIDED) else PASSED


def as_json(judgement: Judgement) -> dict[str, Any]:
    """Return the judgement for machines, in the words of the screen."""
    return {
        "exit": exit_code(judgement),
        "undecided": list(judgement.undecided),
        "invariants": {
            one.invariant.name: {
                "says": one.invariant.value,
                "validity": one.validity.value,
                "judged": one.judged,
                "problems": list(one.problems),
            }
            for one in judgement.decisions
        },
        "messages": dict(_figures(judgement)) if judgement.decisions else {},
    }


def _figures(judgement: Judgement) -> Iterator[tuple[str, float]]:
    findings = judgement.verdict.findings
    for name, violation in CLASSES.items():
        yield name, sum(one.violation is violation for one in findings)
    for name in COUNTED:
        yield name, judgement.verdict.counts.get(name, 0)
    yield "amplification", round(judgement.amplification, 4)


def show(judgement: Judgement, console: Console) -> None:
    """Print the judgement for people."""
    for reason in judgement.undecided:
        console.print(f"[yellow]undecided[/yellow]: {reason}", highlight=False)
    if not judgement.decisions:
        return
    table = Table("", "what must hold", "validity", "judged", box=SIMPLE_HEAD)
    for one in judgement.decisions:
        validity = f"[{STYLES[one.validity]}]{one.validity.value}[/]"
        table.add_row(one.invariant.name, one.invariant.value, validity, str(one.judged))
    console.print(table)
    for one in judgement.decisions:
        for text in one.problems[:SHOWN]:
            console.print(f"{one.invariant.name}: {text}", highlight=False, markup=False)
        if len(one.problems) > SHOWN:
            console.print(f"{one.invariant.name}: and {len(one.problems) - SHOWN} more")
    figures = (f"{name} {number:g}" for name, number in _figures(judgement))
    console.print(", ".join(figures), highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge a recorded run.")
    parser.add_argument("folder", type=Path, help="has a file of JSON lines of each process")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    chosen = parser.parse_args(arguments)
    judgement = check(chosen.folder)
    if chosen.json:
        print(json.dumps(as_json(judgement), indent=2))
    else:
        show(judgement, Console(width=WIDTH))
    return exit_code(judgement)


if __name__ == "__main__":
    sys.exit(main())
