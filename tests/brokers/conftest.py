from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from trio.abc import Clock
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.ports import Broker
from tests.brokers.elsewhere import Elsewhere
from tests.brokers.kinds import KINDS, BrokerKind, Capability, Place
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.storage_queue.azurites import Azurites
from tests.harness.folders import kept_in


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate each test of the contract for each kind that has the abilities that it needs."""
    needed = getattr(metafunc.function, "needs", Capability(0))
    kinds = [kind for kind in KINDS if needed in kind.can]
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize(
            "kind", [pytest.param(kind, id=kind.name, marks=_marks(kind)) for kind in kinds]
        )
    if "kinds_at_once" in metafunc.fixturenames:
        groups: dict[str, tuple[BrokerKind, ...]] = {
            kind.name: (kind,) for kind in kinds if kind.virtual_time
        }
        groups["in real time"] = tuple(kind for kind in kinds if not kind.virtual_time)
        metafunc.parametrize(
            "kinds_at_once",
            [pytest.param(group, id=name, marks=_marks(*group)) for name, group in groups.items()],
        )


def _marks(*kinds: BrokerKind) -> list[pytest.MarkDecorator]:
    names = ("shared", "live", "slow")
    return [
        getattr(pytest.mark, name) for name in names if any(getattr(kind, name) for kind in kinds)
    ]


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock | None:
    """Virtual time where there can be, so that the test doesn't wait; else the real one."""
    parameters = request.node.callspec.params
    kinds = parameters.get("kinds_at_once") or (parameters["kind"],)
    return MockClock(autojump_threshold=0) if all(kind.virtual_time for kind in kinds) else None


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    yield from kept_in(tmp_path_factory, "elsewhere", Elsewhere)


@pytest.fixture(scope="session")
def rabbits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    yield from kept_in(tmp_path_factory, "rabbits", Nodes)


@pytest.fixture(scope="session")
def azurites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurites]:
    yield from kept_in(tmp_path_factory, "azurites", Azurites)


@pytest.fixture
async def broker(
    kind: BrokerKind,
    clock: Clock | None,
    folder: Path,
    elsewhere: Elsewhere,
    rabbits: Nodes,
    azurites: Azurites,
) -> AsyncIterator[Broker]:
    async with kind.open(Place(folder, elsewhere, rabbits, azurites)) as broker:
        yield broker


@pytest.fixture
async def orders(broker: Broker) -> EntityPath:
    """A queue with default properties."""
    path = EntityPath.parse("orders")
    await broker.create_queue(path, QueueProperties())
    return path
