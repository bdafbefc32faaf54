"""
Real-process chaos: `python -m benchmarks.chaos.run [SCENARIO ...] [--quick] [--out DIR]`.

Each run leaves a folder with the histories of all participants, judged by the checker, and
`run.json`; `index.html` beside the folders shows all runs. Exit codes: 0 every run holds and meets
its targets, 1 a target is missed, 2 an invariant is broken or can't be decided.
"""

import argparse
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio
from rich.console import Console

from benchmarks.chaos import checker
from benchmarks.chaos.recording import record
from benchmarks.chaos.report import write_page
from benchmarks.chaos.results import BASELINE_HISTORY, Result, load, result_of, save
from benchmarks.chaos.scenario import Scenario, ScenarioFailed, Topology, find
from benchmarks.machine import facts

OUT: Final = Path("build/chaos")
MET: Final = 0
MISSED: Final = 1
BROKEN: Final = 2

Plan = tuple[Scenario, Topology, str]


def plans(scenarios: Sequence[Scenario], topology: str | None, interval: str | None) -> list[Plan]:
    """Each scenario with each of its topologies and intervals, or with the chosen ones."""
    return [
        (scenario, where, after)
        for scenario in scenarios
        for where in scenario.topologies
        for after in scenario.intervals
        if topology in {None, where.value} and interval in {None, after}
    ]


def perform(plan: Plan, out: Path) -> Result:
    """
    Run one scenario, and write its folder; replaces the folder of an earlier run of that name.
    """
    scenario, topology, interval = plan
    with tempfile.TemporaryDirectory(prefix="pairgate-chaos-") as machines:
        about = facts(Path(machines))
        recording = trio.run(record, scenario, topology, interval, Path(machines) / "machines")
    folder = out / recording.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, records in recording.histories.items():
        checker.write(folder, name, records)
    (folder / BASELINE_HISTORY).parent.mkdir()
    checker.write(folder, BASELINE_HISTORY, recording.of_baseline)
    result = result_of(recording, checker.check(folder), about)
    save(result, folder)
    return result


def exit_code(results: Sequence[Result]) -> int:
    if not all(result.passed for result in results):
        return BROKEN
    met = all(target.met for result in results for target in result.targets)
    return MET if met else MISSED


def _say(result: Result, console: Console) -> None:
    colour = "green" if result.passed else "red"
    console.print(
        f"[{colour}]{result.verdict}[/] {result.name}:"
        f" {result.gateway.acknowledged} of {result.gateway.sent} acknowledged,"
        f" stall {result.gateway.stall:.2f} s, lost {result.messages.get('lost', '?')},"
        f" twice {result.messages.get('duplicated', '?')};"
        f" without the gateway {result.baseline.acknowledged} of {result.baseline.sent}",
        highlight=False,
    )
    for text in (*result.undecided, *result.problems)[:5]:
        console.print(f"  {text}", highlight=False, markup=False)
    for target in result.targets:
        if not target.met:
            console.print(f"  {target.name} {target.found}, wanted: {target.wanted}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Real processes, harmed under load, and judged.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="its name, or its file")
    parser.add_argument("--quick", action="store_true", help="half the time, one topology of each")
    parser.add_argument("--out", type=Path, default=OUT, help=f"a folder ({OUT})")
    parser.add_argument("--topology", choices=[one.value for one in Topology])
    parser.add_argument("--interval", help="the failover interval, as a scenario names it: 0s")
    chosen = parser.parse_args(arguments)
    try:
        scenarios = find(chosen.scenarios)
    except ScenarioFailed as error:
        parser.error(str(error))
    if chosen.quick:
        scenarios = [scenario.quick() for scenario in scenarios]
    chosen.out.mkdir(parents=True, exist_ok=True)
    _allow_many_files()
    console = Console(soft_wrap=True)
    results = []
    for plan in plans(scenarios, chosen.topology, chosen.interval):
        results.append(perform(plan, chosen.out))
        _say(results[-1], console)
        page = write_page(load(chosen.out), chosen.out)
    if not results:
        parser.error("no scenario has that topology and that interval")
    console.print(str(page))
    return exit_code(results)


def _allow_many_files() -> None:
    """
    Allow this process and the machines the most open files: sends wait while the primary is frozen.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
