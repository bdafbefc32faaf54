"""`workers`: the processes that serve clients."""

from collections.abc import Iterator
from typing import Final

from attrs import validators

from gateway.config.options import ADMIN, SERVE, STORAGE_QUEUE, Config
from gateway.extensions.tables import Table

MOST: Final = 64  # more processes than cores serve nothing faster, and each takes its memory
# 1: the gateway is one process.
WORKERS: Final = Table[int](
    name="workers", kind=int, missing=1, validator=[validators.ge(1), validators.le(MOST)]
)
# Endpoints that the parent of workers serves itself, as their state between two requests is in one
# process.
OF_PARENT: Final = frozenset({STORAGE_QUEUE, ADMIN})


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
