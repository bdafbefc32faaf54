"""Sharded queues in a gateway's process: as its clients see them, and as operators do."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
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


def make(plan: ProcessPlan) -> Feature | None:
    return _Sharding(plan.config.home_name) if plan.config.of(SHARDING) else None


@attrs.frozen
class _Sharding(Feature):
    home: str

    def executors(self, parts: Parts) -> Executors:
        [setup] = [each for each in parts.for_wrappers if isinstance(each, ShardSetup)]
        reports = ShardReports(broker=setup.broker, table=setup.table, home=self.home)
        return [Executor(SHARDS, reports.execute)]


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
JOINED: Final = WrapperRow("shards", "gateway/extensions/sharding/broker.py", "[[sharding]]", _join)
