"""
Mutation testing: `python -m benchmarks.mutants [MODULE ...]`, MODULE as `domain/failover`.

Exit code 1: more than a tenth of the mutants survive, or one survives that `tests/mutants.toml`
doesn't explain, or explains and doesn't survive.
"""

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import pytest

from benchmarks.mutants.changes import Mutant, mutants
from benchmarks.mutants.explained import SHARE, Result, explanations, share, table, unexplained
from benchmarks.mutants.result_log import NEEDS_IMPORT, UNTESTED, Entry, ResultLog
from benchmarks.mutants.trial import FLAGS, Cold, Trace, Warm

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("domain", "store/engine", "listening/scaling", "checker", "pairing")
# Tried when a module of theirs is named.
EXTENSIONS: Final = tuple(
    f"extensions/{folder.name}"
    for folder in sorted((ROOT / "gateway" / "extensions").iterdir())
    if (ROOT / "tests" / "extensions" / folder.name).is_dir() and (folder / "README.md").exists()
)
NO_GATEWAY: Final = "tests/conftest.py"  # imports nothing of it
NEAR: Final[Mapping[str, Sequence[str]]] = {
    "domain": ("tests/domain/",),
    "store/engine": ("tests/store/engine/",),
    "listening/scaling": ("tests/listening/scaling/",),
    "checker": ("tests/checker/", "tests/chaos/test_invariants.py"),
    "pairing": ("tests/pairing/",),
    **{each: (f"tests/{each}/",) for each in EXTENSIONS},
}
# Tests of the domain and of the engine outside their own folders.
RULES: Final = (
    "tests/brokers/test_contract.py",
    "tests/brokers/test_contract_amending.py",
    "tests/brokers/test_contract_forwarding.py",
    "tests/brokers/test_contract_scheduling.py",
    "tests/brokers/test_contract_sessions.py",
    "tests/brokers/test_contract_topics.py",
    "tests/brokers/test_rows.py",
    "tests/brokers/test_visibility.py",
    "tests/chaos/test_checker.py",
    "tests/config/",
    "tests/listening/test_locks.py",
    "tests/pairing/",
    "tests/checker/test_records.py",
)
FAR: Final[Mapping[str, Sequence[str]]] = {
    "domain": RULES,
    "store/engine": RULES,
    "listening/scaling": ("tests/listening/",),
    "checker": ("tests/chaos/test_checker.py",),
    "pairing": (
        "tests/brokers/test_pair_contract.py",
        "tests/extensions/claims/test_pair.py",
        "tests/extensions/cluster/test_advice.py",
        "tests/extensions/workers/test_sharing.py",
        "tests/config/",
    ),
    **dict.fromkeys(EXTENSIONS, ()),
}
# The modules that are loaded before the first fork; modules that pytest rewrites aren't among them.
LIBRARIES: Final = (
    "apsw",
    "attrs",
    "cattrs",
    "coverage",
    "cryptography",
    "h11",
    "structlog",
    "trio.testing",
)


def main() -> int:
    arguments = _parser().parse_args()
    os.chdir(ROOT)
    build = Path(arguments.out)
    build.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        importlib.import_module(library)
    log = ResultLog(build / "results.jsonl")
    log.read()
    results: list[Result] = []
    for package in (*PACKAGES, *EXTENSIONS):
        modules = sorted(_modules(package, arguments.modules))
        if not arguments.again:
            log.forget(modules)
        every = list(_tasks(modules))
        left = [task for task in every if not log.killed(task.entry)]
        if left:
            tests = arguments.tests or [*NEAR[package], *FAR[package]]
            _Round(
                package=package, tests=tests, seconds=arguments.seconds, tasks=left, log=log
            ).run()
        for task in every:
            ended = log.ended(task.entry) or UNTESTED
            results.append(Result(module=task.entry[0], mutant=task.mutant, ended=ended))
    problems = list(unexplained(results, explanations(ROOT / "tests/mutants.toml")))
    print(*problems, *table(results), sep="\n")
    return 1 if problems or share(results) < SHARE else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=PACKAGES)
    parser.add_argument("--tests", action="append", help="tests to run instead of the usual ones")
    parser.add_argument("--seconds", type=float, default=32.0, help="seconds for a mutant's tests")
    parser.add_argument("--again", action="store_true", help="only mutants that survived")
    parser.add_argument("--out", default="build/mutants", help="the folder for the results")
    return parser


