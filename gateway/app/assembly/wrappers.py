"""
The brokers between a pair, or the only namespace, and its clients, in one list.

`tests/references` prints the list into docs/explanation/architecture.md.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final

from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.extensions.listing import parts
from gateway.pairing.gathering import GatheringBroker
from gateway.ports import Broker, Service


async def _gather(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    if wrapping.pair is None:
        return broker, ()
    return GatheringBroker(pair=wrapping.pair.broker, namespaces=wrapping.both), ()


_GATHERING: Final = WrapperRow("gathering", "gateway/pairing/gathering.py", "[pairing]", _gather)


@cache
def wrappers() -> Sequence[WrapperRow]:
    """All rows, from the client to the pair; the innermost gathers what the others let through."""
    return (*parts("wrappers"), _GATHERING)


@cache
def home_wrappers() -> Sequence[WrapperRow]:
    """The rows of the primary, or of the only namespace: a pair has them inside it."""
    return tuple(parts("home_wrappers"))


async def wrapped(
    broker: Broker, wrapping: Wrapping, rows: Sequence[WrapperRow]
) -> tuple[Broker, Sequence[Service]]:
    """
    The broker with the wrappers of these rows, and the services that must run for it.

    Raises:
        Failure: a wrapper's store can't be opened, or refuses the credentials.
    """
    services = list[Service]()
    for row in reversed(rows):
        broker, further = await row.wrap(wrapping, broker)
        services += further
    return broker, services
