"""
What a queue's metadata says of its gets: `defaulttimeout`, for how many seconds a message is
hidden where a get doesn't say it, and `poisonthreshold`, how often one may be taken.
"""

import functools
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from gateway.domain.poison import SUFFIX, Terms, TermsOf
from gateway.frontends.storage_notes import read_notes
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_queue_errors import StorageRefusal
from gateway.wire.storage_queue_fields import MAX_NAME

DEFAULT_TIMEOUT: Final = "defaulttimeout"
POISON_THRESHOLD: Final = "poisonthreshold"
MOST: Final[Mapping[str, int]] = {
    DEFAULT_TIMEOUT: storage.MAX_VISIBILITY,
    POISON_THRESHOLD: 2**31 - 1,
}
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_KNOWN_TEXTS: Final = 1000  # what many queues say is read once


def check_settings(queue: str, metadata: Mapping[str, str]) -> None:
    """
    Raises:
        StorageRefusal: InvalidMetadata, which names the key and the limit.
    """
    for key, value in metadata.items():
        most = MOST.get(key.lower())
        if most is not None and _number(value, most) is None:
            raise StorageRefusal(
                "InvalidMetadata", f"{key}: a number from 1 to {most} is expected."
            )
        longest = MAX_NAME - len(SUFFIX)
        if key.lower() == POISON_THRESHOLD and len(queue) > longest:
            raise StorageRefusal(
                "InvalidMetadata",
                f"{key}: for the name of {queue}{SUFFIX} the queue's has at most {longest}"
                " characters.",
            )


def terms_for(visibility: int | None) -> TermsOf:
    """The terms of one get, which may say itself for how many seconds it hides messages."""

    def terms_of(user_metadata: str | None) -> Terms:
        default, poison_after = _settings(user_metadata)
        return Terms(hidden=timedelta(seconds=visibility or default), poison_after=poison_after)

    return terms_of


@functools.lru_cache(maxsize=_KNOWN_TEXTS)
def _settings(user_metadata: str | None) -> tuple[int, int | None]:
    """Both settings. What is no such number came by another way than this service: no setting."""
    found: dict[str, int | None] = {}
    for key, value in read_notes(user_metadata).metadata.items():
        if (most := MOST.get(key.lower())) is not None:
            found[key.lower()] = _number(value, most)
    return found.get(DEFAULT_TIMEOUT) or storage.DEFAULT_VISIBILITY, found.get(POISON_THRESHOLD)


def _number(text: str, most: int) -> int | None:
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) and 1 <= int(text) <= most else None
