"""
Tries mutants: the tests that run the changed lines, in a fork of a process that has them collected.

A mutant in the body of a function is put into the function that is there. Any other one, in a
table, a default or a class, is there before the gateway is imported: that takes a second longer.
"""

import gc
import importlib.machinery
import os
import pickle
import re
import resource
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from types import CodeType, FunctionType
from typing import Any, Final

import attrs
import coverage
import pytest

from benchmarks.mutants.changes import Mutant

PATIENCE: Final = 90.0  # seconds, for what waits instead of working
LONGEST_WORK: Final = 3.0  # processor seconds of a test, beside ten times what it takes alone
MEMORY: Final = 4 << 30
LONGEST_TEST: Final = 5.0  # seconds
NEAR_SECONDS: Final = 25.0  # of tests for one mutant, by the time that each takes alone
FAR_SECONDS: Final = 8.0
OTHER_KINDS: Final = re.compile(
    r"^tests/brokers/.*\[.*(amqp|embedded|rabbitmq|servicebus|storage-queue)"
)
FLAGS: Final = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist")


@attrs.frozen(kw_only=True)
class Trace:
    """Which tests run which lines, how long each takes, and those that fail without a mutant."""

    state: str  # of the sources that were traced
    lines: Mapping[str, Mapping[int, frozenset[str]]]  # by file
    seconds: Mapping[str, float]
    failed: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "Trace":
        trace: Trace = pickle.loads(path.read_bytes())
        return trace

    def chosen(self, mutant: Mutant, file: str, near: Sequence[str]) -> list[str]:
        """The quick ones first, those of the module's own folder before others."""
        lines = self.lines.get(file, {})
        if mutant.body:
            found = {name for line in mutant.lines for name in lines.get(line, ())}
        else:
            found = {name for names in lines.values() for name in names}
            found |= {name for name in self.seconds if name.startswith(tuple(near))}
        own = [name for name in found if name.startswith(tuple(near))]
        far = found.difference(own)
        return [*self._within(own, NEAR_SECONDS), *self._within(far, FAR_SECONDS)]

    def _within(self, names: Any, limit: float) -> Iterator[str]:
        total = 0.0
        for name in sorted(names, key=lambda each: (self.seconds[each], each)):
            total += self.seconds[name]
            if total > limit or self.seconds[name] > LONGEST_TEST:
                return
            yield name


def forked(work: Callable[[], int], seconds: float) -> str:
    """What became of a child that does this: its exit code, or why it was ended."""
    child = os.fork()
    if child == 0:
        _in_child(work)
    handle = os.pidfd_open(child)
    try:
        in_time = select.select([handle], [], [], PATIENCE + 4 * seconds)[0]
        if not in_time:
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(handle)
    if os.WIFEXITED(status):
        return str(os.WEXITSTATUS(status))
    return "endless" if not in_time or os.WTERMSIG(status) == signal.SIGPROF else "died"


def _in_child(work: Callable[[], int]) -> None:
    code = 3
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        code = work()
    finally:
        os._exit(code)


def _limit(seconds: float) -> None:
    """End this process, unless the test that begins now ends in time."""
    signal.setitimer(signal.ITIMER_PROF, LONGEST_WORK + 10 * seconds)


