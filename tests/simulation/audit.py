"""Reads every queue of both namespaces, live and dead: the evidence of a run."""

from collections.abc import Mapping
from typing import Final

import trio

from gateway.checker.operations import AuditBegan, CopyPlace, Found, QueueRead, Record, fingerprint
from gateway.domain.entity import EntityPath
from gateway.domain.message import DEAD_LETTER_REASON
from gateway.store.local.broker import LocalBroker
from tests.simulation.names import Names

PLACES: Final = {
    "primary": (CopyPlace.PRIMARY, CopyPlace.PRIMARY_DEAD_LETTER),
    "secondary": (CopyPlace.BACKLOG, CopyPlace.BACKLOG_DEAD_LETTER),
}
MOST: Final = 10_000  # messages of one queue


async def left(store: LocalBroker) -> int:
    """Return the number of messages that can be peeked in all queues of the store."""
    await trio.lowlevel.checkpoint()
    queues = await store.list_queues()
    return sum([len(await store.peek(queue.path, limit=MOST)) for queue in queues])


async def audit(stores: Mapping[str, LocalBroker], records: list[Record], names: Names) -> None:
    """Append what is there now, queue by queue."""
    await trio.lowlevel.checkpoint()
    plan: list[tuple[LocalBroker, EntityPath, CopyPlace]] = []
    for name, (live, dead) in PLACES.items():
        for info in await stores[name].list_queues():
            plan += [(stores[name], info.path, live), (stores[name], info.path.dead_letter, dead)]
    queues = frozenset(path.key for _, path, _ in plan)
    records.append(AuditBegan(at=trio.current_time(), queues=queues))
    for store, path, place in plan:
        records.extend(await _read(store, path, place, names))


async def _read(
    store: LocalBroker, path: EntityPath, place: CopyPlace, names: Names
) -> list[Record]:
    now = trio.current_time()
    found: list[Record] = []
    for delivery in await store.peek(path, limit=MOST):
        message = delivery.message
        whole = fingerprint(names.read(message)) if place is CopyPlace.PRIMARY else None
        found.append(
            Found(
                at=now,
                place=place,
                queue=path.key,
                message_id=names.of(message),
                fingerprint=whole,
                copy=str(delivery.sequence_number),
                reason=str(message.properties.get(DEAD_LETTER_REASON, "")),
            )
        )
    return [*found, QueueRead(at=now, queue=path.key)]
