"""Events about a process that takes over the sockets of another one."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class TakenOver(Event):
    """This process accepts connections at the sockets of process `pid`, which ends now."""

    pid: int


@attrs.frozen(kw_only=True)
class TakeOverFailed(Event):
    """Process `pid` was to take over, and wasn't ready (in time): this process serves."""

    level = "warning"

    pid: int
    reason: str
