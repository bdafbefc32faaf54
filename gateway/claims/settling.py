"""Settles several deliveries, whatever the namespace can."""

from collections.abc import Sequence

import trio

from gateway.capabilities import SettlesMany
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Settlement
from gateway.ports import Receiver


async def settle_each(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]]
) -> Sequence[BrokerError | None]:
    """As `SettlesMany.settle_many`; where a namespace can't do that, all side by side."""
    if isinstance(receiver, SettlesMany):
        return await receiver.settle_many(settlements)
    verdicts: list[BrokerError | None] = [None] * len(settlements)

    async def settle(  # noqa: ASYNC910 a settlement waits, or raises after that
        index: int, delivery: Delivery, settlement: Settlement
    ) -> None:
        try:
            await receiver.settle(delivery, settlement)
        except BrokerError as error:
            verdicts[index] = error

    async with trio.open_nursery() as nursery:
        for index, (delivery, settlement) in enumerate(settlements):
            nursery.start_soon(settle, index, delivery, settlement)
    return verdicts
