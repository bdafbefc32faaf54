"""
The cluster of a process: with other gateways, with the other processes of its own gateway, or with
both.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import attrs

from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.extensions.cluster.cluster import Cluster
from gateway.extensions.cluster.options import ALONE, SHORTEST_SECRET, ClusterOptions
from gateway.extensions.cluster.peer import Dial
from gateway.extensions.cluster.processes import PARENT, Processes

_REQUESTS: Final = 256  # requests to one process at once


def make_cluster(config: Config, runtime: Runtime, dial: Dial | None = None) -> Cluster | None:
    """
    The cluster of a gateway, or of the parent of workers, which it reaches by `dial`; None: the
    gateway is a single process without peers.
    """
    options = config.cluster
    if config.serving_processes == 1:
        return None if options is None else _cluster(options, runtime, None)
    if options is None:
        secret = b64encode(runtime.rng("secret").randbytes(SHORTEST_SECRET)).decode()
        options = ClusterOptions(address=ALONE, secrets=(secret,))
    return _cluster(options, runtime, _processes(config, options, runtime, PARENT, dial))


def told_of(cluster: Cluster) -> Mapping[str, Any]:
    """The parent's cluster, as described in its greeting to a worker."""
    options = cluster.options
    return {"address": options.address, "secrets": options.secrets, "timeout": options.timeout}


def join_cluster(
    config: Config, runtime: Runtime, greeting: Mapping[str, Any], dial: Dial
) -> Cluster:
    """
    The cluster in a worker, from the parent's greeting; the worker knows no gateway except its own.
    """
    told = greeting["cluster"]
    options = ClusterOptions(
        address=told["address"], secrets=tuple(told["secrets"]), timeout=told["timeout"]
    )
    processes = _processes(config, options, runtime, greeting["worker"], dial)
    return _cluster(options, runtime, processes)


def _processes(
    config: Config, options: ClusterOptions, runtime: Runtime, number: int, dial: Dial | None
) -> Processes:
    return Processes(
        own=number,
        workers=config.serving_processes,
        options=attrs.evolve(options, max_requests=_REQUESTS),
        rng=runtime.rng("processes"),
        observer=runtime.observer,
        dial=dial,
    )


def _cluster(options: ClusterOptions, runtime: Runtime, processes: Processes | None) -> Cluster:
    return Cluster.of(options, runtime.rng("cluster"), runtime.observer, processes)
