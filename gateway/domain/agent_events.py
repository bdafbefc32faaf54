"""Things that happened to the processes of listeners, for whoever watches."""

import attrs

from gateway.domain.events import Event


@attrs.frozen(kw_only=True)
class Staffed(Event):
    """The agent gives a listener more processes, or fewer, and what it has seen."""

    listener: str  # its queues
    before: int
    after: int
    depth: int | None
    oldest_age: float | None  # seconds
    arrivals: float  # messages a second
    handling: float | None  # seconds of one handler
    load: float | None  # of the processors, 0 to 1


@attrs.frozen(kw_only=True)
class ProcessStarted(Event):
    """The agent has started a listener's process."""

    listener: str
    pid: int


@attrs.frozen(kw_only=True)
class ProcessLost(Event):
    """A listener's process ended, or couldn't be started; after `seconds` there is another one."""

    listener: str
    pid: int | None
    reason: str
    seconds: float


@attrs.frozen(kw_only=True)
class ProcessesCrash(Event):
    """One process of a listener after the other ends soon after its start (a red state)."""

    listener: str
    crashes: int  # in a row
    reason: str  # of the last one
    seconds: float  # until the next one


@attrs.frozen(kw_only=True)
class ProcessKilled(Event):
    """A listener's process didn't end in time: its messages come again."""

    listener: str
    pid: int


@attrs.frozen(kw_only=True)
class FiguresLost(Event):
    """Nobody tells how much work a listener has: its processes stay as they are."""

    listener: str
    reason: str


@attrs.frozen(kw_only=True)
class FiguresRegained(Event):
    """The agent knows again how much work a listener has."""

    listener: str
