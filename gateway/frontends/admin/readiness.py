"""The readiness of a process for work, with its reason: the answer to `/readyz`."""

from typing import Final

import attrs

STARTING: Final = "starting"
SERVING: Final = "serving"


@attrs.define(eq=False)
class Readiness:
    """
    The state of one process: it starts, serves, and ends for a reason. A namespace that fails
    doesn't change it, since sends go to the backlog then.
    """

    reason: str = SERVING

    @property
    def is_ready(self) -> bool:
        return self.reason == SERVING

    @property
    def is_ending(self) -> bool:
        return self.reason not in {STARTING, SERVING}

    def begin(self) -> None:
        """Note that the process takes work from now on, unless it ends already."""
        if self.reason == STARTING:
            self.reason = SERVING

    def end(self, reason: str) -> None:
        """Note that the process takes no more work. The first reason stays."""
        if not self.is_ending:
            self.reason = reason
