"""
Decides if a namespace can be reached, by the evidence from all of its entities.

A namespace is lost as soon as no connection can be made, or when requests for several entities have
no answer in time and no later request was answered. Before that, the silence of one entity makes
the others suspect: each must be asked before it gets another send. Errors about one entity
(missing, full, disabled) don't count. No clock: `now` is an argument, in seconds of any monotonic
clock.

A broker in a new container, or with a lost volume, is up before its users and queues are made
again. What it refuses just after an outage would be the caller's error at any other time
(`Comeback`).
"""

from collections import deque
from typing import Final

import attrs

# Entities without an answer that make the namespace lost. One or two may be slow by themselves;
# each further one costs its sends an attempt before the others are diverted.
SILENT: Final = 3


@attrs.define(eq=False)
class Reachability:
    """The evidence about one namespace, valid until a request that began after it is answered."""

    reason: str = ""
    _found: float | None = attrs.field(
        default=None, init=False
    )  # the newest evidence; None: the namespace isn't lost
    since: float = attrs.field(default=float("-inf"), init=False)  # when it was lost, while it is
    _silent: dict[str, float] = attrs.field(factory=dict, init=False)  # the time by entity
    _answered: float = attrs.field(
        default=float("-inf"), init=False
    )  # the start of the newest answered request

    @property
    def is_lost(self) -> bool:
        """True if the namespace counts as unreachable."""
        return self._found is not None

    @property
    def is_any_silent(self) -> bool:
        """True if an entity had no answer in time, and no later request was answered."""
        return bool(self._silent)

    def is_silent(self, entity: str) -> bool:
        """True if the entity had no answer in time, and no later request was answered."""
        return entity in self._silent

    def is_silent_beside(self, entity: str) -> bool:
        """True if another entity had no answer in time, and no later request was answered."""
        return any(key != entity for key in self._silent)

    def has_answered(self, since: float) -> bool:
        """True if a request that began after `since` was answered."""
        return self._answered > since

    def unconnected(self, reason: str, now: float) -> None:
        """Record that no connection could be made."""
        if not self.is_lost:
            self.since = now
        self._found, self.reason = now, reason
        self._silent.clear()

    def silent(self, entity: str, began: float, now: float) -> None:
        """Record that a request for the entity, which began at `began`, got no answer in time."""
        if began <= self._answered:
            return
        if self.is_lost:
            self._found = now
            return
        self._silent[entity] = now
        if len(self._silent) >= SILENT:
            self.unconnected(f"{SILENT} entities had no answer in time", now)

    def answered(self, began: float) -> bool:
        """
        Record an answer to a request begun at `began`. True: it ends the evidence, so that no
        entity is lost or silent any more.
        """
        self._answered = max(self._answered, began)
        newest = max(self._silent.values(), default=self._found)
        self._silent = {key: at for key, at in self._silent.items() if at > began}
        if newest is None or began < newest:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Discard all evidence."""
        self._found, self.reason = None, ""
        self._silent.clear()


RECENT: Final = 60.0  # seconds before an outage within which credentials must have worked


@attrs.define(eq=False)
class Comeback:
    """The last outage of one namespace, and the last time that its credentials worked."""

    # The first failure since the last success; None: there was none.
    began: float | None = attrs.field(default=None, init=False)
    _worked: float = attrs.field(default=float("-inf"), init=False)

    def worked(self, at: float) -> None:
        """Record that a request which began then has succeeded."""
        self._worked = max(self._worked, at)

    def failed(self, at: float) -> None:
        """Record that the namespace couldn't be reached then."""
        if self.began is None or self._worked > self.began:
            self.began = at

    def had_credentials(self, began: float) -> bool:
        """
        True if the credentials worked shortly before an outage that began then, and no request has
        succeeded since.
        """
        return began - RECENT <= self._worked <= began

    def forget(self) -> None:
        """Discard the outage."""
        self.began = None


# Not measured. They bound how many slow sends an entity may have before it fails over (five, if all
# are slow), and how long an entity with few sends remembers one.
LAST: Final = 20  # sends
FEWEST: Final = 5  # sends; with fewer there is no judgement
WITHIN: Final = 30.0  # seconds


@attrs.define(eq=False)
class SlowCalls:
    """
    A window over one entity's accepted sends: the last `LAST` of them, within `WITHIN` seconds.

    The window begins as soon as a send is slow, before its answer: sends that are accepted in the
    meantime show whether the slow send is an exception.
    """

    rate: float  # the share of slow sends that is too much
    began: float
    _calls: deque[tuple[float, bool]] = attrs.field(factory=lambda: deque(maxlen=LAST), init=False)

    def record(self, now: float, *, slow: bool) -> bool:
        """Count an accepted send. True: it was slow, and too many of the last sends were."""
        self._calls.append((now, slow))
        self._drop_old(now)
        count = sum(slow for _, slow in self._calls)
        return slow and len(self._calls) >= FEWEST and count >= self.rate * len(self._calls)

    def is_over(self, now: float) -> bool:
        """True if no send of the window was slow, so that the window needn't be kept."""
        self._drop_old(now)
        return now - self.began > WITHIN and not any(slow for _, slow in self._calls)

    def _drop_old(self, now: float) -> None:
        while self._calls and now - self._calls[0][0] > WITHIN:
            self._calls.popleft()
