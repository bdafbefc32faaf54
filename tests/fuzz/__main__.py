"""
Runs fuzzers, each for a number of seconds: all of them, or the named ones.

Usage: python -m tests.fuzz [--seed N] [--keep] [TARGET...] SECONDS

With --keep, inputs that run new lines of the gateway are added to the corpus.
"""

import argparse
import random
import sys
import time

from tests.fuzz.by_input import ByInput
from tests.fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    for name in given.targets or TARGETS:
        target, end = TARGETS[name], time.monotonic() + given.seconds
        sys.stdout.write(f"{name}, seed {given.seed}: ")
        sys.stdout.flush()
        if isinstance(target, ByInput):
            done = target.fuzz(given.seed, lambda _: time.monotonic() < end, keeps=given.keep)  # noqa: B023
        else:
            done = target(given.seed, lambda _: time.monotonic() < end)  # noqa: B023
        sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main()
