"""Settles an item where it came from, for whoever was handed it and knows no more than the item."""

from collections.abc import Mapping

import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, OutcomeUnknown
from gateway.domain.message import Complete, Delivery, Settlement
from gateway.listener.items import account_of, queue_of
from gateway.ports import Broker

TIMEOUT = 10.0  # seconds


async def settle(
    namespaces: Mapping[str, Broker],
    queue_uri: str,
    delivery: Delivery,
    settlement: Settlement | None = None,
) -> None:
    """
    Settle (None: complete) a delivery of the queue that `queue_uri` names, with a receiver opened
    for that. `namespaces` are the brokers by account.

    Raises:
        EntityNotFound: there is no such account or queue.
        LockLost: it was too late, or this namespace takes a settlement only from whom it gave the
            message to, as where a lock belongs to a link.
        OutcomeUnknown: nobody answered in time.
    """
    await trio.lowlevel.checkpoint()
    account, queue = account_of(queue_uri), queue_of(queue_uri)
    if account not in namespaces:
        raise EntityNotFound(f"{queue_uri}: no account {account!r}")
    with trio.move_on_after(TIMEOUT):
        await _settle(namespaces[account], queue, delivery, settlement or Complete())
        return
    raise OutcomeUnknown(f"no answer from {queue_uri} within {TIMEOUT:g} s")


async def _settle(
    broker: Broker, queue: EntityPath, delivery: Delivery, settlement: Settlement
) -> None:
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(delivery, settlement)
