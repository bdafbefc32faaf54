"""
Runs all benchmarks in turn and writes the page of their tables, all of one commit and one run.

    python -m benchmarks.page [--short] [--only NAME ...] [--to FILE]

The long form of all of them is published in `docs/reference/benchmarks.md` once none has failed.
The short form has one or two rounds of each, and parts of the longest: it shows that all of them
end, and the processor time of a message. Rates and latencies are those of the long form. The
benchmarks that have ended are in `build/benchmarks.md` at any time.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.machine import facts_of_processor

ROOT: Final = Path(__file__).parents[1]
DRAFT: Final = ROOT / "build" / "benchmarks.md"
PUBLISHED: Final = ROOT / "docs" / "reference" / "benchmarks.md"
README: Final = ROOT / "benchmarks" / "README.md"
# Each benchmark, and its options in the short form: 16 to 20 minutes in all.
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
# The options of the long form, and the seconds that it is expected to take on two quiet cores: 40
# minutes in all, where 50 are allowed; the defaults of all would take more than two hours. A cell
# is one measurement: its seconds of sends, about as long to receive, a second of start and rest.
# There are ways x sizes x (rounds + 1), as one round warms up. The same sum for the short form is
# 20 minutes, and it took 16. Each ratio has at least three rounds.
LONG: Final[Mapping[str, str]] = {
    # 180: 60 cells of 3 s. Five million messages and 200,000 queues take 210 more.
    "embedded": "--rounds 3 --only 'in process' 'over HTTP' 'the floor of HTTP' RabbitMQ Azurite",
    "backup": "--rounds 3 --seconds 8 --size 256",  # 70: 4 times 8 + 5 s, and 15 to fill the store
    "start": "",  # 15
    "overhead": "--rounds 3",  # 75: 9 cells of 3 times 2 s, and a warm-up of 1 s
    "sidecar": "--rounds 3 --seconds 1",  # 190: 32 cells of 3 times 1.5 s
    "identities": "--rounds 5",  # 45: 24 cells of 2 s
    "ledger": "",  # 10
    # 150: 4 rounds of 6 cells of 5 s. All five protocols and all aggressors take 50 minutes, as
    # the gateway rests for 16 s after each that fills its memory.
    "starvation": "--seconds 2 --only service-bus-http amqp --beside connections batches slow",
    "failover": "",  # 130: five outages of 8 or 16 s with 15 s around each
    "with_and_without": "--seconds 10",  # 50
    # 45: 12 cells of 3 s. Its SDK, and idle connections, are measured by the two below.
    "amqp": "--rounds 3 --windows 100 --only 'Proton, Pairgate' 'Proton, RabbitMQ' 'in process'",
    "amqp_engine": "--rounds 3",  # 30: 36 cells of 4 times 0.15 s
    "amqp_idle": "--connections 2000",  # 30: four times so many
    "entities": "",  # 25: 100,000 queues are made in 15
    "namespaces": "--rounds 3 --windows 100",  # 55: 16 cells of 3 s
    "rabbitmq_wire": "--rounds 3",  # 85: 24 cells of 3 s
    # 375: 104 cells of 2.7 s; Python's SDK completes one message at a time, and needs 7.
    "service_bus": "--rounds 3 --seconds 0.6 --windows 1 100",
    "syphon": "--messages 50000",  # 80: 6 turns of 10 s
    "order": "--seconds 1 --keys 1 10",  # 110: 24 cells of 4.5 s
    "order_gateways": "--seconds 3",  # 85: 18 cells of 4 s, and 6 of 2 s
    # 45: 16 cells of 2.5 s. Shards don't help the other namespaces, which are one server each.
    "shards": "--seconds 1 --only limited",
    "cluster": "--rounds 3",  # 40: 16 cells of 1.5 s
    # 130: 36 cells of 3.5 s. Deeper queues are another subject: a million messages are sent first.
    "storage_queue": "--rounds 3 --seconds 1 --depths 100",
    "listener": "--rounds 3 --triggered 10",  # 205: 48 cells of 3 s, and 200 wakes
    "memory": "--rounds 1",  # 100: after each of five loads it waits for 12 s
    "event_readers": "--rounds 3 --seconds 4",  # 70: 8 cells of 8 s
}
NAMES: Final = tuple(SHORT)
LONG_FORM: Final = "long: each ratio is the median of at least three rounds"
SHORT_FORM: Final = (
    "short: a round of each, and parts of the longest; its rates and latencies say little"
)


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
        return f"## `{shlex.join(self.command)}`\n\n{took}\n{end}\n```text\n{text}\n```\n"


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


def page(facts: Mapping[str, str], outputs: Sequence[Output], *, place: Path = DRAFT) -> str:
    """The page for that place: its facts, and a section for each benchmark."""
    minutes = sum(each.seconds for each in outputs) / 60
    about = {**facts, "duration": f"{minutes:.0f} minutes"}
    lines = "\n".join(f"- {name}: {value}" for name, value in about.items())
    sections = "\n".join(each.section for each in outputs)
    link = f"[Benchmarks]({os.path.relpath(README, place.parent)})"
    return (
        "# The benchmarks' figures\n\n"
        "`make bench` has written this page: the output of each benchmark, of one commit and one"
        f" run.\n{link} says how each one measures, and which goals are missed.\n\n"
        f"{lines}\n\n{sections}"
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="All benchmarks, and the page of their tables.")
    parser.add_argument("--short", action="store_true", help="one round of each, not of all parts")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="benchmarks to run")
    parser.add_argument("--to", type=Path, help="the file of the page, once none has failed")
    arguments = parser.parse_args()
    is_whole = not arguments.short and set(arguments.only) == set(NAMES)
    place = arguments.to or (PUBLISHED if is_whole else DRAFT)
    options = SHORT if arguments.short else LONG
    form = SHORT_FORM if arguments.short else LONG_FORM
    facts = {"commit": commit(), **facts_of_processor(), "form": form}
    outputs: list[Output] = []
    DRAFT.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        outputs.append(run(["-m", f"benchmarks.{name}", *shlex.split(options[name])]))
        print(outputs[-1].text, flush=True)
        # After each, so that a run that is interrupted leaves what it has measured.
        DRAFT.write_text(page(facts, outputs))
    failed = [shlex.join(each.command) for each in outputs if each.code]
    if not failed:
        place.write_text(page(facts, outputs, place=place))
    print(f"{DRAFT}; failed: {', '.join(failed)}" if failed else place)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
