"""
Settles deliveries, whether or not the namespace can settle many at once.

`settle_one` and `settle_all` return verdicts as `SettlesMany.settle_many` does: None, or the error.
Where no answer came within `seconds`, the verdict is `OutcomeUnknown`: the message may come again.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

import trio

from gateway.capabilities import SettlesMany
from gateway.deadlines import answered_within
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.message import Delivery, Settlement
from gateway.offering import offered
from gateway.ports import Receiver

_WHAT: Final = "to a settlement"


async def settle_one(
    receiver: Receiver,
    delivery: Delivery,
    settlement: Settlement,
    seconds: float = inf,
    *,
    shield: bool = False,
) -> BrokerError | None:
    """Settle a delivery. A cancellation waits for the verdict with `shield`."""
    try:
        with answered_within(seconds, _WHAT, shield=shield):
            await receiver.settle(delivery, settlement)
    except BrokerError as error:
        return error
    return None


async def settle_all(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]], seconds: float = inf
) -> Sequence[BrokerError | None]:
    """Settle several deliveries: in one step if the receiver can, else each in its own task."""
    if (settles_many := offered(receiver, SettlesMany)) is not None:
        try:
            with answered_within(seconds, _WHAT):
                return await settles_many.settle_many(settlements)
        except NotSupported:
            pass  # the wrapper's inner receiver was replaced, and can't
        except BrokerError as error:
            return [error] * len(settlements)
    verdicts: list[BrokerError | None] = [None] * len(settlements)

    async def settle(index: int, delivery: Delivery, settlement: Settlement) -> None:
        verdicts[index] = await settle_one(receiver, delivery, settlement, seconds)

    async with trio.open_nursery() as nursery:
        for index, (delivery, settlement) in enumerate(settlements):
            nursery.start_soon(settle, index, delivery, settlement)
    return verdicts


async def settle_or_raise(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]]
) -> None:
    """
    As `settle_all`, without a time limit.

    Raises:
        BrokerError: some couldn't be settled; this is the first error.
    """
    for error in await settle_all(receiver, settlements):
        if error is not None:
            raise error
