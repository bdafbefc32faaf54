"""`[cluster]`: the options, the address from the environment, and what is wrong with them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from attrs import validators

from gateway.config.endpoints import SERVE
from gateway.config.options import Config
from gateway.config.places import is_own_url
from gateway.domain.option_fields import SECRET
from gateway.extensions.tables import Table
from gateway.net.listeners import CannotListen, split_address

SHORTEST_SECRET: Final = 32  # bytes of the text
ALONE: Final = "gateway.invalid:1"  # the address of a gateway that is in no cluster


def _is_address(_: object, field: "attrs.Attribute[str]", text: str | None) -> None:
    """
    Raises:
        ValueError: it isn't HOST:PORT of one gateway, as its peers connect to it.
    """
    if text is None:
        return
    try:
        host, port = split_address(text)
    except CannotListen as error:
        raise ValueError(str(error)) from error
    if port == 0 or (host in {"0.0.0.0", "::"} and field.name != "bind"):
        raise ValueError(f"the address by which peers connect expected, found {text!r:.80}")


def _are_addresses(
    _: object, field: "attrs.Attribute[tuple[str, ...]]", texts: tuple[str, ...]
) -> None:
    for text in texts:
        _is_address(None, field, text)  # type: ignore[arg-type]


def _are_long(_: object, __: object, secrets: tuple[str, ...]) -> None:
    if any(len(secret.encode()) < SHORTEST_SECRET for secret in secrets):
        raise ValueError(
            f"at least {SHORTEST_SECRET} bytes expected; `openssl rand -base64 32` prints one"
        )


@attrs.frozen(kw_only=True)
class ClusterOptions:
    """`[cluster]`. Times are in seconds."""

    # HOST:PORT by which the peers know this gateway; also from the environment.
    address: str = attrs.field(validator=_is_address)
    bind: str | None = attrs.field(default=None, validator=_is_address)  # None: the address
    peers: tuple[str, ...] = attrs.field(default=(), validator=_are_addresses)  # its own too
    # HOST:PORT whose addresses in DNS are those of all gateways.
    service: str | None = attrs.field(default=None, validator=_is_address)
    # The first is used, all are accepted.
    secrets: tuple[str, ...] = attrs.field(
        repr=False,
        metadata=SECRET,
        validator=[validators.min_len(1), validators.max_len(4), _are_long],
    )
    refresh: float = attrs.field(default=5.0, validator=validators.ge(0.1))  # of DNS
    connect_timeout: float = attrs.field(default=2.0, validator=validators.gt(0.0))
    timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))  # of a request
    # Requests to one peer at once; each has a connection of its own.
    max_requests: int = attrs.field(default=16, validator=[validators.ge(1), validators.le(256)])
    # Connections from all peers together.
    max_connections: int = attrs.field(
        default=256, validator=[validators.ge(1), validators.le(10_000)]
    )


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
