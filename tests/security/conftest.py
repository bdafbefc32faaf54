from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.processes import Gateways, open_gateways


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    """Processes that end with the test."""
    async with open_gateways(tmp_path) as gateways:
        yield gateways
