"""The limits of one process of a gateway with workers: its share of the gateway's limits."""

import attrs

from gateway.config.options import Config
from gateway.extensions.workers.options import OF_PARENT


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
