"""Reads every queue of a namespace until it is empty."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown
from gateway.domain.history import (
    AuditBegan,
    AuditFailed,
    Found,
    Place,
    QueueRead,
    Record,
    fingerprint,
)
from gateway.domain.message import DEAD_LETTER_REASON, Complete, Delivery
from gateway.ports import Broker, Receiver

PAGE: Final = 100
LOOK: Final = 1.0  # seconds until a queue that tells no depth counts as empty
LIMIT: Final = 60.0  # seconds for one queue


@attrs.frozen(kw_only=True)
class Site:
    """A namespace to audit: what its queues and their dead letters are called in the verdict."""

    broker: Broker
    name: str
    place: Place
    dead_letters: Place


async def audit(sites: Sequence[Site]) -> list[Record]:
    """
    Take everything out of all queues of these namespaces; return what was there.

    A queue that can't be read to its end is in the records, so that nobody judges without it.
    """
    records: list[Record] = []
    queues = [(site, queue, place) for site in sites for queue, place in await _queues(site)]
    names = frozenset(_name(site, queue) for site, queue, _ in queues)
    records.append(AuditBegan(at=trio.current_time(), queues=names))
    for site, queue, place in queues:
        try:
            with trio.fail_after(LIMIT):
                records += await _read(site, queue, place)
        except (BrokerError, trio.TooSlowError) as error:
            failed = AuditFailed(
                at=trio.current_time(), queue=_name(site, queue), reason=str(error)
            )
            records.append(failed)
        else:
            records.append(QueueRead(at=trio.current_time(), queue=_name(site, queue)))
    return records


async def pending(broker: Broker) -> int:
    """
    Messages that wait in the queues of that namespace.

    Raises:
        OutcomeUnknown: it doesn't tell.
    """
    total = 0
    for info in await broker.list_queues(top=PAGE):
        if info.active is None:
            raise OutcomeUnknown(f"{info.path} doesn't tell how many messages it holds")
        total += info.active
    return total


def _name(site: Site, queue: EntityPath) -> str:
    """The primary's queues by their own name, as the producers call them."""
    return queue.key if site.place is Place.PRIMARY else f"{site.name}:{queue.key}"


async def _queues(site: Site) -> list[tuple[EntityPath, Place]]:
    found: list[tuple[EntityPath, Place]] = []
    while page := await site.broker.list_queues(skip=len(found) // 2, top=PAGE):
        for info in page:
            found += [(info.path, site.place), (info.path.dead_letter, site.dead_letters)]
    return found


async def _read(site: Site, queue: EntityPath, place: Place) -> list[Record]:
    """
    Take all messages; each is settled before the queue counts as read.

    Not in receive-and-delete mode: a look that is cut short could then lose what it looks for.
    """
    records: list[Record] = []
    async with site.broker.open_receiver(queue) as receiver:
        while True:
            deliveries: Sequence[Delivery] = ()
            with trio.move_on_after(LOOK):
                deliveries = await receiver.receive(PAGE)
            records += [_found(site, queue, place, delivery) for delivery in deliveries]
            await _complete_all(receiver, deliveries)
            if not deliveries and await _is_empty(site.broker, queue):
                return records


def _found(site: Site, queue: EntityPath, place: Place, delivery: Delivery) -> Found:
    message = delivery.message
    return Found(
        at=trio.current_time(),
        place=place,
        queue=_name(site, queue),
        message_id=str(message.message_id),
        fingerprint=fingerprint(message) if place is Place.PRIMARY else None,
        copy=str(delivery.sequence_number),
        reason=str(message.properties.get(DEAD_LETTER_REASON, "")),
    )


async def _complete_all(receiver: Receiver, deliveries: Sequence[Delivery]) -> None:
    errors: list[BrokerError] = []

    async def complete(delivery: Delivery) -> None:
        try:
            await receiver.settle(delivery, Complete())
        except BrokerError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for delivery in deliveries:
            nursery.start_soon(complete, delivery)
    if errors:
        raise errors[0]


async def _is_empty(broker: Broker, queue: EntityPath) -> bool:
    """A locked message is there and can't be received: wait for it, don't overlook it."""
    info = await broker.inspect(queue.parent)
    depth = info.dead_lettered if queue.is_dead_letter else info.active
    return not depth
