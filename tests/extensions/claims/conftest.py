from collections.abc import AsyncIterator

import pytest

from tests.extensions.claims.harness import Harness, open_harness


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with open_harness() as harness:
        yield harness


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trio mode gives each test a mark with a `run`, which would win over its module's."""
    mark = item.get_closest_marker("trio")
    if mark is not None:
        item.add_marker(pytest.mark.trio(**mark.kwargs))
