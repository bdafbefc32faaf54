"""What a queue of RabbitMQ is called: in lower case, unless it is there as somebody wrote it."""

import re
from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

MAX_NAME: Final = 255  # bytes
DEAD_LETTER: Final = ":dead-letter"  # no entity's name has a colon
NAME: Final = re.compile(r"[a-zA-Z0-9._/-]+", re.ASCII)


def candidates(entity: EntityPath) -> list[str]:
    """
    The names that a queue may have, the best first.

    Raises:
        InvalidRequest: RabbitMQ has no queue for that.
    """
    if entity.is_transfer_dead_letter or entity.is_subscription:
        raise InvalidRequest(f"{entity}: RabbitMQ has queues and their dead letters only")
    suffix = DEAD_LETTER if entity.is_dead_letter else ""
    parent = entity.parent
    names = [f"{name}{suffix}" for name in dict.fromkeys((parent.name, parent.key))]
    if not NAME.fullmatch(parent.name) or len(names[0]) > MAX_NAME:
        raise InvalidRequest(
            f"{entity}: letters, digits, '.', '-', '_' and '/' expected, {MAX_NAME} at most"
        )
    return names


def name_to_make(entity: EntityPath) -> str:
    """The name of a queue that is to be made: all who ask find it, in whichever case."""
    return candidates(entity)[-1]
