"""Several processes for one gateway, `workers = n`: a parent, and workers that serve clients."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:WORKERS"],
    checks=["options:problems"],
    serving=["options:count"],
    pools=["pool:POOL"],
)
