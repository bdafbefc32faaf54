"""`[cluster]`: its table, the address from the environment, and what is wrong with it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.config.options import SERVE, Config
from gateway.config.places import is_own_url
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.tables import Table

CLUSTER: Final = Table[ClusterOptions | None](
    name="cluster", kind=ClusterOptions | None, missing=None
)
# The address of this gateway in its cluster: a pod learns its address when it starts.
VARIABLE: Final = "PAIRGATE_CLUSTER_ADDRESS"


def with_address(tables: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The tables with the address of the environment, if it has one, and they have `[cluster]`."""
    cluster, address = tables.get("cluster"), environ.get(VARIABLE, "").strip()
    if not address or not isinstance(cluster, dict):
        return tables
    return {**tables, "cluster": {**cluster, "address": address}}


def knows_peers(config: Config) -> bool:
    """True if gateways with this configuration know each other."""
    return config.of(CLUSTER) is not None


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    cluster = config.of(CLUSTER)
    if cluster is None:
        return
    if not cluster.peers and cluster.service is None:
        yield (
            "cluster.peers: is missing; write the addresses of all gateways, or"
            " `service`, the name that has them in DNS"
        )
    bind = cluster.bind or cluster.address
    if bind in {endpoint.bind for endpoint in config.endpoints_of(SERVE).values()}:
        yield f"cluster.bind: {bind} is an endpoint's address; peers need a port of their own"


def warnings(config: Config) -> Iterator[str]:
    """Deliveries of an embedded store are of no use to another gateway, which has its own store."""
    if config.of(CLUSTER) is not None and is_own_url(config.home.url):
        yield (
            f"cluster: the namespace {config.home.name} is a store of this gateway alone; gateways"
            " of one cluster have the same namespace, which is another process's"
        )
