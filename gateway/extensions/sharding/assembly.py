"""Sharded queues in a process: as its clients see them, and as operators do."""

from collections.abc import Sequence
from functools import partial

import attrs

from gateway.app.assembly.parts import Feature, Parts
from gateway.app.assembly.wrapper_rows import Wrapping
from gateway.app.operations.control_calls import Executors
from gateway.domain.entity import EntityPath
from gateway.domain.failover import State
from gateway.extensions.sharding.broker import ShardedBroker, always, never
from gateway.extensions.sharding.options import SHARDING
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.shards import SHARDS, ShardReports
from gateway.extensions.sharding.table import ShardTable
from gateway.frontends.admin.control import Executor
from gateway.pairing.pair import Pair
from gateway.ports import Broker, Service


@attrs.frozen
class Sharding(Feature):
    home: str

    def executors(self, parts: Parts) -> Executors:
        [setup] = [each for each in parts.for_wrappers if isinstance(each, ShardSetup)]
        reports = ShardReports(broker=setup.broker, table=setup.table, home=self.home)
        return [Executor(SHARDS, reports.execute)]


def place(wrapping: Wrapping, home: Broker) -> tuple[Broker, Sequence[Service]]:
    """The primary, which leads each shard to its namespace."""
    config, runtime = wrapping.config, wrapping.runtime
    table = ShardTable.of(config.of(SHARDING))
    others = {name: wrapping.namespaces[name] for name in config.further_namespaces}
    places = ShardPlaces(home=home, others=others, table=table)
    setup = ShardSetup(
        broker=places,
        table=table,
        observer=runtime.observer,
        rng=runtime.rng("setup of shards"),
        watches_drains=wrapping.leads,
    )
    return places, [setup]


def join(wrapping: Wrapping, broker: Broker) -> Broker:
    """The pair, or the places, as clients see it: each sharded queue is one."""
    places, pair = wrapping.home, wrapping.pair
    assert isinstance(places, ShardPlaces), "the primary of sharded queues"
    return ShardedBroker(
        broker=broker,
        table=places.table,
        rng=wrapping.runtime.rng("sharding"),
        clock=wrapping.runtime.now,
        is_healthy=always if pair is None else partial(_is_healthy, pair),
        keeps_order=never if pair is None else pair.broker.keeps_order,
    )


def _is_healthy(pair: Pair, shard: EntityPath) -> bool:
    """True if the shard, an entity of the pair, is at the primary."""
    return pair.states.state_of(shard) is State.PRIMARY
