"""Puts sharded queues before the namespaces that have their shards."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.domain.entity import EntityPath
from gateway.domain.failover import State
from gateway.extensions.sharding.broker import ShardedBroker, always, never
from gateway.extensions.sharding.configuration import SHARDING
from gateway.extensions.sharding.places import ShardPlaces
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.table import ShardTable
from gateway.pairing.pair import Pair
from gateway.ports import Broker, Service


async def _place(wrapping: Wrapping, home: Broker) -> tuple[Broker, Sequence[Service]]:
    """The primary, which leads each shard to its namespace."""
    config, runtime = wrapping.config, wrapping.runtime
    table = ShardTable.of(config.of(SHARDING))
    if not table.queues:
        return home, ()
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


async def _join(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    """The pair, or the places, as clients see it: each sharded queue is one."""
    places, pair = wrapping.home, wrapping.pair
    if not isinstance(places, ShardPlaces):
        return broker, ()
    joined = ShardedBroker(
        broker=broker,
        table=places.table,
        rng=wrapping.runtime.rng("sharding"),
        clock=wrapping.runtime.now,
        is_healthy=always if pair is None else partial(_is_healthy, pair),
        keeps_order=never if pair is None else pair.broker.keeps_order,
    )
    return joined, ()


def _is_healthy(pair: Pair, shard: EntityPath) -> bool:
    """True if the shard, an entity of the pair, is at the primary."""
    return pair.states.state_of(shard) is State.PRIMARY


PLACES: Final = WrapperRow(
    "shards' places", "gateway/extensions/sharding/places.py", "[[sharding]]", _place
)
SHARDS: Final = WrapperRow("shards", "gateway/extensions/sharding/broker.py", "[[sharding]]", _join)
