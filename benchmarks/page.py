"""
Runs all benchmarks in turn and writes the page of their tables, all of one commit and one run.

    python -m benchmarks.page [--only NAME ...] [--to FILE]
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.machine import facts_of_processor

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "build" / "benchmarks.md"
NAMES: Final = (
    "embedded",
    "backup",
    "start",
    "overhead",
    "sidecar",
    "identities",
    "ledger",
    "starvation",
    "failover",
    "with_and_without",
    "amqp",
    "amqp_engine",
    "amqp_idle",
    "entities",
    "namespaces",
    "rabbitmq_wire",
    "service_bus",
    "syphon",
    "order",
    "order_gateways",
    "shards",
    "cluster",
    "storage_queue",
    "listener",
    "memory",
    "event_readers",
)


@attrs.frozen
class Output:
    """The output of a benchmark, and its exit code."""

    command: Sequence[str]
    text: str
    code: int

    @property
    def section(self) -> str:
        end = "" if self.code == 0 else f"\nIt failed, with exit code {self.code}.\n"
        return f"## `{' '.join(self.command)}`\n{end}\n```text\n{self.text.strip()}\n```\n"


def run(arguments: Sequence[str]) -> Output:
    """Run a command of Python; return its output once it has ended. The errors go to stderr."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
    )
    return Output(("python", *arguments), done.stdout, done.returncode)


def commit() -> str:
    """The commit of the working tree, and whether the tree differs from it."""
    hash_ = _git("rev-parse", "HEAD")
    return f"{hash_}, with changes" if _git("status", "--porcelain") else hash_


def page(facts: dict[str, str], outputs: Iterable[Output]) -> str:
    """The page: its facts, and a section for each benchmark."""
    lines = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    sections = "\n".join(each.section for each in outputs)
    return f"# Benchmarks of one run\n\n{lines}\n\n{sections}"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="All benchmarks, and the page of their tables.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="benchmarks to run")
    parser.add_argument("--to", type=Path, default=PAGE, help="the file of the page")
    arguments = parser.parse_args()
    facts = {"commit": commit(), **facts_of_processor()}
    outputs = []
    for name in arguments.only:
        outputs.append(run(["-m", f"benchmarks.{name}"]))
        print(outputs[-1].text, flush=True)
        # After each, so that a run that is interrupted leaves what it has measured.
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        arguments.to.write_text(page(facts, outputs))
    return int(any(each.code for each in outputs))


if __name__ == "__main__":
    sys.exit(main())
