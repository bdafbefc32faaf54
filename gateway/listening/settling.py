"""Settles an item outside of its listener, for code that has nothing but the item."""

from collections.abc import Mapping

from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound
from gateway.domain.message import Complete, Delivery, Settlement
from gateway.listening.items import account_of, queue_of
from gateway.ports import Broker

TIMEOUT = 10.0  # seconds


async def settle(
    namespaces: Mapping[str, Broker],
    queue_uri: str,
    delivery: Delivery,
    settlement: Settlement | None = None,
) -> None:
    """
    Settle (None: complete) a delivery of the queue that `queue_uri` names, with a receiver of its
    own. `namespaces` are the brokers by account.

    Raises:
        EntityNotFound: there is no such account or queue.
        LockLost: the lock has expired; or this namespace accepts a settlement only on the link that
            received the message.
        OutcomeUnknown: the namespace didn't answer in time.
    """
    account, queue = account_of(queue_uri), queue_of(queue_uri)
    if account not in namespaces:
        raise EntityNotFound(f"{queue_uri}: account {account!r} isn't among the namespaces")
    with answered_within(TIMEOUT, f"from {queue_uri}"):
        await _settle(namespaces[account], queue, delivery, settlement or Complete())


async def _settle(
    broker: Broker, queue: EntityPath, delivery: Delivery, settlement: Settlement
) -> None:
    async with broker.open_receiver(queue) as receiver:
        await receiver.settle(delivery, settlement)
