from collections.abc import AsyncIterator

import pytest

from tests.claims.lab import Lab, open_lab


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with open_lab() as lab:
        yield lab


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trio mode gives each test a mark with a `run`, which would win over its module's."""
    mark = item.get_closest_marker("trio")
    if mark is not None:
        item.add_marker(pytest.mark.trio(**mark.kwargs))
