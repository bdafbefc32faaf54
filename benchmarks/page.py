"""
Runs all benchmarks in turn and writes the page of their tables, all of one commit and one run.

    python -m benchmarks.page [--short] [--only NAME ...] [--to FILE]

The short form has one or two rounds of each, and parts of the longest: it shows that all of them
end, and the processor time of a message. Rates and latencies are those of the long form.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.machine import facts_of_processor

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "build" / "benchmarks.md"
# Each benchmark, and its options in the short form.
SHORT: Final[Mapping[str, str]] = {
    "embedded": "--quick",
    "backup": "--rounds 1 --seconds 4 --size 20 --rate 50",
    "start": "--rounds 1",
    "overhead": "--rounds 1 --seconds 1",
    "sidecar": "--rounds 1 --seconds 1",
    "identities": "--rounds 1 --sends 200",
    "ledger": "--rounds 1 --sends 2000",
    "starvation": "--rounds 1 --seconds 2 --only service-bus-http",
    "failover": "--only killed",
    "with_and_without": "--seconds 5",
    "amqp": "--quick",
    "amqp_engine": "--quick",
    "amqp_idle": "--connections 100",
    "entities": "--many 10000",
    "namespaces": "--quick",
    "rabbitmq_wire": "--quick",
    "service_bus": "--rounds 1 --seconds 1 --windows 100",
    "syphon": "--rounds 1 --messages 10000",
    "order": "--rounds 1 --seconds 1 --keys 1",
    "order_gateways": "--rounds 1 --seconds 1 --keys 1",
    "shards": "--rounds 1 --seconds 1 --shards 2",
    "cluster": "--rounds 1 --settlements 50",
    "storage_queue": "--quick",
    "listener": "--rounds 1 --wakes 30",
    "memory": "--rounds 1 --connections 50",
    "event_readers": "--rounds 1 --seconds 1",
}
NAMES: Final = tuple(SHORT)


@attrs.frozen
class Output:
    """The output of a benchmark, and its exit code."""

    command: Sequence[str]
    text: str
    code: int
    seconds: float

    @property
    def section(self) -> str:
        end = "" if self.code == 0 else f"\nIt failed, with exit code {self.code}.\n"
        took = f"It took {self.seconds:.0f} s."
        text = self.text.strip()
        return f"## `{' '.join(self.command)}`\n\n{took}\n{end}\n```text\n{text}\n```\n"


def run(arguments: Sequence[str]) -> Output:
    """Run a command of Python; return its output once it has ended. The errors go to stderr."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
    )
    seconds = time.perf_counter() - began
    return Output(("python", *arguments), done.stdout, done.returncode, seconds)


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
    parser.add_argument("--short", action="store_true", help="one round of each, not of all parts")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="benchmarks to run")
    parser.add_argument("--to", type=Path, default=PAGE, help="the file of the page")
    arguments = parser.parse_args()
    facts = {"commit": commit(), **facts_of_processor()}
    outputs = []
    for name in arguments.only:
        options = SHORT[name].split() if arguments.short else []
        outputs.append(run(["-m", f"benchmarks.{name}", *options]))
        print(outputs[-1].text, flush=True)
        # After each, so that a run that is interrupted leaves what it has measured.
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        arguments.to.write_text(page(facts, outputs))
    return int(any(each.code for each in outputs))


if __name__ == "__main__":
    sys.exit(main())
