"""
Pairgate's settings in the metadata of a queue that it creates: the service has no such settings.

    pairgate_lock_seconds         how long a receiver hides messages that it received
    pairgate_max_delivery_count   messages with more deliveries go to the queue's poison queue
    pairgate_user_metadata        in Base64, without the metadata that headers can express

Every other name is metadata that a Storage client has set, here or at the service itself. A queue
without these settings locks for a minute, and has no delivery limit. All queues are as large as a
queue of Service Bus can be.

A Storage queue's metadata and access policies are one text, which every namespace keeps with a
queue as its user metadata:

    {"storage-queue": {"metadata": {"team": "blue"}, "policies": [{"id": "p", ...}]}, "text": ...}

`text` is the user metadata that the queue had before.
"""

import base64
import json
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import attrs
import cattrs

from gateway.domain import storage_queue
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.fields import is_metadata
from gateway.wire.storage_queue.operations import MAX_VISIBILITY

_KEY: Final = "storage-queue"
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


UNLIMITED: Final = storage_queue.UNLIMITED.max_delivery_count  # the legacy client's value
_LARGEST: Final = (
    storage_queue.UNLIMITED.max_size_in_megabytes
)  # as an account has no size of a queue
KEEPS: Final = frozenset({"lock_duration", "max_delivery_count", "user_metadata"})
_OWN: Final = "pairgate_"
_LOCK: Final = "pairgate_lock_seconds"
_DELIVERIES: Final = "pairgate_max_delivery_count"
_USER: Final = "pairgate_user_metadata"


def build_metadata(properties: QueueProperties) -> dict[str, str]:
    """
    Return the metadata that holds the properties of `KEEPS`.

    Raises:
        InvalidRequest: names the property and the limit.
    """
    lock = math.ceil(properties.lock_duration.total_seconds())
    if not 1 <= lock <= MAX_VISIBILITY:
        raise InvalidRequest(f"lock_duration: 1 to {MAX_VISIBILITY} seconds expected, got {lock}")
    notes = read_notes(properties.user_metadata)
    for name in notes.metadata:
        if name.lower().startswith(_OWN):
            raise InvalidRequest(f"metadata {name}: names that begin with {_OWN} are reserved")
    native = {name: value for name, value in notes.metadata.items() if value.isascii()}
    metadata = {**native, _LOCK: str(lock)}
    if properties.max_delivery_count < UNLIMITED:
        metadata[_DELIVERIES] = str(properties.max_delivery_count)
    others = {name: value for name, value in notes.metadata.items() if name not in native}
    rest = write_notes(attrs.evolve(notes, metadata=others))
    if rest is not None:
        metadata[_USER] = base64.b64encode(rest.encode()).decode()
    return metadata


def parse_metadata(metadata: Mapping[str, str]) -> QueueProperties:
    """
    The reverse of `build_metadata`. Ignores the case of names, and metadata that can't be read.
    """
    values = {name.lower(): value for name, value in metadata.items()}
    others = {
        name: value
        for name, value in metadata.items()
        if not name.lower().startswith(_OWN) and is_metadata(name, value)
    }
    notes = read_notes(_text(values.get(_USER)))
    lock = _number(values.get(_LOCK), MAX_VISIBILITY)
    return QueueProperties(
        lock_duration=QueueProperties().lock_duration if lock is None else timedelta(seconds=lock),
        max_delivery_count=_number(values.get(_DELIVERIES), UNLIMITED) or UNLIMITED,
        max_size_in_megabytes=_LARGEST,
        user_metadata=write_notes(attrs.evolve(notes, metadata={**notes.metadata, **others})),
    )


def _number(text: str | None, most: int) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    return int(text) if 1 <= int(text) <= most else None


def _text(encoded: str | None) -> str | None:
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return None
