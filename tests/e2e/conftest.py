from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Gateways, open_gateways
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.e2e.rabbitmq_nodes import ExampleNodes
from tests.e2e.rabbitmq_site import SiteNodes, Sites
from tests.harness.folders import in_memory


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    """Processes that end with the test."""
    async with open_gateways(tmp_path) as gateways:
        yield gateways


@pytest.fixture(scope="session")
def rabbits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleNodes]:
    with in_memory(tmp_path_factory.mktemp("rabbits")) as folder:
        rabbits = ExampleNodes(folder)
        yield rabbits
        rabbits.end()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    with in_memory(tmp_path_factory.mktemp("cluster")) as folder:
        cluster = SharedCluster(folder)
        yield cluster
        cluster.end()


@pytest.fixture(scope="session")
def site_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteNodes]:
    with in_memory(tmp_path_factory.mktemp("sites")) as folder:
        nodes = SiteNodes(folder)
        yield nodes
        nodes.end()


@pytest.fixture
def sites(site_nodes: SiteNodes, gateways: Gateways, tmp_path: Path) -> Sites:
    return Sites(site_nodes, gateways, tmp_path)
