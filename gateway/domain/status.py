"""How a gateway or a listener is at a moment, as its operators see it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.billing import Bill

MOST_ENTITIES: Final = 100  # troubled ones, by name; of the rest the number is told
DIVERTED: Final = frozenset({"secondary", "half-open", "pinned"})


@attrs.frozen(kw_only=True)
class NamespaceStatus:
    """A namespace of the configuration that is open, and what it was asked since the start."""

    name: str
    kind: str  # the scheme of its URL
    role: str  # primary, secondary, or only
    bill: Bill


@attrs.frozen(kw_only=True)
class TroubledEntity:
    """An entity that isn't simply on its primary."""

    entity: str
    standing: str
    since: datetime
    reason: str
    pinned: bool


@attrs.frozen(kw_only=True)
class BacklogStatus:
    """The backlog queues on the secondary. None: it isn't known."""

    wanted: int
    usable: int
    pending: int | None  # messages, of everybody who diverts to this label
    oldest_age: float | None  # seconds
    as_of: datetime | None  # when the secondary told


@attrs.frozen(kw_only=True)
class SyphonStatus:
    """What the syphons of this process have moved since its start."""

    running: bool  # some syphon runs in this process
    moved: int  # messages
    rate: float  # messages/s, in the last minute
    last_moved: datetime | None
    held: int  # entities that rest now
    parked: int  # messages that ended as dead letters of the backlog


@attrs.frozen(kw_only=True)
class SendCount:
    """Messages of sends that ended so. `leg` is empty where none took them."""

    leg: str
    outcome: str
    messages: int


@attrs.frozen(kw_only=True)
class Alarm:
    """A red state: an event of the level `error`, in the last ten minutes."""

    event: str
    times: int  # since the start
    last: datetime
    text: str


@attrs.frozen(kw_only=True)
class PairStatus:
    """The pair, its troubled entities, and what it did since the start."""

    label: str
    standings: Mapping[str, int]  # how many troubled entities stand so
    entities: tuple[TroubledEntity, ...]  # at most `MOST_ENTITIES`
    backlog: BacklogStatus
    syphon: SyphonStatus
    sends: tuple[SendCount, ...]
    inflight: int  # bytes
    max_inflight: int
    paused: int  # entities whose sends wait because the primary is busy
    pauses: int  # since the start


@attrs.frozen(kw_only=True)
class QueueStatus:
    """A queue that a listener takes from."""

    queue: str
    active_tasks: int
    total_tasks: int
    held: int  # messages
    completed: int
    failed: int
    poisoned: int
    too_late: int
    bill: Bill


@attrs.frozen(kw_only=True)
class Wake:
    """How an idle listener learns of a message, where its namespace has to be polled."""

    announced: bool  # every sender is known to announce, so that an idle listener doesn't poll
    look_every: float | None  # seconds between its looks; None: only a trigger makes it look

    @property
    def text(self) -> str:
        if self.announced:
            return "every message is announced: an idle listener doesn't poll"
        if self.look_every is None:
            return "sweep is off: an idle listener misses what isn't announced"
        return (
            "not every sender is known to announce its messages:"
            f" an idle listener looks every {self.look_every:g} s"
        )


@attrs.frozen(kw_only=True)
class Status:
    """One process. `pair` is there where it has one, `queues` where it is a listener."""

    at: datetime
    started: datetime
    namespaces: tuple[NamespaceStatus, ...]
    pair: PairStatus | None = None
    queues: tuple[QueueStatus, ...] = ()
    wake: Wake | None = None
    events: Mapping[str, int] = attrs.field(factory=dict)  # since the start, by name
    alarms: tuple[Alarm, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What somebody should look at, one line for each; none: all is well."""
        return (*_problems_of(self.pair), *(f"{each.event}: {each.text}" for each in self.alarms))


def _problems_of(pair: PairStatus | None) -> list[str]:
    if pair is None:
        return []
    found = [
        f"entities that are {standing}: {count}"
        for standing, count in pair.standings.items()
        if standing in DIVERTED and count
    ]
    if not pair.backlog.usable:
        found.append("no backlog queue can be used")
    return found
