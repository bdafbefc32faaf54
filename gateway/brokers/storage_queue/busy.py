"""The pauses that clients of a busy queue should make, where the service doesn't say them."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.errors import Busy

_MOST: Final = 10_000  # queues
_ROW_ENDS: Final = 60.0  # seconds after a pause: the next refusal is the first of a new row


@attrs.define(eq=False)
class _BusyQueue:
    count: int = 0  # of pauses, each longer than the one before it
    until: float = 0.0  # the end of the last one, by Trio's clock


@attrs.define(eq=False, kw_only=True)
class BusyRows:
    """Pauses that grow with each refusal in a row of a queue. Who is refused in one shares it."""

    rng: random.Random
    backoff: Backoff = Backoff(first=1.0, cap=30.0)
    _rows: Bounded[str, _BusyQueue] = attrs.field(factory=lambda: Bounded(_MOST, renews=True))

    def refused(self, queue: str, error: Busy) -> Busy:
        """Return the error for the client; another one only if the service has named no time."""
        if not error.backs_off:
            return error
        now, row = trio.current_time(), self._rows.get(queue)
        if row is None or row.until + _ROW_ENDS <= now:
            row = self._rows[queue] = _BusyQueue()
        if row.until <= now:
            row.count += 1
            row.until = now + self.backoff.delay(row.count, self.rng)
        return Busy(str(error), retry_after=row.until - now, backs_off=True)

    def accepted(self, queue: str) -> None:
        """Note that the queue isn't busy any more."""
        self._rows.pop(queue, None)
