"""
Runs the simulation.

    python -m tests.simulation --hours 10 --seed 1 --jobs 2
    python -m tests.simulation --replay 17
    python -m tests.simulation --planted

Exit code 0: nothing is broken, and all was seen that has to be; 1: something is.
"""

import argparse
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Final

from tests.simulation.bugs import BUGS, bug_named, first_problem
from tests.simulation.diagram import diagram, message_in
from tests.simulation.runs import Totals, run_hours
from tests.simulation.scenario import Scenario
from tests.simulation.seeds import draw
from tests.simulation.shrink import shrink
from tests.simulation.world import run_scenario

SEEDS: Final = 50  # in which each planted bug must be found
MOST_PROBLEMS: Final = 10  # after which a run ends
_EVERY: Final = 1000  # runs between two lines about how far it is


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Simulate installations with faults."
    )
    parser.add_argument("--hours", type=_positive, default=1.0, help="simulated hours")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="processes")
    parser.add_argument(
        "--load", type=_at_least_one, default=1, help="multiplies the sends of a run"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="repeat a run, and say what broke it"
    )
    parser.add_argument("--message", metavar="ID", help="with --replay: the way of that message")
    parser.add_argument(
        "--bug", choices=[bug.name for bug in BUGS], help="with --replay: plant that bug"
    )
    parser.add_argument(
        "--planted", action="store_true", help="find the planted bugs, and print a table"
    )
    chosen = parser.parse_args(arguments)
    if chosen.planted:
        return _find_planted()
    if chosen.replay is not None and chosen.bug is not None:
        again = ["--replay", str(chosen.replay), "--load", str(chosen.load)]
        about = [] if chosen.message is None else ["--message", chosen.message]
        return bug_named(chosen.bug).run("-m", "tests.simulation", *again, *about)
    if chosen.replay is not None:
        return _replay(draw(chosen.replay, chosen.load), chosen.message)
    all_totals = run_hours(chosen.hours, chosen.seed, chosen.jobs, chosen.load)
    return _run(all_totals, chosen.load, as_json=chosen.json)


def _run(run: Generator[Totals, None, None], load: int, *, as_json: bool) -> int:
    totals, heavier = Totals(), "" if load == 1 else f" --load {load}"
    with closing(run) as all_totals:
        for totals in all_totals:
            if totals.runs % _EVERY == 0:
                print(totals.describe(), file=sys.stderr, flush=True)
            if len(totals.problems) >= MOST_PROBLEMS:
                break
    for problem in totals.problems.values():
        print(problem, file=sys.stderr)
    for seed in totals.problems:
        again = f"python -m tests.simulation --replay {seed}{heavier}"
        print(f"reproduce: {again}", file=sys.stderr)
    for name, (found, least) in totals.unseen.items():
        print(f"seen too seldom: {name}, {found} instead of {least:g} times", file=sys.stderr)
    print(json.dumps(totals.as_dict(), indent=2) if as_json else totals.describe())
    return 0 if totals.passed else 1


def _replay(scenario: Scenario, message_id: str | None) -> int:
    outcomes = run_scenario(scenario)
    print(outcomes.describe(), f"history {outcomes.digest}", sep="\n")
    if not outcomes.passed:
        smallest = shrink(scenario)
        print("\nthe fewest faults that still break something:")
        print(*(f"  {each}" for each in smallest.faults), sep="\n")
        outcomes = run_scenario(smallest)
        print(outcomes.describe())
    about = message_id or message_in(" ".join(outcomes.problems))
    if about is not None:
        print("", diagram(outcomes.records, about), sep="\n")
    return 0 if outcomes.passed else 1


def _find_planted() -> int:
    missed = 0
    for bug in BUGS:
        found = bug.call(first_problem, range(SEEDS))
        seed, why = ("", "not found") if found is None else found
        missed += found is None
        print(f"| {bug.name} | {seed} | {why} |", flush=True)
    return 1 if missed else 0


def _positive(text: str) -> float:
    hours = float(text)
    if not 0.0 < hours < float("inf"):
        raise argparse.ArgumentTypeError(f"more than 0 hours expected, not {text}")
    return hours


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 expected, not {text}")
    return number


if __name__ == "__main__":
    sys.exit(main())
