"""Since when an entity's failures may have been one outage, for who sees them from outside."""

from math import inf

import attrs


@attrs.define(eq=False)
class Outage:
    """
    Failures since the last success. A silence ends the outage, and the next failure begins another.

    Of an attempt that was cut off nobody outside knows whether it counted: what it began anew may
    have gone on.
    """

    silence: float  # seconds
    # For each thing that may be so: when its outage began, and when it failed last.
    _cases: list[tuple[float, float]] = attrs.field(factory=list, init=False)

    @property
    def since(self) -> float:
        """When it may have begun, at the earliest; infinity where there is none."""
        return min((since for since, _ in self._cases), default=inf)

    def note(self, began: float, at: float, *, counts: bool) -> None:
        """An attempt failed, as the last one until now; it surely counts, or it may."""
        counted = min(
            (since for since, last in self._cases if began - last <= self.silence), default=at
        )
        # What began earlier than this one and failed earlier may yet be the longer one.
        others = [] if counts else [case for case in self._cases if case[0] < counted]
        self._cases = [(counted, at), *others]

    def forget(self) -> None:
        """All was well, or what was is void."""
        self._cases.clear()
