"""
Evidence from sends and probes beyond the state of their own entity: whether the namespace can be
reached, and which entities answer late too often. Entities without slow sends need no memory.
"""

from math import inf
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.errors import BrokerError, NoAnswer, NoToken, Unreachable
from gateway.domain.health.reachability import Comeback, Reachability, SlowCalls
from gateway.pairing.entity_record import Attempt

MOST_WINDOWS: Final = 10_000  # entities of which slow sends are counted


@attrs.define(eq=False, kw_only=True)
class Evidence:
    """
    Shared by all entities of a pair. `changes` counts each loss and return of the namespace, as
    sends and probes show them; `returns` counts each return that anybody has seen.
    """

    slow_call_rate: float | None
    changes: Changes = attrs.field(factory=Changes, init=False)
    returns: Changes = attrs.field(factory=Changes, init=False)
    namespace: Reachability = attrs.field(factory=Reachability, init=False)
    # When the namespace answered again after it was lost, the last time.
    found_at: float = attrs.field(default=-inf, init=False)
    comeback: Comeback = attrs.field(factory=Comeback, init=False)
    _slow: dict[str, SlowCalls] = attrs.field(factory=dict, init=False)

    def record_failure(self, attempt: Attempt, error: BrokerError) -> None:
        """Record that a send or a probe failed with `error`, which counts as an outage."""
        now, was_lost = trio.current_time(), self.namespace.is_lost
        if isinstance(error, Unreachable | NoToken):  # lost connections concern all entities
            self.namespace.unconnected(str(error), now)
        elif isinstance(error, NoAnswer):
            self.namespace.silent(attempt.entity.key, attempt.began, now)
        if self.namespace.is_lost:
            self.comeback.failed(now)
        if self.namespace.is_lost is not was_lost:
            self.changes.notify()

    def is_outdated(self, error: BrokerError) -> bool:
        """True if the failure is remembered, and the namespace has answered since."""
        return error.since is not None and self.namespace.has_answered(error.since)

    def record_answer(self, began: float) -> bool:
        """
        Record an answer to a request begun at `began`. True: the namespace is no longer lost, or
        silent.
        """
        was_lost, found = self.namespace.is_lost, self.namespace.answered(began)
        if found:
            self.changes.notify()
        if found and was_lost:
            self.found_at = trio.current_time()
            self.returns.notify()
        return found

    def in_time(self, attempt: Attempt) -> None:
        """Record that a send was accepted in time."""
        if calls := self._slow.get(attempt.entity.key):
            calls.record(trio.current_time(), slow=False)

    def slow(self, attempt: Attempt) -> SlowCalls | None:
        """
        Count the entity's slow sends from now on, since a send has had no answer for too long.
        """
        calls, key = self._slow.get(attempt.entity.key), attempt.entity.key
        if calls is None and self.slow_call_rate is not None and len(self._slow) < MOST_WINDOWS:
            calls = self._slow[key] = SlowCalls(self.slow_call_rate, trio.current_time())
        return calls

    def too_many_late(self, attempt: Attempt) -> bool:
        """
        Record that a send was accepted late; return True if too many sends of its entity were.
        """
        calls = self.slow(attempt)
        return calls is not None and calls.record(trio.current_time(), slow=True)

    def forget(self) -> None:
        """Discard all evidence."""
        self.namespace.forget()
        self.comeback.forget()
        self.changes.notify()
        self._slow.clear()

    def forget_old(self, now: float) -> None:
        """Discard slow sends that are too old to count."""
        for key in [key for key, calls in self._slow.items() if calls.is_over(now)]:
            del self._slow[key]
