"""
The brokers between a pair, or the only namespace, and its clients, in one list.

`tests/references` prints the list into docs/explanation/architecture.md.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs

from gateway.app.assembly.claiming import with_claim_check, with_packing
from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.domain.failover import State
from gateway.extensions.sharding.assembly import Sharding
from gateway.pairing.gathering import GatheringBroker
from gateway.pairing.pair import Pair
from gateway.ports import Broker, Service


@attrs.frozen(kw_only=True)
class Wrapping:
    """The parts of a process that its wrappers are made from."""

    stack: AsyncExitStack  # closes what they open
    config: Config
    runtime: Runtime
    sharding: Sharding
    pair: Pair | None = None
    namespaces: Sequence[Broker] = ()  # of the pair
    collects: bool = True  # bodies that no message needs are deleted here, not by another process


Wrap = Callable[[Wrapping, Broker], Awaitable[tuple[Broker, Sequence[Service]]]]
"""Returns the wrapped broker, or the same one, and the services that must run for it."""


@attrs.frozen
class WrapperRow:
    """A feature that changes messages or entities on their way."""

    name: str
    module: str
    when: str  # the configuration with which it is there
    wrap: Wrap


async def _pack(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    return with_packing(wrapping.config, broker, wrapping.runtime)


async def _claim(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    return await with_claim_check(
        wrapping.stack, wrapping.config, broker, wrapping.runtime, collects=wrapping.collects
    )


async def _join_shards(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    sharding, pair = wrapping.sharding, wrapping.pair
    if pair is None:
        return sharding.joined(broker), ()
    # Each shard is an entity of the pair.
    states, keeps_order = pair.states, pair.broker.keeps_order
    joined = sharding.joined(
        broker,
        is_healthy=lambda shard: states.state_of(shard) is State.PRIMARY,
        keeps_order=keeps_order,
    )
    return joined, ()


async def _gather(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    if wrapping.pair is None:
        return broker, ()
    return GatheringBroker(pair=wrapping.pair.broker, namespaces=wrapping.namespaces), ()


# From the client to the pair. Packs are made before the claim check: it sees their size. Both see
# one queue where there are shards; each shard gathers its own sends.
WRAPPERS: Final[Sequence[WrapperRow]] = (
    WrapperRow("packing", "gateway/extensions/claims/packing.py", "[[packing]]", _pack),
    WrapperRow("claim check", "gateway/extensions/claims/broker.py", "[claims]", _claim),
    WrapperRow("shards", "gateway/extensions/sharding/broker.py", "[[sharding]]", _join_shards),
    WrapperRow("gathering", "gateway/pairing/gathering.py", "[pairing]", _gather),
)


async def wrapped(
    broker: Broker, wrapping: Wrapping, rows: Sequence[WrapperRow] = WRAPPERS
) -> tuple[Broker, Sequence[Service]]:
    """
    The pair, or the only namespace, as clients see it, and the services that must run for it.

    Raises:
        Failure: a wrapper's store can't be opened, or refuses the credentials.
    """
    services = list[Service]()
    for row in reversed(rows):
        broker, further = await row.wrap(wrapping, broker)
        services += further
    return broker, services
