"""
RabbitMQ 4's cluster, where the node is restarted that alone has a queue. The same on RabbitMQ 3 is
in `test_rabbitmq_cluster.py`, which has such a cluster.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.processes import Gateways
from tests.e2e.queue_home import restart_unnoticed
from tests.e2e.rabbitmq_clusters import SharedCluster
from tests.harness.folders import kept_in
from tests.harness.rabbitmq import RABBITMQ_4

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    yield from kept_in(
        tmp_path_factory, "cluster", lambda folder: SharedCluster(folder, RABBITMQ_4)
    )


async def test_neither_publishers_nor_consumers_notice_the_restart_of_a_queues_node(
    cluster: SharedCluster, gateways: Gateways
) -> None:
    await restart_unnoticed(cluster, gateways)
