"""
Receive settings in a queue's metadata: `defaulttimeout`, the seconds for which a get hides messages
if it names no time itself, and `poisonthreshold`, the number of times that a message may be
received.
"""

import functools
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from gateway.domain.storage_queue import POISON_SUFFIX, Terms, TermsOf
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.fields import MAX_NAME
from gateway.wire.storage_queue.metadata import read_notes

DEFAULT_TIMEOUT: Final = "defaulttimeout"
POISON_THRESHOLD: Final = "poisonthreshold"
MOST: Final[Mapping[str, int]] = {
    DEFAULT_TIMEOUT: storage.MAX_VISIBILITY,
    POISON_THRESHOLD: 2**31 - 1,
}
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_KNOWN_TEXTS: Final = 1000  # many queues have the same metadata, which is parsed once


def check_settings(queue: str, metadata: Mapping[str, str]) -> None:
    """
    Check that both settings are valid.

    Raises:
        StorageRefusal: InvalidMetadata, with the key and its limit.
    """
    for key, value in metadata.items():
        most = MOST.get(key.lower())
        if most is not None and _number(value, most) is None:
            raise StorageRefusal(
                "InvalidMetadata", f"{key}: a number from 1 to {most} is expected."
            )
        longest = MAX_NAME - len(POISON_SUFFIX)
        if key.lower() == POISON_THRESHOLD and len(queue) > longest:
            raise StorageRefusal(
                "InvalidMetadata",
                f"{key}: the queue name must leave room for {queue}{POISON_SUFFIX}:"
                f" at most {longest} characters.",
            )


def terms_for(visibility: int | None) -> TermsOf:
    """The terms of one get; `visibility` is the get's own number of seconds, if it has one."""

    def terms_of(user_metadata: str | None) -> Terms:
        default, poison_after = _settings(user_metadata)
        return Terms(hidden=timedelta(seconds=visibility or default), poison_after=poison_after)

    return terms_of


@functools.lru_cache(maxsize=_KNOWN_TEXTS)
def _settings(user_metadata: str | None) -> tuple[int, int | None]:
    """
    Both settings. A value that isn't a valid number wasn't set through this service and is ignored.
    """
    found: dict[str, int | None] = {}
    for key, value in read_notes(user_metadata).metadata.items():
        if (most := MOST.get(key.lower())) is not None:
            found[key.lower()] = _number(value, most)
    return found.get(DEFAULT_TIMEOUT) or storage.DEFAULT_VISIBILITY, found.get(POISON_THRESHOLD)


def _number(text: str, most: int) -> int | None:
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) and 1 <= int(text) <= most else None
