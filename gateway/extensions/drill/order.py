"""
A drill: an outage of a namespace, as this process alone sees it, for a limited time; and the
control calls of drills.

Nothing here looks at a clock: dates are arguments, in UTC.
"""

import enum
from datetime import UTC, datetime
from math import inf
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING, check_reason, check_targets, matches
from gateway.wire.pairgate.control_call import ControlCall, NoKeys


class DrillFault(enum.Enum):
    """The answer of the cut way to each operation."""

    REFUSE = "refuse"  # at once: nothing listens there
    HANG = "hang"  # none, until the drill ends
    SLOW = "slow"  # `delay` seconds late
    BUSY = "busy"  # at once: the namespace asks to wait


@attrs.frozen(kw_only=True)
class DrillOrder:
    """
    An operator's order to begin a drill. Times are seconds.

    Raises:
        InvalidRequest: a target is malformed, there are none or too many, the reason is too long,
            or a time isn't above 0.
    """

    seconds: float
    fault: DrillFault = DrillFault.REFUSE
    targets: tuple[str, ...] = (EVERYTHING,)  # entities and patterns
    namespace: str | None = None  # by its name in the configuration; None: the primary
    delay: float = 2.0  # of `SLOW` and `BUSY`
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("delay", self.delay)):
            if not 0.0 < value < inf:
                raise InvalidRequest(f"{name}: a number above 0 expected, got {value:g}")
        check_targets(self.targets)
        check_reason(self.reason)


@attrs.frozen(kw_only=True)
class Drill:
    """A drill that is under way."""

    namespace: str
    targets: tuple[str, ...]
    fault: DrillFault
    delay: float  # seconds
    reason: str
    operator: str
    since: datetime
    until: datetime  # the end, if nobody ends it before

    @property
    def is_whole(self) -> bool:
        """True if the way to the whole namespace is cut, not only that to some entities."""
        return EVERYTHING in self.targets

    def covers(self, entity: EntityPath) -> bool:
        """True if the way to the entity is cut; that to its topic and sub-queues counts, too."""
        names = {entity.key, entity.parent_key, entity.topic.key}
        return self.is_whole or any(matches(each, name) for each in self.targets for name in names)

    @property
    def text(self) -> str:
        """The drill in a few words, for people."""
        reason = f": {self.reason}" if self.reason else ""
        some = "" if self.is_whole else f"{' '.join(self.targets)} of "
        until = f"{self.until.astimezone(UTC):%H:%M:%S} UTC"
        way = f"{some}namespace {self.namespace}"
        return f"{way}, {self.fault.value}, by {self.operator} until {until}{reason}"


@attrs.frozen(kw_only=True)
class DrillState:
    """The drill that is under way, and whether this process allows one."""

    allowed: bool
    longest: float  # seconds
    drill: Drill | None = None


@attrs.frozen(kw_only=True)
class DrillAnswer:
    """The result of an order: the state before and after it. `changed`: they differ."""

    action: str  # drill or end-drill
    changed: bool
    before: DrillState
    after: DrillState


DRILLS: Final = ControlCall(
    name="drill",
    method="GET",
    summary="the drill that is under way",
    request=NoKeys,
    answer=DrillState,
    refusals=(501,),
)
DRILL: Final = ControlCall(
    name="drill", summary="begins a drill", request=DrillOrder, answer=DrillAnswer
)
END_DRILL: Final = ControlCall(
    name="end-drill", summary="ends the drill", request=NoKeys, answer=DrillAnswer
)
