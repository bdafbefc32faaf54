"""Autoforwarding: finds the queue or topic that another entity's messages are forwarded to."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound
from gateway.store.engine.queue_content import Copy, TooManyHops
from gateway.store.engine.records import Row

if TYPE_CHECKING:
    from gateway.store.engine.queue import Queue

MAX_HOPS: Final = 4  # forwards in a row; a longer chain counts as a circle


@attrs.frozen
class Forward:
    """
    `Onward` to a queue or topic. It is looked up for each message, since it may be created or
    deleted at any time.

    An entity may name itself, and a subscription its own topic. Service Bus forwards such a message
    four times; here it is refused at once (`TooManyHops`), because a topic would multiply it.
    """

    _target: EntityPath
    _find: "Callable[[str], Queue | None]"
    _comes_back: bool = False
    to_sender: bool = attrs.field(default=False, init=False)

    def copies(self, row: Row, hops: int, now: Now) -> Sequence[Copy]:
        """
        The queue that gets the message, with the message; the queue was checked, and accepts it.

        Raises:
            TooManyHops, EntityNotFound, EntityDisabled, MessageTooLarge, QuotaExceeded: the target
                refuses the message.
        """
        if self._comes_back:
            raise TooManyHops(f"{self._target}: the message would come back")
        if hops > MAX_HOPS:
            raise TooManyHops(
                f"{self._target}: the message was forwarded {MAX_HOPS} times already, the most"
                " allowed"
            )
        queue = self._find(self._target.key)
        if queue is None:
            raise EntityNotFound(f"{self._target}: no such queue or topic to forward to")
        queue.enqueue.check_sendable()
        queue.sweep(now)  # earlier due messages come first, and expired ones free their room
        queue.enqueue.check_size(row.size)
        queue.enqueue.check_quota(row.size, now)
        queue.entity.touch(now)
        return [(queue, row)]

    def free_room(self, now: Now) -> None:
        """Do nothing: the target has a quota of its own."""


def leads_to(start: str, goal: str, next_of: Callable[[str], Iterable[str]]) -> bool:
    """
    True if messages that are forwarded from `start` may reach `goal`; both are keys of entities.
    """
    seen, ahead = {start}, [start]
    while ahead:
        if (key := ahead.pop()) == goal:
            return True
        found = set(next_of(key)) - seen
        seen |= found
        ahead += found
    return False
