"""
Decides whether a process has a cluster. A process without one doesn't import it: the parts of a
cluster would take a third of what a start does after its own imports.
"""

from base64 import b64encode

from gateway.app.assembly.others import Others, ProcessPlace
from gateway.extensions.cluster.options import ALONE, CLUSTER, SHORTEST_SECRET, ClusterOptions


def make_others(place: ProcessPlace) -> Others | None:
    """The cluster of a process; None: the gateway is a single process without peers."""
    options = _options(place)
    if options is None:
        return None
    from gateway.extensions.cluster.assembly import make_cluster

    return make_cluster(place, options)


def _options(place: ProcessPlace) -> ClusterOptions | None:
    """
    The options of the process's cluster. A worker knows no gateway except its own, and that by its
    parent; processes without other gateways get a secret of their own.
    """
    if (told := place.told.get("cluster")) is not None:
        return ClusterOptions(**{**told, "secrets": tuple(told["secrets"])})
    options = place.config.of(CLUSTER)
    if options is None and place.config.serving_processes > 1:
        secret = b64encode(place.runtime.rng("secret").randbytes(SHORTEST_SECRET)).decode()
        return ClusterOptions(address=ALONE, secrets=(secret,))
    return options
