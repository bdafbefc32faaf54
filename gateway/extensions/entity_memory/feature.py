"""The row of the wrapper in a gateway's process."""

from collections.abc import Sequence
from typing import Final

from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.ports import Broker, Service


async def _remember(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    """The pair, with answers from memory."""
    if wrapping.pair is None:
        return broker, ()
    # The wrapper's classes, which only a pair needs.
    from gateway.extensions.entity_memory.broker import RememberingBroker
    from gateway.extensions.entity_memory.memory import EntityMemory

    memory = EntityMemory(names=wrapping.pair.entity_cache)
    return RememberingBroker(broker=broker, memory=memory), [memory]


FROM_MEMORY: Final = WrapperRow(
    "entity memory", "gateway/extensions/entity_memory/broker.py", "[pairing]", _remember
)
