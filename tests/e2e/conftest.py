from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.brokers.rabbitmq.nodes import Nodes
from tests.e2e.processes import Gateways, open_gateways
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.e2e.rabbitmq_nodes import ExampleNodes
from tests.e2e.rabbitmq_site import SiteNodes, Sites
from tests.harness.folders import kept_in


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    """Processes that end with the test."""
    async with open_gateways(tmp_path) as gateways:
        yield gateways


@pytest.fixture(scope="session")
def shared_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The nodes of the contract's tests."""
    yield from kept_in(tmp_path_factory, "rabbits", Nodes)


@pytest.fixture(scope="session")
def rabbits(shared_nodes: Nodes) -> ExampleNodes:
    return ExampleNodes(shared_nodes)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    yield from kept_in(tmp_path_factory, "cluster", SharedCluster)


@pytest.fixture(scope="session")
def site_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteNodes]:
    yield from kept_in(tmp_path_factory, "sites", SiteNodes)


@pytest.fixture
def sites(site_nodes: SiteNodes, gateways: Gateways, tmp_path: Path) -> Sites:
    return Sites(site_nodes, gateways, tmp_path)
