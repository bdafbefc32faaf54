"""
Guards against a poison message that crashes every syphon that receives it.

Where locks end with their connection, the next syphon would receive the poison message first, with
the same messages around it, and none of them would ever move. A starting syphon therefore moves
never-delivered messages first and delays redelivered ones, longer the higher their delivery count.
The redelivered ones then move in random order and, at first, one at a time.
"""

import random
from collections.abc import Sequence
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.pairing.syphon.backlog_message import BacklogMessage

WAIT: Final = Backoff(first=0.5, cap=5.0)  # by the number of earlier deliveries


@attrs.frozen(kw_only=True)
class RedeliveryGuard:
    """The guard of a syphon that started at `began`, by Trio's clock."""

    began: float
    rng: random.Random

    def split(
        self, backlog_messages: Sequence[BacklogMessage]
    ) -> tuple[Sequence[BacklogMessage], Sequence[BacklogMessage], float]:
        """Split one entity's messages: to move now, to move later, and the time for the latter."""
        before = max(one.delivery.delivery_count for one in backlog_messages) - 1
        if before <= 0:
            return backlog_messages, (), -inf
        moment = self.began + WAIT.delay(before, self.rng)
        if moment <= trio.current_time():
            return backlog_messages, (), -inf
        new = [one for one in backlog_messages if one.delivery.delivery_count <= 1]
        suspects = [one for one in backlog_messages if one.delivery.delivery_count > 1]
        self.rng.shuffle(suspects)
        return new, suspects, moment
