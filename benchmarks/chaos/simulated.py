"""
Puts a simulated run into a folder: `python -m benchmarks.chaos.simulated SEED FOLDER`.

The run is one of those that `tests/simulation/test_histories.py` judges. With `--planted` the run
has a bug, for a look at the checker's verdict.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.checker import write
from gateway.checker.history import (
    Attempted,
    Closed,
    EntityStateMoved,
    FaultBegan,
    FaultEnded,
    Killed,
    Opened,
    Paused,
    Sampled,
    Settled,
    Swallowed,
    Unconfirmed,
)
from gateway.checker.operations import (
    Acked,
    Completed,
    Delivered,
    Failed,
    Invoked,
    Record,
    Uncertain,
    Unknown,
)
from tests.simulation.bugs import BUGS, bug_named
from tests.simulation.world import run_world


def write_run(seed: int, folder: Path) -> list[Path]:
    """Run that seed and write a file for each participant; return the files."""
    outcomes = run_world(seed)
    files: dict[str, list[Record]] = defaultdict(list)
    for record in outcomes.records:
        files[_recorder(record)].append(record)
    folder.mkdir(parents=True, exist_ok=True)
    began, ended = outcomes.records[0].at, max(record.at for record in outcomes.records)
    return [
        write(folder, name, [Opened(at=began, process=name), *mine, Closed(at=ended, process=name)])
        for name, mine in files.items()
    ]


def _recorder(record: Record) -> str:
    """Return the name of the process that would write that record."""
    match record:
        case Invoked() | Acked() | Failed() | Unknown():
            return "producers"
        case Delivered() | Completed():
            return "consumers"
        case FaultBegan() | FaultEnded() | Killed() | Swallowed() | Uncertain():
            return "nemesis"
        case Attempted() | EntityStateMoved() | Paused() | Settled() | Unconfirmed() | Sampled():
            return f"watch of {record.process}"
        case _:
            return "auditor"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Put down the history of a simulated run.")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path, help="the folder to make, which the checker judges")
    parser.add_argument("--planted", choices=[bug.name for bug in BUGS], help="the planted bug")
    chosen = parser.parse_args(arguments)
    if any(chosen.folder.glob("*.jsonl")):
        parser.error(
            f"{chosen.folder} has a history already, and the checker would take it for one"
        )
    if chosen.planted is not None:
        again = ("-m", "benchmarks.chaos.simulated", str(chosen.seed), str(chosen.folder))
        return bug_named(chosen.planted).run(*again)
    for path in write_run(chosen.seed, chosen.folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
