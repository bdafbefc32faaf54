"""
Computes the time since which an entity's failures may have been one outage, as seen from outside
the gateway.
"""

from math import inf

import attrs


@attrs.define(eq=False)
class Outage:
    """
    The failures since the last success. A silence ends the outage, and the next failure begins
    another.

    An observer can't know whether an attempt that was cut off counted, so the outage before such an
    attempt may have continued.
    """

    silence: float  # seconds; longer if the outage was ended by something other than a success
    # Each possible case: when its outage began, and when its last failure was.
    _cases: list[tuple[float, float]] = attrs.field(factory=list, init=False)

    @property
    def since(self) -> float:
        """The earliest time at which the outage may have begun; infinity: there was no outage."""
        return min((since for since, _ in self._cases), default=inf)

    def record_failure(self, began: float, at: float, *, counts: bool) -> None:
        """
        Record a failed attempt, the last so far. `counts`: the attempt surely counts; otherwise it
        may count.
        """
        counted = min(
            (since for since, last in self._cases if began - last <= self.silence), default=at
        )
        # A case that began and failed earlier may still turn out to be the longer outage.
        others = [] if counts else [case for case in self._cases if case[0] < counted]
        self._cases = [(counted, at), *others]

    def forget(self) -> None:
        """Forget all failures, after a success or because they don't count any more."""
        self._cases.clear()
