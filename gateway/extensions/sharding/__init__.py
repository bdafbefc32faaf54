"""Several queues that clients see as one: `[[sharding]]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["configuration:SHARDING"],
    namespaces=["configuration:namespaces_with_shards"],
    completions=["configuration:planned"],
    reloads=["configuration:reloaded"],
    checks=["configuration:problems"],
    warnings=["configuration:warnings"],
    calls=["shards:SHARDS"],
    features=["feature:make"],
    commands={"shards": "command:shards"},
    home_wrappers=["assembly:PLACES"],
    wrappers=["assembly:SHARDS"],
)
