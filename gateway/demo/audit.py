"""Receives from every queue of a namespace until it is empty."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities.settling import settle_or_raise
from gateway.checker.operations import (
    AuditBegan,
    AuditFailed,
    CopyPlace,
    Found,
    QueueRead,
    Record,
    fingerprint,
)
from gateway.domain.backlog import is_beside
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown
from gateway.domain.message import DEAD_LETTER_REASON, Complete, Delivery
from gateway.ports import Broker

PAGE: Final = 100
LOOK: Final = 0.5  # seconds without a message after which a queue may count as empty
LIMIT: Final = 90.0  # seconds for one queue: a lock that was left behind may last a minute
AT_ONCE: Final = 32  # queues


@attrs.frozen(kw_only=True)
class AuditedNamespace:
    """A namespace to audit, and the names of its queues and dead letters in the verdict."""

    broker: Broker
    name: str
    place: CopyPlace
    dead_letters: CopyPlace

    @classmethod
    def primary(cls, broker: Broker) -> "AuditedNamespace":
        """The primary of a pair."""
        return cls(
            broker=broker,
            name="primary",
            place=CopyPlace.PRIMARY,
            dead_letters=CopyPlace.PRIMARY_DEAD_LETTER,
        )

    @classmethod
    def secondary(cls, broker: Broker) -> "AuditedNamespace":
        """The secondary of a pair, whose queues are the backlog."""
        return cls(
            broker=broker,
            name="secondary",
            place=CopyPlace.BACKLOG,
            dead_letters=CopyPlace.BACKLOG_DEAD_LETTER,
        )


async def audit(namespaces: Sequence[AuditedNamespace]) -> list[Record]:
    """
    Receive everything from all queues of these namespaces, except the heartbeats of syphons; return
    the records.

    A queue that can't be read to its end is in the records too, so that the checker doesn't decide
    without it.
    """
    queues = [
        (audited, queue, place) for audited in namespaces for queue, place in await _queues(audited)
    ]
    names = frozenset(_name(audited, queue) for audited, queue, _ in queues)
    records: list[Record] = [AuditBegan(at=trio.current_time(), queues=names)]
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def read(audited: AuditedNamespace, queue: EntityPath, place: CopyPlace) -> None:
        async with limiter:
            records.extend(await _outcome(audited, queue, place))

    async with trio.open_nursery() as nursery:
        for audited, queue, place in queues:
            nursery.start_soon(read, audited, queue, place)
    return records


async def pending(broker: Broker) -> int:
    """
    The number of messages in the queues of that namespace, without those that pairs send for
    themselves.

    Raises:
        OutcomeUnknown: the namespace doesn't report it.
    """
    total = 0
    for info in await broker.list_queues(top=PAGE):
        if is_beside(info.path):
            continue
        if info.active is None:
            raise OutcomeUnknown(f"{info.path} doesn't report its number of messages")
        total += info.active
    return total


def _name(audited: AuditedNamespace, queue: EntityPath) -> str:
    """
    The queue's name in the records: queues of the primary by their own name, as the producers use
    it.
    """
    return queue.key if audited.place is CopyPlace.PRIMARY else f"{audited.name}:{queue.key}"


async def _queues(audited: AuditedNamespace) -> list[tuple[EntityPath, CopyPlace]]:
    paths: list[EntityPath] = []
    while page := await audited.broker.list_queues(skip=len(paths), top=PAGE):
        paths += [info.path for info in page]
    return [
        found
        for path in paths
        if not is_beside(path)
        for found in ((path, audited.place), (path.dead_letter, audited.dead_letters))
    ]


async def _outcome(audited: AuditedNamespace, queue: EntityPath, place: CopyPlace) -> list[Record]:
    """The records of that queue, or a record that its content is unknown."""
    name = _name(audited, queue)
    try:
        with trio.fail_after(LIMIT):
            found = await _read(audited, queue, place)
    except trio.TooSlowError:
        reason = f"the queue isn't empty after {LIMIT:.0f} s"
        return [AuditFailed(at=trio.current_time(), queue=name, reason=reason)]
    except BrokerError as error:
        return [AuditFailed(at=trio.current_time(), queue=name, reason=str(error))]
    return [*found, QueueRead(at=trio.current_time(), queue=name)]


async def _read(audited: AuditedNamespace, queue: EntityPath, place: CopyPlace) -> list[Record]:
    """
    Receive all messages; each is settled before the queue counts as read.

    Receive-and-delete isn't used: if it were interrupted, the audit itself could lose messages.
    """
    records: list[Record] = []
    async with audited.broker.open_receiver(queue) as receiver:
        while True:
            deliveries: Sequence[Delivery] = ()
            with trio.move_on_after(LOOK):
                deliveries = await receiver.receive(PAGE)
            records += [_copy_found(audited, queue, place, delivery) for delivery in deliveries]
            await settle_or_raise(receiver, [(delivery, Complete()) for delivery in deliveries])
            if not deliveries and await _is_empty(audited.broker, queue):
                return records


def _copy_found(
    audited: AuditedNamespace, queue: EntityPath, place: CopyPlace, delivery: Delivery
) -> Found:
    message = delivery.message
    return Found(
        at=trio.current_time(),
        place=place,
        queue=_name(audited, queue),
        message_id=str(message.message_id),
        fingerprint=fingerprint(message) if place is CopyPlace.PRIMARY else None,
        copy=str(delivery.sequence_number),
        reason=str(message.properties.get(DEAD_LETTER_REASON, "")),
    )


async def _is_empty(broker: Broker, queue: EntityPath) -> bool:
    """
    True if the queue has no messages. Locked and scheduled messages can't be received yet: wait for
    them. A queue whose count is unknown at the moment isn't empty.
    """
    info = await broker.inspect(queue.parent)
    if not queue.is_dead_letter:
        return info.active == 0 and not info.locked_here and not info.scheduled
    if info.dead_lettered is None:  # the namespace counts dead letters as a queue's messages
        info = await broker.inspect(queue)
        return info.active == 0 and not info.locked_here
    return info.dead_lettered == 0
