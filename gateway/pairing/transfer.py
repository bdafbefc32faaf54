"""What a syphon has in hand, how fast it may move it, and what it must not send twice."""

from collections import OrderedDict
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.envelope import Unwrapped
from gateway.domain.message import Delivery

MAX_TRANSFERRED: Final = 100_000

Copy = tuple[str, int, str]
"""One copy on the backlog: queue, sequence number, attempt or message id."""


@attrs.define(eq=False, kw_only=True)
class Cargo:
    """One backlog message in hand, opened. Its delivery changes when the lock is renewed."""

    copy: Copy
    delivery: Delivery
    unwrapped: Unwrapped


@attrs.define(eq=False)
class Transferred:
    """
    Copies that the primary has, but whose completion on the backlog isn't confirmed.

    When one is seen again it is completed instead of sent again. Bounded: the oldest is forgotten,
    which costs a duplicate, never a message.
    """

    _copies: OrderedDict[Copy, None] = attrs.field(factory=OrderedDict, init=False)

    def remember(self, copy: Copy) -> None:
        self._copies[copy] = None
        if len(self._copies) > MAX_TRANSFERRED:
            self._copies.popitem(last=False)

    def forget(self, copy: Copy) -> None:
        self._copies.pop(copy, None)

    def __contains__(self, copy: Copy) -> bool:
        return copy in self._copies


@attrs.define(eq=False)
class Progress:
    """For how long a syphon's drains have moved nothing, and the pace that they share."""

    rate: float | None  # messages/s
    began: float = attrs.field(factory=trio.current_time)  # the life of that syphon
    _last_move: float = attrs.field(default=-inf, init=False)
    _waiting_since: float = attrs.field(default=-inf, init=False)
    _free_at: float = attrs.field(default=0.0, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def note(self) -> None:
        """Something moves, or there is nothing to move."""
        self._last_move = trio.current_time()

    def note_waiting(self) -> float:
        """
        A look has seen messages that wait; return for how many seconds they have, without a move.

        What the first look after a move sees may have come a moment before it.
        """
        now = trio.current_time()
        if self._last_move >= self._waiting_since:
            self._waiting_since = now
        return now - self._waiting_since

    async def pace(self) -> None:
        """Return when the largest rate lets more messages go; `spend` must follow at once."""
        async with self._turn:  # one after the other, as each changes the time for the next
            await trio.sleep_until(self._free_at)

    def at_once(self, messages: int) -> int:
        """How many of these may go together: no more than a second's worth."""
        return messages if self.rate is None else max(1, min(messages, int(self.rate)))

    def spend(self, messages: int) -> None:
        """So many go now."""
        if self.rate is not None:
            self._free_at = max(self._free_at, trio.current_time()) + messages / self.rate
