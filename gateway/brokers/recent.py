"""The numbers of the messages that were sent of late, by their ids: in memory, and not for long."""

from collections.abc import Iterable
from typing import Any, Final

import attrs

MOST: Final = 100_000  # messages, of one namespace
_LONGEST: Final = 128  # characters of an id that is remembered


@attrs.define(eq=False)
class Recent:
    """Who asks by an id gets the number that the message was given when it was sent last."""

    most: int = MOST
    _numbers: dict[tuple[str, str], int] = attrs.field(factory=dict)

    def note(self, queue: str, sent: Iterable[tuple[Any, int]]) -> None:
        """Remember these ids and numbers, of a queue by its key."""
        for message_id, number in sent:
            if isinstance(message_id, str) and len(message_id) <= _LONGEST:
                self._numbers[queue, message_id] = number
        while len(self._numbers) > self.most:
            del self._numbers[next(iter(self._numbers))]

    def number_of(self, queue: str, message_id: str) -> int | None:
        return self._numbers.get((queue, message_id))
