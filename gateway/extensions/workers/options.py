"""`workers`: the processes that serve clients, and the share of each in the gateway's limits."""

from collections.abc import Iterator
from typing import Final

import attrs
from attrs import validators

from gateway.config.endpoints import ADMIN, RABBITMQ, SERVE, STORAGE_QUEUE
from gateway.config.options import Config
from gateway.extensions.tables import Table

MOST: Final = 64  # more processes than cores serve nothing faster, and each takes its memory
# 1: the gateway is one process.
WORKERS: Final = Table[int](
    name="workers", kind=int, missing=1, validator=[validators.ge(1), validators.le(MOST)]
)
# Endpoints that the parent of workers serves itself, as their state between two requests is in one
# process.
OF_PARENT: Final = frozenset({STORAGE_QUEUE, RABBITMQ, ADMIN})


def count(config: Config) -> int:
    """The number of workers, or 1 without them."""
    return config.of(WORKERS)


def problems(config: Config) -> Iterator[str]:
    """Yield a line if the parent would serve every endpoint."""
    served = config.endpoints_of(SERVE).values()
    parents = all(endpoint.protocol in OF_PARENT for endpoint in served)
    if count(config) > 1 and served and parents:
        yield (
            "workers: 1 expected, because one process serves the protocols"
            f" {', '.join(sorted(OF_PARENT))}, and there is no other endpoint"
        )


def shared(config: Config) -> Config:
    """
    The configuration of the parent and of each worker: memory limits are divided among all of them.
    """
    processes = config.serving_processes + 1
    http = attrs.evolve(
        config.limits.http, max_body_memory=max(1, config.limits.http.max_body_memory // processes)
    )
    pairing = config.pairing
    if pairing is not None:
        inflight = max(1, pairing.options.max_inflight // processes)
        options = attrs.evolve(pairing.options, max_inflight=inflight)
        pairing = attrs.evolve(pairing, options=options)
    limits = attrs.evolve(config.limits, http=http)
    return attrs.evolve(config, limits=limits, pairing=pairing)


def of_worker(config: Config) -> Config:
    """
    The configuration of a worker: as `shared`, without the syphon, and with its share of the
    connections of an endpoint. A client that finds no room in one worker waits until some worker
    has room.
    """
    config = shared(config)
    if config.pairing is not None:
        alone = attrs.evolve(config.pairing, enable_syphon=False)
        config = attrs.evolve(config, pairing=alone)
    listener = config.limits.listener
    listener = attrs.evolve(
        listener, max_connections=max(1, listener.max_connections // config.serving_processes)
    )
    return attrs.evolve(config, limits=attrs.evolve(config.limits, listener=listener))


def of_workers(config: Config) -> list[int]:
    """The numbers of the endpoints that workers serve."""
    return [
        index
        for index, endpoint in enumerate(config.endpoints)
        if config.serving_processes > 1 and endpoint.protocol not in OF_PARENT
    ]
