"""Names of queues in RabbitMQ: in lower case, unless the queue exists in another spelling."""

import re
from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

MAX_NAME: Final = 255  # bytes of a short string
DEAD_LETTER: Final = ":dead-letter"  # can't clash: names of entities contain no colon
NAME: Final = re.compile(r"[a-zA-Z0-9._~/-]+", re.ASCII)


def candidates(entity: EntityPath) -> list[str]:
    """
    The names that the queue may have in RabbitMQ, the preferred one first.

    Raises:
        InvalidRequest: RabbitMQ has no such queues, or the name isn't valid.
    """
    if entity.is_transfer_dead_letter or entity.is_subscription:
        raise InvalidRequest(
            f"{entity}: RabbitMQ has no topics: the name of a queue or of its dead letters expected"
        )
    suffix = DEAD_LETTER if entity.is_dead_letter else ""
    parent = entity.parent
    names = [f"{name}{suffix}" for name in dict.fromkeys((parent.name, parent.key))]
    if not NAME.fullmatch(parent.name) or len(names[0]) > MAX_NAME:
        raise InvalidRequest(
            f"{entity}: letters, digits, '.', '-', '_', '~' and '/' expected, {MAX_NAME} at most"
        )
    return names


def name_to_make(entity: EntityPath) -> str:
    """The name for a queue to create, which is found by any spelling."""
    return candidates(entity)[-1]
