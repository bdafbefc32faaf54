"""Settings and fixtures of all tests."""

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A process that a shell starts in the background ignores SIGINT, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the load of the machine, and says nothing about the code.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection: all collected items live until the end of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: at the end of a run all workers would wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
