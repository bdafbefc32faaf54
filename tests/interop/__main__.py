"""
Runs other people's clients and their tests against gateways of this checkout, and compares each
outcome with `expected.toml`: a failure that isn't in it ends the run with 1, and so does a test
that is in it and passes. The tests in its part `either` don't count. The results of each suite are
written to `build/interop/results/SUITE.json`, and their counts to `results.json` beside this file.

    python -m tests.interop [FAMILY or SUITE]... [-n 4] [-k NAME]
"""

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Final

import attrs

from tests.interop.families import FAMILIES
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE

RESULTS: Final = BUILD / "results"
TOLD: Final = HERE / "results.json"
SUITES: Final = {suite.name: (family, suite) for family in FAMILIES for suite in family.suites}
NAMES: Final = {family.name: [each.name for each in family.suites] for family in FAMILIES}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    known = ", ".join(f"{family} ({' '.join(suites)})" for family, suites in NAMES.items())
    parser.add_argument(
        "asked", nargs="*", metavar="FAMILY or SUITE", help=f"default: all of {known}"
    )
    parser.add_argument("-n", type=int, default=8, help="processes; most tests sleep")
    parser.add_argument("-k", default="", help="run only tests whose names contain this")
    options = parser.parse_args()
    if unknown := set(options.asked) - set(NAMES) - set(SUITES):
        parser.error(f"unknown: {' '.join(sorted(unknown))}; known: {known}")
    wishes = Wishes(workers=options.n, words=options.k)
    chosen = [suite for each in options.asked or NAMES for suite in NAMES.get(each, [each])]
    judged = [_judged(*SUITES[name], wishes, asked=bool(options.asked)) for name in chosen]
    return 0 if all(judged) else 1


def _judged(family: Family, suite: Suite, wishes: Wishes, *, asked: bool) -> bool:
    """Run the suite, record its results and compare them. Only one that was asked for must run."""
    if missing := family.missing():
        print(f"{suite.name}: not run; it needs {missing}")
        return not asked
    found = suite.run(wishes)
    if not wishes.words:
        _record(family, suite, found)
        _tell(family, suite, found)
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    counted = {name: found[name] for name in found if name not in expected["either"]}
    return _judge(suite.name, counted, expected.get(suite.name, {}), partly=bool(wishes.words))


def _record(family: Family, suite: Suite, found: Mapping[str, Result]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    record = {
        "suite": suite.name,
        "family": family.name,
        "language": family.language,
        "client": suite.client,
        "version": suite.version,
        "tests": {name: attrs.asdict(result) for name, result in sorted(found.items())},
    }
    (RESULTS / f"{suite.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _tell(family: Family, suite: Suite, found: Mapping[str, Result]) -> None:
    """Write the suite's row of the table in docs/reference/compatibility.md (`make references`)."""
    rows = json.loads(TOLD.read_text()) if TOLD.exists() else {}
    counts = Counter(result.outcome for result in found.values())
    rows[suite.name] = {
        "client": suite.client,
        "language": family.language,
        "version": suite.version,
        "what": suite.what,
        "date": date.today().isoformat(),
        **{outcome: counts[outcome] for outcome in (PASSED, FAILED, SKIPPED)},
    }
    TOLD.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


def _judge(
    suite: str, found: Mapping[str, Result], expected: Mapping[str, str], *, partly: bool
) -> bool:
    """Print how the outcomes differ from the expected ones; True if they don't."""
    counts = Counter(result.outcome for result in found.values())
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{suite}: {numbers or 'no test'}; {len(expected)} failures expected")
    failed = {name for name, result in found.items() if result.outcome == FAILED}
    passed = {name for name, result in found.items() if result.outcome == PASSED}
    for name in sorted(failed - set(expected)):
        print(f"  failed: {name}  {found[name].reason}")
    for name in sorted(passed & set(expected)):
        print(f"  passes, though expected to fail ({expected[name]}): {name}")
    unknown = set() if partly else set(expected) - set(found)
    for name in sorted(unknown):
        print(f"  isn't a test any more: {name}")
    return bool(found) and failed <= set(expected) and not passed & set(expected) and not unknown


if __name__ == "__main__":
    sys.exit(main())
