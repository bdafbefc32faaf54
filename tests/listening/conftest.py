from collections.abc import AsyncIterator

import pytest
import trio

from tests.listening.harness import Harness


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with trio.open_nursery() as nursery:
        harness = Harness(nursery=nursery)
        await harness.create()
        yield harness
        nursery.cancel_scope.cancel()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trio mode gives each test a mark with a `run`, which would win over its module's."""
    mark = item.get_closest_marker("trio")
    if mark is not None:
        item.add_marker(pytest.mark.trio(**mark.kwargs))
