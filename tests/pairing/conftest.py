from collections.abc import AsyncIterator

import pytest
import trio

from tests.pairing.lab import Events, Lab


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with trio.open_nursery() as nursery:
        lab = Lab(nursery=nursery)
        await lab.open()
        yield lab
        nursery.cancel_scope.cancel()


@pytest.fixture
def events() -> Events:
    return Events()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trio mode gives each test a mark with a `run`, which would win over its module's."""
    mark = item.get_closest_marker("trio")
    if mark is not None:
        item.add_marker(pytest.mark.trio(**mark.kwargs))
