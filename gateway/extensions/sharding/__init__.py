"""Several queues that clients see as one: `[[sharding]]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:SHARDING"],
    namespaces=["options:namespaces_with_shards"],
    completions=["options:planned"],
    reloads=["options:reloaded"],
    checks=["options:problems"],
    warnings=["options:warnings"],
    exclusive=["options:sharded_queues"],
    calls=["shards:SHARDS"],
    features=["feature:make"],
    commands={
        "shards": (
            "command:shards",
            "Show the shards of each sharded queue of the running gateway: their messages,"
            " and which of those that drain are empty, so that they may be removed.",
        ),
    },
    home_wrappers=["feature:PLACES"],
    wrappers=["feature:JOINED"],
)
