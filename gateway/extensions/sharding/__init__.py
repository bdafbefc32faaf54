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
    commands={
        "shards": (
            "command:shards",
            "Show the shards of each sharded queue of the running gateway: their messages,"
            " and which of those that drain are empty, so that they may be removed.",
        ),
    },
    home_wrappers=["assembly:PLACES"],
    wrappers=["assembly:SHARDS"],
)
