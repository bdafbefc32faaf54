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
LOOK: Final = 0.5  # seconds without a message until a queue may count as empty
LIMIT: Final = 90.0  # seconds for one queue: a lock that somebody left there may last a minute
AT_ONCE: Final = 32  # queues


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
    queues = [(site, queue, place) for site in sites for queue, place in await _queues(site)]
    names = frozenset(_name(site, queue) for site, queue, _ in queues)
    records: list[Record] = [AuditBegan(at=trio.current_time(), queues=names)]
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def read(site: Site, queue: EntityPath, place: Place) -> None:
        async with limiter:
            records.extend(await _outcome(site, queue, place))

    async with trio.open_nursery() as nursery:
        for site, queue, place in queues:
            nursery.start_soon(read, site, queue, place)
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


async def _outcome(site: Site, queue: EntityPath, place: Place) -> list[Record]:
    """What is in that queue, or that nobody knows."""
    await trio.lowlevel.checkpoint()
    name = _name(site, queue)
    try:
        with trio.fail_after(LIMIT):
            found = await _read(site, queue, place)
    except trio.TooSlowError:
        reason = f"it isn't empty after {LIMIT:.0f} s"
        return [AuditFailed(at=trio.current_time(), queue=name, reason=reason)]
    except BrokerError as error:
        return [AuditFailed(at=trio.current_time(), queue=name, reason=str(error))]
    return [*found, QueueRead(at=trio.current_time(), queue=name)]


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
        await trio.lowlevel.checkpoint()
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
    """What is locked or scheduled is there and can't be received: wait for it."""
    info = await broker.inspect(queue.parent)
    waiting = (info.dead_lettered,) if queue.is_dead_letter else (info.active, info.scheduled)
    return not any(waiting)
