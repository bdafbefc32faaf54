"""The delays of a listener that polls an empty queue: randomized exponential backoff."""

import random
from typing import Final

import attrs
from attrs import validators

STEP: Final = 0.1  # seconds: as in the formula of `IdlePolling`
SPREAD: Final = (0.8, 1.2)  # so that many listeners don't ask at the same time


@attrs.frozen(kw_only=True)
class IdlePolling:
    """
    The delays between two receives from an empty queue, in seconds.

        delta = (2^idle_count - 1) x random(0.8 .. 1.2) x 100 ms
        delay = min(minimum + delta, maximum)
    """

    minimum: float = attrs.field(default=0.0, validator=validators.ge(0.0))
    maximum: float = attrs.field(default=60.0, validator=validators.gt(0.0))

    def delay(self, idle_count: int, rng: random.Random) -> float:
        """The delay after that many consecutive receives without a message."""
        exponent = min(idle_count, 63)  # avoids an overflow; every maximum is reached long before
        delta = (2.0**exponent - 1.0) * rng.uniform(*SPREAD) * STEP
        return min(self.minimum + delta, self.maximum)

    def is_longest(self, delay: float) -> bool:
        """True if the delay is the maximum."""
        return delay >= self.maximum
