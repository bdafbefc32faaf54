"""
Metadata and access policies of a Storage queue, for which other namespaces have no place. They are
stored as JSON in the queue's user metadata, which every namespace keeps.

    {"storage-queue": {"metadata": {"team": "blue"}, "policies": [{"id": "p", ...}]}, "text": ...}

`text` is the user metadata that was there before. The service properties, which belong to no queue,
are stored with a queue of a reserved name.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cattrs
import trio

from gateway.capabilities import Updates
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityExists,
    EntityNotFound,
    PreconditionFailed,
    Unavailable,
)
from gateway.offering import required
from gateway.ports import Broker
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.fields import is_metadata

PATIENCE: Final = 1.0  # seconds that a namespace has to say what is allowed
MOST_REMEMBERED: Final = 1000  # queues
SETTINGS: Final = EntityPath("x-pairgate/storage-queue")
_KEY: Final = "storage-queue"
_TRIES: Final = 10  # of an update that concurrent updates interfere with
_CONVERTER: Final = cattrs.Converter(omit_if_default=True)


@attrs.frozen(kw_only=True)
class Notes:
    """The notes of one queue."""

    metadata: Mapping[str, str] = attrs.field(factory=dict)
    policies: tuple[storage.StoredPolicy, ...] = ()
    properties: storage.ServiceProperties | None = None  # of the account
    text: str | None = None  # user metadata that isn't ours


def read_notes(user_metadata: str | None) -> Notes:
    """The notes in the user metadata; a text of another origin is kept as `text`."""
    try:
        found: Any = json.loads(user_metadata or "{}")
        own = found[_KEY] if isinstance(found, dict) and _KEY in found else None
        notes = None if own is None else _CONVERTER.structure(own, Notes)
    except (ValueError, TypeError, KeyError, RecursionError, cattrs.BaseValidationError):
        return Notes(text=user_metadata)
    if notes is None or not all(is_metadata(*each) for each in notes.metadata.items()):
        return Notes(text=user_metadata or None)
    text = found.get("text")
    return attrs.evolve(notes, text=text if isinstance(text, str) else None)


def write_notes(notes: Notes) -> str | None:
    """The user metadata for these notes; None if they are empty."""
    own = _CONVERTER.unstructure(attrs.evolve(notes, text=None))
    if not own:
        return notes.text
    whole = {_KEY: own} if notes.text is None else {_KEY: own, "text": notes.text}
    return json.dumps(whole, separators=(",", ":"))


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

    async def read(self, queue: EntityPath) -> Notes:
        """
        The notes of that queue; empty if there is no such queue.

        Raises:
            BrokerError: the namespace is unavailable and the notes were never read, or it refuses
                the request.
        """
        await trio.lowlevel.checkpoint()
        problem: BrokerError = Unavailable(f"the access policies of {queue} can't be read")
        try:
            with trio.move_on_after(PATIENCE):
                return self._noted(queue, notes_of(await self._broker.inspect(queue)))
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
            await updates.update_queue(queue, properties, if_version=info.version)
        except PreconditionFailed as error:
            problem = error
        else:
            return
    assert problem is not None
    raise problem


async def read_service_properties(broker: Broker) -> storage.ServiceProperties:
    """
    The service properties that were set, and defaults for all others.

    Raises:
        BrokerError: as `Broker.inspect`.
    """
    await trio.lowlevel.checkpoint()
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
        disabled = QueueProperties(
            status=EntityStatus.DISABLED, user_metadata=write_notes(Notes(properties=new))
        )
        try:
            await broker.create_queue(SETTINGS, disabled)
        except EntityExists:  # another client was faster
            await change_notes(broker, SETTINGS, properties=new)
