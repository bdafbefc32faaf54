"""Events about the workers of a gateway, which its parent reports."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class WorkerStarted(Event):
    """A worker accepts connections."""

    worker: int  # its number, from 1
    pid: int


@attrs.frozen(kw_only=True)
class WorkerLost(Event):
    """A worker ended unasked, and its connections with it; the next one starts after `seconds`."""

    level = "warning"

    worker: int
    pid: int | None  # None: it couldn't be started
    reason: str
    seconds: float
