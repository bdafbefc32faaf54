from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trio.abc import Clock
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.ports import Broker
from tests.brokers.kinds import KINDS, BrokerKind, Capability


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of the contract is there once for each kind that can do what it needs."""
    if "kind" in metafunc.fixturenames:
        needed = getattr(metafunc.function, "needs", Capability(0))
        kinds = [kind for kind in KINDS if needed in kind.can]
        metafunc.parametrize("kind", kinds, ids=[kind.name for kind in kinds])


@pytest.fixture
def clock(kind: BrokerKind) -> Clock | None:
    """For tests that wait: virtual time where there can be, else the real one."""
    return MockClock(autojump_threshold=0) if kind.virtual_time else None


@pytest.fixture
async def broker(kind: BrokerKind, tmp_path: Path) -> AsyncIterator[Broker]:
    async with kind.open(tmp_path) as broker:
        yield broker


@pytest.fixture
async def orders(broker: Broker) -> EntityPath:
    """A queue with default properties."""
    path = EntityPath.parse("orders")
    await broker.create_queue(path, QueueProperties())
    return path
