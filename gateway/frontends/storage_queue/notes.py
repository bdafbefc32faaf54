"""
Keeps the metadata and access policies of a Storage queue in the queue's user metadata, as
`wire.storage_queue.notes` writes them. The service properties, which belong to no queue, are stored
with a queue of a reserved name.
"""

from typing import Any, Final

import attrs
import trio

from gateway.capabilities import Updates
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityExists,
    EntityNotFound,
    NotSupported,
    PreconditionFailed,
    Unavailable,
)
from gateway.offering import required
from gateway.ports import Broker
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.metadata import Notes, read_notes, write_notes

PATIENCE: Final = 1.0  # seconds that a namespace has for its answer
# The same, as long as no answer is known: doubled with each one that came too late, up to this.
MOST_PATIENCE: Final = 4.0  # less than the shortest try of a request
MOST_REMEMBERED: Final = 1000  # queues
SETTINGS: Final = EntityPath("x-pairgate/storage-queue")
_TRIES: Final = 10  # tries of an update that concurrent updates interfere with


def notes_of(info: EntityInfo) -> Notes:
    return read_notes(info.properties.user_metadata)


@attrs.define(eq=False)
class LastNotes:
    """
    Reads notes, and returns the last known ones in an outage: authorization and CORS mustn't depend
    on the primary while it is unavailable.
    """

    _broker: Broker
    _last: Bounded[str, Notes] = attrs.field(factory=lambda: Bounded(MOST_REMEMBERED, renews=True))
    _patience: Bounded[str, float] = attrs.field(factory=lambda: Bounded(MOST_REMEMBERED))

    async def read(self, queue: EntityPath) -> Notes:
        """
        The notes of that queue; empty if the queue doesn't exist.

        Raises:
            BrokerError: the namespace is unavailable and the notes were never read, or it refuses
                the request.
        """
        patience = PATIENCE if queue.key in self._last else self._patience.get(queue.key, PATIENCE)
        problem: BrokerError = Unavailable(f"the access policies of {queue} can't be read")
        try:
            with trio.move_on_after(patience):
                return self._noted(queue, notes_of(await self._broker.inspect(queue)))
            self._patience[queue.key] = min(2 * patience, MOST_PATIENCE)
        except EntityNotFound:
            return self._noted(queue, Notes())
        except BrokerError as error:
            if not error.counts_as_outage and not isinstance(error, Busy):
                raise
            # A read changes nothing, so an unknown outcome is a failure like any other.
            problem = error if isinstance(error, Busy) else Unavailable(str(error))
        if queue.key in self._last:
            return self._last[queue.key]
        raise problem

    def _noted(self, queue: EntityPath, notes: Notes) -> Notes:
        self._last[queue.key] = notes
        return notes


async def change_notes(broker: Broker, queue: EntityPath, **changes: Any) -> None:
    """
    Return once the changes are durable in the queue's notes.

    Raises:
        NotSupported: this namespace's queues can't be updated.
        PreconditionFailed: concurrent updates interfered with every try.
        BrokerError: as `Updates.update_queue`.
    """
    updates = required(broker, Updates)
    problem: BrokerError | None = None
    for _ in range(_TRIES):
        info = await broker.inspect(queue)
        text = write_notes(attrs.evolve(notes_of(info), **changes))
        properties = attrs.evolve(info.properties, user_metadata=text)
        try:
            await _update(updates, info, properties)
        except PreconditionFailed as error:
            problem = error
        else:
            return
    assert problem is not None
    raise problem


async def _update(updates: Updates, info: EntityInfo, properties: QueueProperties) -> None:
    try:
        await updates.update_queue(info.path, properties, if_version=info.version)
    except NotSupported:  # queues without versions: the last writer wins, as in the service itself
        await updates.update_queue(info.path, properties)


async def read_service_properties(broker: Broker) -> storage.ServiceProperties:
    """
    The service properties that were set, and defaults for all others.

    Raises:
        BrokerError: as `Broker.inspect`.
    """
    try:
        notes = notes_of(await broker.inspect(SETTINGS))
    except EntityNotFound:
        return storage.DEFAULT_PROPERTIES
    return (notes.properties or storage.DEFAULT_PROPERTIES).over(storage.DEFAULT_PROPERTIES)


async def change_service_properties(broker: Broker, wish: storage.ServiceProperties) -> None:
    """
    Return once the properties are durable.

    Raises:
        BrokerError: as `change_notes`, or as `Broker.create_queue` the first time.
    """
    new = wish.over(await read_service_properties(broker))
    try:
        await change_notes(broker, SETTINGS, properties=new)
    except EntityNotFound:
        try:
            await _create_settings(broker, write_notes(Notes(properties=new)))
        except EntityExists:  # another client was faster
            await change_notes(broker, SETTINGS, properties=new)


async def _create_settings(broker: Broker, text: str | None) -> None:
    properties = QueueProperties(user_metadata=text)
    try:
        await broker.create_queue(SETTINGS, attrs.evolve(properties, status=EntityStatus.DISABLED))
    except NotSupported:  # a storage account's queues are never disabled
        await broker.create_queue(SETTINGS, properties)
