"""
Tries mutants: the tests that run the changed lines, in a fork of a process that has them collected.

A mutant in the body of a function is put into the function that is there. Any other one, in a
table, a default or a class, is there before the gateway is imported: that takes half a second more.
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

PATIENCE: Final = 60.0  # seconds, for tests that wait instead of working
LONGEST_WORK: Final = 1.5  # processor seconds of a test, beside ten times its time alone
MEMORY: Final = 4 << 30
LONGEST_TEST: Final = 5.0  # seconds
NEAR_SHARE: Final = 0.5  # of the time for the tests of one mutant, at most
OTHER_KINDS: Final = re.compile(
    r"^tests/brokers/.*\[.*(amqp|embedded|rabbitmq|servicebus|storage-queue|in real time)"
    r"|^tests/brokers/test_contract.*\[(.*pair of|memory,? with)"
)
FLAGS: Final = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist")


@attrs.frozen(kw_only=True)
class Trace:
    """
    The lines that each test runs, the time that each takes, and the tests that fail without a
    mutant.
    """

    state: str  # of the sources that were traced
    lines: Mapping[str, Mapping[int, frozenset[str]]]  # by file
    seconds: Mapping[str, float]
    failed: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "Trace":
        trace: Trace = pickle.loads(path.read_bytes())
        return trace

    def chosen(self, mutant: Mutant, file: str, near: Sequence[str], seconds: float) -> list[str]:
        """
        Choose the tests: quick tests first, tests of the module's own folder before others.
        `seconds` limits their total time alone, by the processor's clock.
        """
        lines = self.lines.get(file, {})
        changed = mutant.lines if mutant.body else lines
        found = {name for line in changed for name in lines.get(line, ())}
        if not mutant.body:
            found |= set(self._naming(file))
        own = [name for name in found if name.startswith(tuple(near))]
        far = found.difference(own)
        first = list(self._within(own, NEAR_SHARE * seconds))
        left = seconds - sum(self.seconds[name] for name in first)
        return [*first, *self._within(far, left)]

    def _naming(self, file: str) -> Iterator[str]:
        """
        The tests in files that name the module, or go through its package: they may use code that
        no function runs.
        """
        module = Path(file).relative_to(Path.cwd()).with_suffix("")
        signs = (".".join(module.parts), f"{module.parent.name}.__path__")
        files = {name.partition("::")[0] for name in self.seconds}
        texts = {each: Path(each).read_text() for each in files}
        about = {each for each, text in texts.items() if any(sign in text for sign in signs)}
        yield from (name for name in self.seconds if name.partition("::")[0] in about)

    def _within(self, names: Any, limit: float) -> Iterator[str]:
        total = 0.0
        for name in sorted(names, key=lambda each: (self.seconds[each], each)):
            total += self.seconds[name]
            if total > limit or self.seconds[name] > LONGEST_TEST:
                return
            yield name


def forked(work: Callable[[], int]) -> str:
    """Do the work in a child process; return its exit code, "endless" or "died"."""
    child = os.fork()
    if child == 0:
        _in_child(work)
    handle = os.pidfd_open(child)
    try:
        in_time = _ends(child, handle)
        if not in_time:
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(handle)
    if os.WIFEXITED(status):
        return str(os.WEXITSTATUS(status))
    return "endless" if not in_time or os.WTERMSIG(status) == signal.SIGPROF else "died"


def _ends(child: int, handle: int) -> bool:
    """True if the child ends; False if it only waits. `_limit` bounds its work."""
    spent = -1
    while not select.select([handle], [], [], PATIENCE)[0]:
        before, spent = spent, _ticks(child)
        if spent == before:
            return False
    return True


def _ticks(process: int) -> int:
    """The processor time that it has used; see `proc(5)`."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


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
        """Keep, of the contract of namespaces, only the tests of the namespace in memory."""
        items[:] = [item for item in items if not OTHER_KINDS.search(item.nodeid)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        trace = Trace.read(self.trace_file) if self.trace_file.exists() else None
        if trace is None or trace.state != self.state:
            ended = forked(self._trace)
            if ended != "0":
                raise pytest.UsageError(f"the tests can't be traced: {ended}")
            trace = Trace.read(self.trace_file)
        gc.unfreeze()  # the tests' own conftest freezes objects, and frozen objects aren't found
        self._functions = _functions(self.files)
        assert self._functions
        gc.collect()
        gc.freeze()
        self.proceed(self, trace)
        return True

    def attempt(self, mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str | None:
        """Try the mutant; return how its tests ended. None: it can't be put into the function."""
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
            return _run_items([self._items[name] for name in names], trace)

        return forked(work)

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
class Cold:
    """
    Pytest's plugin that forks before it collects, so that the values that an import makes can be
    wrong.
    """

    proceed: Callable[["Cold"], None]
    _session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        _repeat_examples()
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        assert not any(name.startswith("gateway") for name in sys.modules)
        gc.collect()
        gc.freeze()
        self.proceed(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(1)

    def attempt(self, mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str:
        """Try the mutant, first in the file that has most of these tests; return how they ended."""
        files = Counter(name.partition("::")[0] for name in names)
        first = {each for each, _ in files.most_common(1)}
        parts = (
            [name for name in names if name.partition("::")[0] in first],
            [name for name in names if name.partition("::")[0] not in first],
        )
        ends = (self._attempt(mutant, file, part, trace) for part in parts if part)
        return next((ended for ended in ends if ended != "0"), "0")

    def _attempt(self, mutant: Mutant, file: str, names: Sequence[str], trace: Trace) -> str:
        def work() -> int:
            right = importlib.machinery.SourceFileLoader.get_code

            def get_code(loader: Any, name: str) -> CodeType | None:
                return mutant.code if loader.path == file else right(loader, name)

            importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
            return self._run(names, trace)

        return forked(work)

    def _run(self, names: Sequence[str], trace: Trace) -> int:
        session = self._session
        assert session is not None
        session.perform_collect(sorted({name.partition("::")[0] for name in names}))
        if session.testsfailed:  # a module that can't be imported
            return 2
        items = {item.nodeid: item for item in session.items}
        return _run_items([items[name] for name in names if name in items], trace)


def _run_items(items: Sequence[pytest.Item], trace: Trace) -> int:
    """The first that fails ends this process."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        _limit(trace.seconds[item.nodeid])
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    return 0


def _repeat_examples() -> None:
    """Hypothesis draws the same examples for each mutant, and remembers none."""
    from hypothesis import settings  # not before pytest has rewritten its plugin

    settings.register_profile(
        "mutants", settings.get_profile("any-machine"), derandomize=True, database=None
    )
    settings.load_profile("mutants")


def _functions(files: Sequence[str]) -> Mapping[tuple[str, str, int], FunctionType]:
    """
    Return the functions by file, name and first line.

    Attrs and decorators hide some functions from their module.
    """
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
