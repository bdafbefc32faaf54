"""Ways to run a client's own tests in a folder, each with the result of each test."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.interop.family import FAILED, PASSED, SKIPPED, Outcome, Result, Wishes
from tests.interop.gateways import HERE, ROOT

LIMIT: Final = 1800.0  # seconds of one run of a suite
GO: Final = shutil.which("go") or "/usr/local/go/bin/go"
MODULES: Final = ROOT / ".node-rabbitmq" / "node_modules"
_GO: Final[Mapping[str, Outcome]] = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
_JEST: Final[Mapping[str, Outcome]] = {"passed": PASSED, "failed": FAILED, "pending": SKIPPED}


def run_pytest(
    *chosen: str,
    folder: Path,
    wishes: Wishes,
    python: Path | str = sys.executable,
    packages: Sequence[Path] = (),
    words: str = "",
) -> dict[str, Result]:
    report, settings = folder / "report.xml", folder / "only.ini"
    settings.write_text("[pytest]\npython_classes = Test* test_*\n")  # not the client's own options
    options = ["-c", str(settings), f"--rootdir={folder}", "-p", "no:cacheprovider", "-q"]
    options += ["-W", "ignore", "--timeout=60", f"--junitxml={report}", "--tb=line"]
    both = " and ".join(f"({each})" for each in (words, wishes.words) if each)
    options += ["-k", both] if both else []
    places = {
        "PYTHONPATH": os.pathsep.join([str(folder), *map(str, packages)]),
        # Some tests of Celery start its program.
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),
    }
    subprocess.run(
        [python, "-m", "pytest", *options, *chosen],
        cwd=folder,
        env={**os.environ, **places},
        timeout=LIMIT,
        check=False,
    )
    return dict(_cases(report))


def run_node(*files: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    report, chosen = folder / "report.xml", [f"test/{each}.test.js" for each in files]
    words = ["--test-name-pattern", wishes.words] if wishes.words else []
    reporter = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    # The suite's own limit is a second, which a machine with more to do exceeds.
    options = ["--test", "--test-concurrency=1", "--test-timeout=120000", *reporter, *words]
    subprocess.run(["node", *options, *chosen], cwd=folder, timeout=LIMIT, check=False)
    return dict(_cases(report))


def run_zunit(folder: Path, wishes: Wishes) -> dict[str, Result]:
    """All tests are run: the runner can choose none by a name."""
    report = folder / "report.xml"
    (folder / "node_modules").symlink_to(MODULES)
    subprocess.run(
        ["node", HERE / "rabbitmq" / "zunit.js", report],
        cwd=folder,
        env={**os.environ, "NODE_PATH": str(MODULES), "CI": "true"},
        timeout=LIMIT,
        check=False,
    )
    return dict(_cases(report))


def run_jest(*files: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    """
    Types aren't checked: the client's are of another version of its types' package. A URL without a
    port gets one.
    """
    for test in folder.glob("test/*.ts"):
        port = os.environ["INTEROP_PORT"]
        test.write_text(re.sub(r"('amqp://[\w:@]*localhost)'", rf"\1:{port}'", test.read_text()))
    report, settings = folder / "report.json", folder / "only.config.js"
    settings.write_text(
        "module.exports = {...require('./jest.config.js'),"
        " transform: {'^.+\\\\.tsx?$': ['ts-jest', {diagnostics: false}]}};\n"
    )
    (folder / "node_modules").symlink_to(MODULES)
    options = ["--config", settings, "--json", f"--outputFile={report}", "--forceExit"]
    options += ["--testNamePattern", wishes.words] if wishes.words else []
    command = ["node", MODULES / "jest" / "bin" / "jest.js", *options, *files]
    subprocess.run(command, cwd=folder, timeout=LIMIT, check=False)
    return {
        case["fullName"]: Result(_JEST[case["status"]], "".join(case["failureMessages"]))
        for file in json.loads(report.read_text())["testResults"]
        for case in file["assertionResults"]
    }


def run_go(*options: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    words = ["-run", wishes.words] if wishes.words else []
    done = subprocess.run(
        [GO, "test", "-json", "-count=1", f"-timeout={LIMIT:.0f}s", *options, *words, "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if not (found := dict(go_results(done.stdout))):  # it doesn't compile
        sys.exit(f"{done.stdout}{done.stderr}")
    return found


def go_results(printed: str) -> Iterator[tuple[str, Result]]:
    """The results in what `go test -json` printed, and what a test said that failed."""
    said: dict[str, str] = {}
    for line in printed.splitlines():
        event = json.loads(line)
        name, action = event.get("Test"), event["Action"]
        if name is not None and action == "output":
            said[name] = said.get(name, "") + event["Output"]
        elif name is not None and action in _GO:
            reason = "" if action == "pass" else " ".join(said.get(name, "").split())
            yield name, Result(_GO[action], reason)


def _cases(report: Path) -> Iterator[tuple[str, Result]]:
    """The results in a report of JUnit's form, by class and name."""
    seen: dict[str, int] = {}
    last = ("", "")
    for case in ElementTree.parse(report).iter("testcase"):
        place, called = case.get("classname") or "", case.get("name") or ""
        bad = case.find("failure") if case.find("error") is None else case.find("error")
        text = "" if bad is None else (bad.get("message") or bad.text or "").strip()
        is_again, last = last == (place, called), (place, called)
        if is_again and text.startswith("failed on teardown"):
            continue  # the test has failed before
        name = f"{place.rpartition('.')[2]}.{called}"
        seen[name] = seen.get(name, 0) + 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        if bad is not None:
            yield name, Result(FAILED, text.partition("\n")[0])
        elif case.find("skipped") is not None:
            yield name, Result(SKIPPED)
        else:
            yield name, Result(PASSED)