def _modules(package: str, wanted: Sequence[str]) -> Iterator[str]:
    for path in (ROOT / "gateway" / package).rglob("*.py"):
        name = str(path.relative_to(ROOT / "gateway").with_suffix(""))
        if path.stem != "__init__" and (name in wanted or package in wanted):
            yield name


def _state(tests: Sequence[str]) -> str:
    """A value that changes with each change of a source or of a file in the tests' folders."""
    state = hashlib.sha256(repr(tests).encode())
    near = (Path(each) for each in tests)
    folders = {Path("gateway"), *(each.parent if each.suffix else each for each in near)}
    for path in sorted({path for each in folders for path in (ROOT / each).rglob("*.py")}):
        state.update(f"{path} {path.stat().st_mtime_ns}".encode())
    return state.hexdigest()


@attrs.frozen
class _Task:
    """A mutant to try. `file` is the file that it changes."""

    entry: Entry
    file: str
    mutant: Mutant


def _tasks(modules: Sequence[str]) -> Iterator[_Task]:
    for module in modules:
        file = _file(module)
        source = Path(file).read_bytes()
        digest = hashlib.sha256(source).hexdigest()[:12]
        for number, mutant in enumerate(mutants(source.decode(), file)):
            yield _Task((module, digest, number), file, mutant)


@attrs.frozen(kw_only=True)
class _Round:
    """Mutants of one package to try, on which tests, of how many seconds for each."""

    package: str
    tests: Sequence[str]
    seconds: float
    tasks: Sequence[_Task]
    log: ResultLog

    def run(self) -> None:
        """First the mutants that need no import, then the others."""
        trace_file = self.log.path.with_name(f"{self.package.replace('/', '-')}.trace")
        files = [_file(module) for module in _modules(self.package, [self.package])]
        state = _state(self.tests)
        _run_pytest(
            Warm(files=files, trace_file=trace_file, state=state, proceed=self._try_warm),
            self.tests,
        )
        trace = Trace.read(trace_file)
        for name in sorted(trace.failed):
            print(f"left out, since it fails without a mutant: {name}")
        self.log.read()
        _run_pytest(Cold(proceed=lambda cold: self._try_cold(cold, trace)), [NO_GATEWAY])
        self.log.read()

    def _try_warm(self, warm: Warm, trace: Trace) -> None:
        for task in self.tasks:
            if task.mutant.body:
                names = self._chosen(task, trace)
                ended = warm.attempt(task.mutant, task.file, names, trace) if names else UNTESTED
                self.log.note(task.entry, ended or NEEDS_IMPORT)

    def _try_cold(self, cold: Cold, trace: Trace) -> None:
        for task in self.tasks:
            if not task.mutant.body or self.log.ended(task.entry) == NEEDS_IMPORT:
                names = self._chosen(task, trace)
                ended = cold.attempt(task.mutant, task.file, names, trace) if names else UNTESTED
                self.log.note(task.entry, ended)

    def _chosen(self, task: _Task, trace: Trace) -> Sequence[str]:
        return trace.chosen(task.mutant, task.file, NEAR[self.package], self.seconds)


def _run_pytest(plugin: Warm | Cold, tests: Sequence[str]) -> None:
    """Run the tests in a child: this process must not import the gateway."""
    child = os.fork()
    if child == 0:
        marks = ["-m", "not live and not powercut"]
        code = pytest.main([*FLAGS, *marks, *tests], plugins=[plugin])
        os._exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)
    if os.waitpid(child, 0)[1]:
        sys.exit("the tests can't be run")


def _file(module: str) -> str:
    return str(ROOT / "gateway" / f"{module}.py")


if __name__ == "__main__":
    sys.exit(main())
