"""
The owner of a backlog: the primary that it was made for.

The first backlog queue names the owner in its user metadata. Where a namespace stores no user
metadata, an empty queue beside it has the owner's fingerprint in its name. With this note `check`,
`serve` and `provision` detect that two pairs use the same label.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import attrs

from gateway.capabilities import Updates
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
    PreconditionFailed,
)
from gateway.domain.identity import FINGERPRINT
from gateway.offering import offered
from gateway.ports import Broker

_NOTE: Final = "pairgate"
_MOST_NAME: Final = 200  # characters of a note


@attrs.frozen(kw_only=True)
class Owner:
    """The primary that a backlog was made for."""

    fingerprint: str
    name: str = ""  # its identity or address, for people; empty: not stored

    def __str__(self) -> str:
        return f"{self.name or 'another primary'} (fingerprint {self.fingerprint})"


def note_of(owner: Owner) -> str:
    """The user metadata that names the owner."""
    return json.dumps({_NOTE: {"primary": owner.fingerprint, "name": owner.name[:_MOST_NAME]}})


def owner_in(user_metadata: str | None) -> Owner | None:
    """The owner that the user metadata names; None: the text is another user's, or empty."""
    try:
        found: Any = json.loads(user_metadata or "")[_NOTE]
        owner = Owner(fingerprint=found["primary"], name=str(found.get("name", "")))
        return owner if FINGERPRINT.fullmatch(owner.fingerprint) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


async def owners_of(secondary: Broker, label: str) -> list[Owner]:
    """
    The primaries that the backlog of that label names as owners; empty: none, or not readable.

    Raises:
        BrokerError: the secondary doesn't answer.
    """
    with suppress(EntityNotFound, NotAuthorized, NotSupported):
        info = await secondary.inspect(backlog.queue_name(label, 0))
        if (owner := owner_in(info.properties.user_metadata)) is not None:
            return [owner]
    with suppress(NotAuthorized, NotSupported):
        prefix = backlog.marker_prefix(label)
        marks = [
            info.path.name[len(prefix) :] for info in await secondary.list_queues(prefix, top=10)
        ]
        return [Owner(fingerprint=mark) for mark in marks if FINGERPRINT.fullmatch(mark)]
    return []


async def record_owner(
    secondary: Broker, label: str, owner: Owner, *, instead_of: Collection[str] = ()
) -> None:
    """
    Write the owner to the backlog of that label.

    The note of another owner is kept, unless its fingerprint is among `instead_of`, and so is a
    user's own text. Needs the Manage right.

    Raises:
        BrokerError: the note could not be written.
    """
    first = backlog.queue_name(label, 0)
    if (updates := offered(secondary, Updates)) is not None:
        with suppress(NotSupported):
            await _note_on(updates, await secondary.inspect(first), owner, instead_of)
            return
    for fingerprint in {*instead_of} - {owner.fingerprint}:
        with suppress(EntityNotFound, NotSupported):
            await secondary.delete_queue(_marker(label, fingerprint))
    with suppress(EntityExists, NotSupported):
        await secondary.create_queue(_marker(label, owner.fingerprint), backlog.QUEUE_PROPERTIES)


def _marker(label: str, fingerprint: str) -> EntityPath:
    return EntityPath(f"{backlog.marker_prefix(label)}{fingerprint}")


async def _note_on(
    secondary: Updates, info: EntityInfo, owner: Owner, instead_of: Collection[str]
) -> None:
    text = info.properties.user_metadata
    noted = owner_in(text)
    is_free = not text if noted is None else noted.fingerprint in instead_of
    if text == note_of(owner) or not is_free:
        return
    changed = attrs.evolve(info.properties, user_metadata=note_of(owner))
    with suppress(PreconditionFailed):  # another process was faster: the next check sees its note
        await secondary.update_queue(info.path, changed, if_version=info.version)
