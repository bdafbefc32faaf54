from collections.abc import AsyncIterator

import pytest
import trio

from tests.pairing.harness import Events, Harness


@pytest.fixture
def ordered() -> bool:
    """True in modules whose harness has backlog queues for ordered entities."""
    return False


@pytest.fixture
async def harness(ordered: bool) -> AsyncIterator[Harness]:
    async with trio.open_nursery() as nursery:
        harness = Harness(nursery=nursery)
        await harness.open(ordered=ordered)
        yield harness
        nursery.cancel_scope.cancel()


@pytest.fixture
def events() -> Events:
    return Events()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trio mode gives each test a mark with a `run`, which would win over its module's."""
    mark = item.get_closest_marker("trio")
    if mark is not None:
        item.add_marker(pytest.mark.trio(**mark.kwargs))
