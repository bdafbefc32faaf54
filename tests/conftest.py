"""Settings and fixtures of all tests."""

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.folders import in_memory

# A process that a shell starts in the background ignores SIGINT, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the load of the machine, and says nothing about the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


# Fixtures of servers that serve all tests of a process. Each further process starts its own.
SERVERS = {"azurites", "elsewhere", "narrow_node", "own_node", "rabbits", "shared_nodes"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection: all collected items live until the end of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # the deselected ones are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Order the tests so that each worker of pytest-xdist begins with groups of its own, and then runs
    an equal share of all others.
    """
    workers: int = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_group_of(item), []).append(item)
    others = groups.pop("", [])
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, group in enumerate(groups.values()):
        first[number % workers] += group
    ordered: list[pytest.Item] = []
    for number, begin in enumerate(first):
        share = (len(items) - len(ordered)) // (workers - number)  # as xdist works it out
        more = max(0, share - len(begin))
        ordered += begin + others[:more]
        del others[:more]
    items[:] = ordered + others


def _group_of(item: pytest.Item) -> str:
    """The tests of a group run in one process, as far as possible; "": in any."""
    if item.get_closest_marker("long"):
        return str(item.path)  # at the end of a run all workers would wait for them
    names = set(getattr(item, "fixturenames", ()))
    of_contract = names & {"kind", "kinds_at_once"}
    if item.get_closest_marker("shared") or (names & SERVERS and not of_contract):
        return "shared"
    return "sites" if "site_nodes" in names else ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder, in memory if possible: a crash here copies files, and syncs don't matter."""
    with in_memory(tmp_path) as folder:
        yield folder
