"""Puts sharded queues before the namespaces that have their shards."""

import random
from collections.abc import Callable, Iterable, Mapping

import attrs

from gateway.config.options import Config
from gateway.domain.entity import EntityPath
from gateway.extensions.sharding.broker import ShardedBroker, always, never
from gateway.extensions.sharding.configuration import SHARDING, reloaded
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.table import ShardingRule, ShardTable
from gateway.ports import Broker, Observer, Service, WallClock


@attrs.define(eq=False, kw_only=True)
class Sharding:
    """The sharded queues of a process. Without rules it changes nothing."""

    rules: Iterable[ShardingRule]
    others: Mapping[str, Broker]  # the open namespaces that have shards, besides the primary
    clock: WallClock
    rng: random.Random
    observer: Observer
    watches_drains: bool = True
    table: ShardTable = attrs.field(init=False)
    services: list[Service] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.table = ShardTable.of(self.rules)

    def reload(self, start: Config, fresh: Config) -> None:
        """Use the rules of `fresh` that a process which started with `start` can take over."""
        self.table.replace(reloaded(start, fresh).of(SHARDING))

    def places(self, home: Broker) -> Broker:
        """The primary, which leads each shard to its namespace."""
        if not self.table.queues:
            return home
        places = ShardPlaces(home=home, others=self.others, table=self.table)
        setup = ShardSetup(
            broker=places,
            table=self.table,
            observer=self.observer,
            rng=self.rng,
            watches_drains=self.watches_drains,
        )
        self.services.append(setup)
        return places

    def joined(
        self,
        broker: Broker,
        *,
        is_healthy: Callable[[EntityPath], bool] = always,
        keeps_order: Callable[[EntityPath], bool] = never,
    ) -> Broker:
        """
        `broker` (the pair, or `places`) as clients see it: each sharded queue is one. The other
        arguments are those of `ShardedBroker`.
        """
        if not self.table.queues:
            return broker
        return ShardedBroker(
            broker=broker,
            table=self.table,
            rng=self.rng,
            clock=self.clock,
            is_healthy=is_healthy,
            keeps_order=keeps_order,
        )
