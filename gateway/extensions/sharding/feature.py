"""The parts of a process with sharded queues, whose classes no other process imports."""

from collections.abc import Sequence
from typing import Final

from gateway.app.assembly.parts import Feature, ProcessPlan
from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.extensions.sharding.options import SHARDING
from gateway.ports import Broker, Service


def make(plan: ProcessPlan) -> Feature | None:
    if not plan.config.of(SHARDING):
        return None
    # Here and below: the wrappers' classes, which only a process with sharded queues needs.
    from gateway.extensions.sharding.assembly import Sharding

    return Sharding(plan.config.home_name)


async def _place(wrapping: Wrapping, home: Broker) -> tuple[Broker, Sequence[Service]]:
    if not wrapping.config.of(SHARDING):
        return home, ()
    from gateway.extensions.sharding.assembly import place

    return place(wrapping, home)


async def _join(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    if not wrapping.config.of(SHARDING):
        return broker, ()
    from gateway.extensions.sharding.assembly import join

    return join(wrapping, broker), ()


PLACES: Final = WrapperRow(
    "shards' places", "gateway/extensions/sharding/places.py", "[[sharding]]", _place
)
JOINED: Final = WrapperRow("shards", "gateway/extensions/sharding/broker.py", "[[sharding]]", _join)
