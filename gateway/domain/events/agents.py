"""Events about the processes of listeners."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class Autoscaled(Event):
    """The agent changed the number of a listener's processes. The other fields are its reasons."""

    listener: str  # its queues
    before: int
    after: int
    depth: int | None
    oldest_age: float | None  # seconds
    arrivals: float  # messages a second
    handling: float | None  # seconds per message
    load: float | None  # of the processors, 0 to 1


@attrs.frozen(kw_only=True)
class ProcessStarted(Event):
    """The agent has started a process of a listener."""

    listener: str
    pid: int


@attrs.frozen(kw_only=True)
class ProcessLost(Event):
    """A listener's process ended or couldn't be started; the next one starts after `seconds`."""

    level = "warning"

    listener: str
    pid: int | None
    reason: str
    seconds: float


@attrs.frozen(kw_only=True)
class ProcessesCrash(Event):
    """The processes of a listener crash soon after their start, one after the other (red state)."""

    level = "error"

    listener: str
    crashes: int  # in a row
    reason: str  # of the last one
    seconds: float  # until the next one


@attrs.frozen(kw_only=True)
class ProcessKilled(Event):
    """A listener's process was killed as it didn't end in time. Its messages are redelivered."""

    level = "warning"

    listener: str
    pid: int


@attrs.frozen(kw_only=True)
class FiguresLost(Event):
    """The depth of a listener's queues can't be read: the number of its processes is kept."""

    level = "warning"

    listener: str
    reason: str


@attrs.frozen(kw_only=True)
class FiguresRegained(Event):
    """The depth of a listener's queues can be read again."""

    listener: str
