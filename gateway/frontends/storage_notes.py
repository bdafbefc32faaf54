"""
What the Queue service keeps of a queue and namespaces have no place for: its metadata and access
control list. They stand as JSON in the queue's user metadata, which any namespace keeps.

    {"storage-queue": {"metadata": {"team": "blue"}, "policies": [{"id": "p", ...}]}, "text": ...}

`text` is what stood there before. The service properties, which are of no queue, are the notes of
a queue that nobody uses.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cattrs
import trio

from gateway.capabilities import Updates
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
from gateway.ports import Broker
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_queue_fields import is_metadata

PATIENCE: Final = 1.0  # seconds for a namespace to tell what is allowed
MOST_REMEMBERED: Final = 1000  # queues
SETTINGS: Final = EntityPath("x-pairgate/storage-queue")
_KEY: Final = "storage-queue"
_TRIES: Final = 10  # of a change that others' changes come in between
_CONVERTER: Final = cattrs.Converter(omit_if_default=True)


@attrs.frozen(kw_only=True)
class Notes:
    """All that is kept with one queue."""

    metadata: Mapping[str, str] = attrs.field(factory=dict)
    policies: tuple[storage.StoredPolicy, ...] = ()
    properties: storage.ServiceProperties | None = None  # of the account
    text: str | None = None  # somebody else's


def read_notes(user_metadata: str | None) -> Notes:
    """What is kept; a text that isn't ours is somebody else's."""
    try:
        found: Any = json.loads(user_metadata or "{}")
        own = found[_KEY] if isinstance(found, dict) and _KEY in found else None
        notes = None if own is None else _CONVERTER.structure(own, Notes)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError):
        return Notes(text=user_metadata)
    if notes is None or not all(is_metadata(*each) for each in notes.metadata.items()):
        return Notes(text=user_metadata or None)
    text = found.get("text")
    return attrs.evolve(notes, text=text if isinstance(text, str) else None)


def write_notes(notes: Notes) -> str | None:
    """The reverse; None where there is nothing to keep."""
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
    What the notes say, and in an outage what they said last: who may send, and from which pages,
    mustn't depend on the primary when it's away.
    """

    _broker: Broker
    _last: dict[str, Notes] = attrs.field(factory=dict)

    async def read(self, queue: EntityPath) -> Notes:
        """
        The notes of that queue; none of one that isn't there.

        Raises:
            BrokerError: the namespace is away, and was so ever since; or refuses to tell.
        """
        await trio.lowlevel.checkpoint()
        problem: BrokerError = Unavailable(f"nobody tells what {queue} allows")
        try:
            with trio.move_on_after(PATIENCE):
                return self._noted(queue, notes_of(await self._broker.inspect(queue)))
        except EntityNotFound:
            return self._noted(queue, Notes())
        except BrokerError as error:
            if not error.counts_as_outage and not isinstance(error, Busy):
                raise
            # Whoever only reads has done nothing, even where nobody knows how that ended.
            problem = error if isinstance(error, Busy) else Unavailable(str(error))
        if queue.key in self._last:
            return self._last[queue.key]
        raise problem

    def _noted(self, queue: EntityPath, notes: Notes) -> Notes:
        self._last.pop(queue.key, None)
        self._last[queue.key] = notes
        if len(self._last) > MOST_REMEMBERED:
            del self._last[next(iter(self._last))]
        return notes


async def change_notes(broker: Broker, queue: EntityPath, **changes: Any) -> None:
    """
    Return once the queue's notes say that, durably.

    Raises:
        NotSupported: this namespace's queues can't be changed.
        PreconditionFailed: others change the queue all the time.
        BrokerError: as `Updates.update_queue`.
    """
    if not isinstance(broker, Updates):
        raise NotSupported("the queues of this namespace can't be changed")
    problem: BrokerError | None = None
    for _ in range(_TRIES):
        info = await broker.inspect(queue)
        text = write_notes(attrs.evolve(notes_of(info), **changes))
        properties = attrs.evolve(info.properties, user_metadata=text)
        try:
            await broker.update_queue(queue, properties, if_version=info.version)
        except PreconditionFailed as error:
            problem = error
        else:
            return
    assert problem is not None
    raise problem


async def read_service_properties(broker: Broker) -> storage.ServiceProperties:
    """
    Those that were set, and the service's own for the rest.

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
    Return once they are set, durably.

    Raises:
        BrokerError: as `change_notes`, or `Broker.create_queue` for the first time.
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
        except EntityExists:  # somebody was faster
            await change_notes(broker, SETTINGS, properties=new)
