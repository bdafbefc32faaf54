"""
An outage of the primary, as the gateway that reports it has seen it; and the control call that
shows the last ones.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import attrs

from gateway.wire.pairgate.control_call import ControlCall, NoKeys


@attrs.frozen(kw_only=True)
class DepthPoint:
    """The backlog at a date: messages of all gateways. None: not known."""

    at: datetime
    pending: int | None


@attrs.frozen(kw_only=True)
class EntityOutage:
    """An entity in the outage. Other processes tell of theirs what they have diverted alone."""

    entity: str
    began: datetime | None  # it was in doubt, or left the primary; None: others tell of it
    back: datetime | None = None  # for the last time; None: it isn't, or others tell of it
    reason: str = ""  # of the first change
    diverted: int | None = 0  # messages; None: not known


@attrs.frozen(kw_only=True)
class OutageOrder:
    """An order of an operator that held messages back in the outage, as this process knows it."""

    action: str  # failover or pause
    text: str  # the target, who, until when, and why
    since: datetime  # perhaps before the outage
    ended: datetime | None = None  # None: it was in force at the end


@attrs.frozen(kw_only=True)
class ProcessOutage:
    """The counts of one process of the pair. None: not known, or it has no such part."""

    process: str
    diverted: int | None = None  # messages
    moved: int | None = None
    possibly_twice: int | None = None
    longest_stall: float | None = None  # seconds


@attrs.frozen(kw_only=True)
class RecordedOutage:
    """
    An outage: from the first entity in trouble to the date at which all were back and the backlog
    was empty. Figures are those of all `processes` of the pair. None: not known.
    """

    began: datetime
    cause: str
    # The date at which all processes that had lost the primary reached it; None: none had lost it.
    namespace_back: datetime | None = None
    entities_back: datetime | None = None  # the last one; None: not all are
    ended: datetime | None = None  # None: the outage goes on
    # True: the backlog was empty at the end; False: it isn't, or isn't yet; None: nobody can tell.
    empty: bool | None = False
    troubled: int = 0  # entities
    entities: tuple[EntityOutage, ...] = ()  # those with the most diverted messages first
    diverted: int | None = 0  # messages that were accepted by the backlog or the spool
    moved: int | None = 0  # by syphons; None: another process moves them, and tells nobody
    twice: int | None = 0  # both namespaces accepted them: hedged sends
    possibly_twice: int | None = 0  # of producers, as an attempt had no answer
    possibly_twice_by_syphon: int | None = 0  # None: as of `moved`
    failed: int | None = 0  # sends that ended with an error at the client
    longest_stall: float | None = 0.0  # seconds of the slowest send of a gateway in trouble
    dead_lettered: Mapping[str, int] = attrs.field(factory=dict)  # by reason
    curve: tuple[DepthPoint, ...] = ()
    orders: tuple[OutageOrder, ...] = ()
    interrupted: bool = False  # the process ended before the outage, which is told as far as then
    processes: int = 1  # that are in the figures, this one among them
    left_out: tuple[str, ...] = ()  # processes whose figures aren't known
    # Of each process, this one first: those of the others that have counted something.
    shares: tuple[ProcessOutage, ...] = ()


@attrs.frozen(kw_only=True)
class OutageReport:
    """The last outages, the latest first; `markdown` is the same for people."""

    outages: tuple[RecordedOutage, ...]
    markdown: str = ""


OUTAGES: Final = ControlCall(
    name="outage-report",
    method="GET",
    summary="the last outages of the primary, as data and as Markdown",
    request=NoKeys,
    answer=OutageReport,
    refusals=(501,),
    missing="has no pair",
)
