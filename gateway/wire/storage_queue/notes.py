"""
Metadata and access policies of a Storage queue as one text, which every namespace keeps with a
queue as its user metadata.

    {"storage-queue": {"metadata": {"team": "blue"}, "policies": [{"id": "p", ...}]}, "text": ...}

`text` is the user metadata that the queue had before.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cattrs

from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.fields import is_metadata

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