@attrs.define(eq=False)
class Warm:
    """Pytest's plugin that traces the collected tests once, then tries mutants of functions."""

    files: Sequence[str]
    trace_file: Path
    state: str  # of the sources: a trace of others isn't used
    proceed: Callable[["Warm", Trace], None]
    _items: dict[str, pytest.Item] = attrs.field(factory=dict)
    _functions: Mapping[tuple[str, str, int], FunctionType] = attrs.field(factory=dict)
    _failed: set[str] = attrs.field(factory=set)
    _stop: bool = False

    def pytest_sessionstart(self) -> None:
        _repeat_examples()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            if self._stop:
                os._exit(1)
            self._failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of what each kind of namespace must do, only the one in memory."""
        items[:] = [item for item in items if not OTHER_KINDS.search(item.nodeid)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        trace = Trace.read(self.trace_file) if self.trace_file.exists() else None
        if trace is None or trace.state != self.state:
            ended = forked(self._trace, 600.0)
            if ended != "0":
                raise pytest.UsageError(f"the tests can't be traced: {ended}")
            trace = Trace.read(self.trace_file)
        self._functions = _functions(self.files)
        gc.collect()
        gc.freeze()
        self.proceed(self, trace)
        return True

    def attempt(self, mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str | None:
        """What became of it; None: it can't be put into the function."""
        key = (file, mutant.function, mutant.begins)
        function = self._functions.get(key)
        wrong = next((code for code in _codes(mutant.code) if _key(code) == key), None)
        if function is None or wrong is None:
            return None
        if function.__code__.co_freevars != wrong.co_freevars:
            return None

        def work() -> int:
            function.__code__ = wrong
            self._stop = True
            items = [self._items[name] for name in names]
            for item, following in zip(items, [*items[1:], None], strict=True):
                _limit(trace.seconds[item.nodeid])
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            return 0

        return forked(work, sum(trace.seconds[name] for name in names))

    def _trace(self) -> int:
        watched = coverage.Coverage(data_file=None, include=list(self.files), config_file=False)
        seconds: dict[str, float] = {}
        watched.start()
        items = list(self._items.values())
        for item, following in zip(items, [*items[1:], None], strict=True):
            watched.switch_context(item.nodeid)
            began = process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = process_time() - began
        watched.stop()
        data = watched.get_data()
        lines = {
            file: {
                line: frozenset(names).difference(self._failed, {""})
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in self.files
        }
        passed = {name: spent for name, spent in seconds.items() if name not in self._failed}
        failed = frozenset(self._failed)
        trace = Trace(state=self.state, lines=lines, seconds=passed, failed=failed)
        self.trace_file.write_bytes(pickle.dumps(trace))
        return 0


@attrs.define(eq=False)
class Ordered:
    """Pytest's plugin that runs these tests in this order, and ends with the first that fails."""

    names: Sequence[str]
    seconds: Mapping[str, float]

    def pytest_sessionstart(self) -> None:
        _repeat_examples()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self.names if name in found]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _limit(self.seconds[nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(1)


def attempt_cold(mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str:
    """The same for a change that an import makes; first by the file that is most about it."""
    about = {name for tests in trace.lines.get(file, {}).values() for name in tests}
    files = Counter(name.partition("::")[0] for name in names if name in about)
    first = {each for each, _ in files.most_common(1)}
    parts = (
        [name for name in names if name.partition("::")[0] in first],
        [name for name in names if name.partition("::")[0] not in first],
    )
    ends = (_attempt_cold(mutant, file, part, trace) for part in parts if part)
    return next((ended for ended in ends if ended != "0"), "0")


def _attempt_cold(mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str:

    def work() -> int:
        right = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: Any, name: str) -> CodeType | None:
            return mutant.code if loader.path == file else right(loader, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        paths = sorted({name.partition("::")[0] for name in names})
        return int(pytest.main([*FLAGS, *paths], plugins=[Ordered(names, trace.seconds)]))

    assert not any(name.startswith("gateway") for name in sys.modules)
    return forked(work, sum(trace.seconds[name] for name in names) + 10)


def _repeat_examples() -> None:
    """Hypothesis draws the same examples for each mutant, and remembers none."""
    from hypothesis import settings  # not before pytest has rewritten its plugin

    settings.register_profile(
        "mutants", settings.get_profile("any-machine"), derandomize=True, database=None
    )
    settings.load_profile("mutants")


def _functions(files: Sequence[str]) -> Mapping[tuple[str, str, int], FunctionType]:
    """By file, name and first line; attrs and decorators hide some of them from their module."""
    functions = (each for each in gc.get_objects() if type(each) is FunctionType)
    wanted = (each for each in functions if each.__code__.co_filename in files)
    return {_key(each.__code__): each for each in wanted}


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
