"""
A message may kill every syphon that takes it. Where the end of a connection ends its locks at once,
it is the first that the next one gets, and the same others with it: none of them would ever move.

So what was delivered before waits in a syphon's first seconds, the longer the oftener, while all
else is moved. Then it goes in random order, at first one by one, so that most others get away.
"""

import random
from collections.abc import Sequence
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.pairing.transfer import Cargo

WAIT: Final = Backoff(first=0.5, cap=20.0)  # by how often it was delivered before


@attrs.frozen(kw_only=True)
class Caution:
    """Of a syphon that began to live at `began`, by Trio's clock."""

    began: float
    rng: random.Random

    def split(self, cargo: Sequence[Cargo]) -> tuple[Sequence[Cargo], Sequence[Cargo], float]:
        """One entity's messages: those to move now, and those that wait until that moment."""
        before = max(one.delivery.delivery_count for one in cargo) - 1
        if before <= 0:
            return cargo, (), -inf
        moment = self.began + WAIT.delay(before, self.rng)
        if moment <= trio.current_time():
            return cargo, (), -inf
        new = [one for one in cargo if one.delivery.delivery_count <= 1]
        suspects = [one for one in cargo if one.delivery.delivery_count > 1]
        self.rng.shuffle(suspects)
        return new, suspects, moment
