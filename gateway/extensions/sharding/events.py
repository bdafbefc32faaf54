"""Events of shards that are added and drained while the gateway runs."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class ShardAdded(Event):
    """A shard that a reload has added exists: from now on it gets messages."""

    queue: EntityPath
    shard: int


@attrs.frozen(kw_only=True)
class ShardDrained(Event):
    """
    A shard that drains was found empty: it may be removed, unless it has messages of the states
    `not_counted`, which its namespace doesn't report.
    """

    queue: EntityPath
    shard: int
    not_counted: str = ""  # "dead_lettered, scheduled"
