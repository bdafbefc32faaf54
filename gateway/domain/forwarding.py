"""Where a queue's messages go when it forwards them to another one."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.contents import TooManyHops
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound
from gateway.domain.stored import Now, Row

if TYPE_CHECKING:
    from gateway.domain.queue import Queue

MAX_HOPS: Final = 4  # from one queue to the next; more is taken for a circle


@attrs.frozen
class Forward:
    """`Onward` to a queue or topic, which is looked up each time: it may come and go."""

    _target: EntityPath
    _find: "Callable[[str], Queue | None]"
    to_sender: bool = attrs.field(default=False, init=False)

    def targets(self, row: Row, hops: int, now: Now) -> "Sequence[Queue]":
        """
        Raises:
            TooManyHops, EntityNotFound, EntityDisabled, MessageTooLarge, QuotaExceeded:
                the target doesn't take it.
        """
        if hops > MAX_HOPS:
            raise TooManyHops(f"{self._target}: forwarded {MAX_HOPS} times already")
        queue = self._find(self._target.key)
        if queue is None:
            raise EntityNotFound(f"there is no {self._target} to forward to")
        queue.intake.check_sendable()
        queue.intake.check_size(row.size)
        queue.intake.check_quota(row.size)
        return [queue]


def leads_to(start: str, goal: str, next_of: Callable[[str], Iterable[str]]) -> bool:
    """Whether what comes to `start` may come to `goal`, each named by its key."""
    seen, ahead = {start}, [start]
    while ahead:
        if (key := ahead.pop()) == goal:
            return True
        found = set(next_of(key)) - seen
        seen |= found
        ahead += found
    return False
