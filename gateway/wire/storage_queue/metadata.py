"""
Pairgate's settings in the metadata of a queue that it creates: the service has no such settings.

    pairgate_lock_seconds         how long a receiver hides messages that it received
    pairgate_max_delivery_count   messages with more deliveries go to the queue's poison queue
    pairgate_user_metadata        in Base64, without the metadata that headers can express

Every other name is metadata that a Storage client has set, here or at the service itself. A queue
without these settings locks for a minute, and has no delivery limit. All queues are as large as a
queue of Service Bus can be.
"""

import base64
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import attrs

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.domain.storage_queue import poison
from gateway.wire.storage_queue.fields import is_metadata
from gateway.wire.storage_queue.notes import read_notes, write_notes
from gateway.wire.storage_queue.operations import MAX_VISIBILITY

UNLIMITED: Final = poison.UNLIMITED.max_delivery_count  # the legacy client's value
_LARGEST: Final = poison.UNLIMITED.max_size_in_megabytes  # as an account has no size of a queue
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
