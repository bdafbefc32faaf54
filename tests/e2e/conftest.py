from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Gateways, open_gateways
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.e2e.rabbitmq_nodes import ExampleNodes


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    """Processes that end with the test."""
    async with open_gateways(tmp_path) as gateways:
        yield gateways


@pytest.fixture(scope="session")
def rabbits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleNodes]:
    rabbits = ExampleNodes(tmp_path_factory.mktemp("rabbits"))
    yield rabbits
    rabbits.end()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    cluster = SharedCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()
