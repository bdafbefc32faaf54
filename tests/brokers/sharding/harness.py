"""Sharded queues over any namespace."""

import random
from typing import Any, Final

import attrs

from gateway.brokers.sharding.broker import ShardedBroker
from gateway.brokers.sharding.table import ShardedQueue, ShardingRule, ShardTable
from gateway.domain.entity import EntityPath
from gateway.ports import Broker, WallClock

ORDERS: Final = EntityPath("orders")


def sharded(
    broker: Broker, rule: ShardingRule | ShardTable, clock: WallClock, **options: Any
) -> ShardedBroker:
    """The namespace with one sharded queue, or with those of a table."""
    table = rule if isinstance(rule, ShardTable) else ShardTable.of([rule])
    return ShardedBroker(broker=broker, table=table, rng=random.Random(0), clock=clock, **options)


@attrs.define(eq=False)
class EveryQueue(ShardTable):
    """
    Every queue has three shards, of which the last gets all messages: so their order is kept, and
    each delivery has to lead back to a shard that isn't the queue itself.
    """

    def find(self, entity: EntityPath) -> ShardedQueue | None:
        if entity.is_subscription or entity.shard_number:
            return None
        path = entity.parent
        return ShardedQueue(path=path, rule=ShardingRule(queue=path.name, shards=3, drain=(0, 1)))
