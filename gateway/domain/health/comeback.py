"""
Decides if a namespace has just come back from an outage, and so may lack what it had before.

A broker in a new container, or with a lost volume, is up before its users and queues are made
again. What it refuses then would be the caller's error at any other time. No clock: all moments are
arguments, in seconds of any monotonic clock.
"""

from typing import Final

import attrs

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
