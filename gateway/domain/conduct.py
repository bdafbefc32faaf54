"""
What an installation did in a run, beside the fate of each message, which is in `history.py`.

Gateways and syphons write their attempts, standings and settlements; who does harm writes its
faults; a watcher writes what it measures. What a gateway says of itself serves for budgets and
causes; that a message arrived is only ever shown by a consumer or the audit.
"""

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, TypeVar

import attrs
from attrs import validators

from gateway.domain.failover import State
from gateway.domain.history import Record
from gateway.domain.values import value

R = TypeVar("R", bound=Record)


@attrs.frozen(kw_only=True)
class Bounds:
    """
    What the configuration of a run promises. Times are seconds, sizes bytes.

    `drain_rate` (messages/s) is what the syphon was measured to move; `horizon` is how long a
    request may still be applied that nobody awaits any more.
    """

    failover_interval: float = 60.0
    send_timeout: float = 30.0
    attempt_timeout: float = 10.0
    suspect_wait: float = 0.25
    ping_interval: float = 60.0
    successes_to_return: int = 2
    busy_pause: float = 12.0  # for which sends to a busy namespace wait, at most: a fifth is spread
    answer: float = 0.0  # that a namespace takes, at most, while it's well
    lock: float = 60.0
    longest_hold: float = 300.0
    drain_rate: float = attrs.field(default=1000.0, validator=validators.gt(0.0))
    max_inflight: int = 64 * 1024 * 1024
    horizon: float = 0.0
    quiet: float = 30.0  # shorter rests say nothing
    idle_polls: float = 60.0  # a minute
    idle_processor: float = 0.1  # of one core
    slack: float = 1.0
    expiry_slack: float = 0.0  # see `verdict.Rules`
    front_wait: float = 0.0  # that a front end lets a send wait, beside the gateway itself
    clock_grace: float = 60.0  # after a step of its clock a namespace trusts no date for so long
    raises_unknown: bool = False  # an unknown outcome is told at once, as the options ask
    parkable: frozenset[str] = frozenset()

    @property
    def stall(self) -> float:
        """How long no send is answered, at most, while one namespace is well."""
        share = min(self.attempt_timeout, 0.4 * self.send_timeout)
        sent = share + self.suspect_wait + self.attempt_timeout
        return self.front_wait + sent + self.slack

    @property
    def return_within(self) -> float:
        """How long a healed entity stays away, at most: a hanging probe, a pause, successes."""
        more = 1.2 * max(0, self.successes_to_return - 1) + self.successes_to_return * self.answer
        return 1.2 * self.ping_interval + self.attempt_timeout + more + self.slack

    def drain_within(self, messages: int) -> float:
        return self.longest_hold + self.move_within(messages)

    def move_within(self, messages: int) -> float:
        """What may be locked just now, and doesn't rest."""
        return self.lock + 1.5 * messages / self.drain_rate + self.slack


@value(kw_only=True)
class RunBegan(Record):
    """What holds for the whole run."""

    bounds: Bounds = Bounds()


@value(kw_only=True)
class Opened(Record):
    """A process begins to record. It ends with `Closed`, or with a `Killed` of somebody else's."""

    process: str


@value(kw_only=True)
class Closed(Record):
    """That process has recorded all that it will ever record."""

    process: str


class Way(enum.Enum):
    """Where a physical send goes."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"
    SYPHON = "syphon"  # from the backlog to the primary


class End(enum.Enum):
    """How a physical send ended, for the one who sent."""

    ACCEPTED = "accepted"
    OUTAGE = "outage"  # not sent, and it counts for the failover
    UNKNOWN = "unknown"  # no answer; counts too
    CUT_OFF = "cut off"  # the sender stopped waiting: unknown, and may or may not count
    BUSY = "busy"  # never counts
    REFUSED = "refused"  # the caller's fault, or the entity's: never counts


MAY_HAVE_ARRIVED: Final = frozenset({End.UNKNOWN, End.CUT_OFF})


@value(kw_only=True)
class Attempted(Record):
    """A physical send by the gateway or a syphon has ended."""

    process: str
    entity: str
    message_ids: tuple[str, ...]
    way: Way
    end: End
    began: float


@value(kw_only=True)
class StandingMoved(Record):
    """In that gateway the entity moved in the failover table."""

    process: str
    entity: str
    before: State
    after: State


@value(kw_only=True)
class Settled(Record):
    """The secondary confirmed that a syphon completed this copy on the backlog."""

    process: str
    queue: str
    copy: str
    message_id: str


@value(kw_only=True)
class Unconfirmed(Record):
    """A syphon stopped waiting for that confirmation: what it is for may stay locked."""

    process: str
    message_id: str


@value(kw_only=True)
class Parked(Record):
    """A syphon asked the secondary to dead-letter this message; `began` is when it decided so."""

    process: str
    message_id: str
    began: float


@value(kw_only=True)
class ClockSet(Record):
    """
    From now on that wall clock is `ahead` seconds off what is true, and `drift` more each second.

    One that is never set is right. `process` is as in `Attempted`, or a namespace's `Target`. Where
    clocks are set, dates are judged by them: all `Attempted` and `Parked` must have been recorded.
    """

    process: str
    ahead: float
    drift: float = 0.0


@value(kw_only=True)
class Paused(Record):
    """That gateway noticed that it had stood still, and threw its streaks away."""

    process: str


BUSY: Final = "busy"  # the kind of fault that makes sends wait, as they should


class Target(enum.Enum):
    """What a fault hits."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    GATEWAY = "gateway"
    SYPHON = "syphon"
    HOST = "host"  # everything stands still


@value(kw_only=True)
class FaultBegan(Record):
    """From now on something is harmed. `entities` None: all that the target has."""

    fault: str  # unique in the run
    kind: str
    target: Target
    entities: frozenset[str] | None = None


@value(kw_only=True)
class FaultEnded(Record):
    fault: str


@value(kw_only=True)
class Swallowed(Record):
    """
    The one who does harm kept answers from whoever waited for them.

    So many messages may come once more; seen from outside, without asking the gateway.
    """

    messages: int


@value(kw_only=True)
class Killed(Record):
    """A process ended without a word, with so many messages in its hands."""

    process: str
    in_flight: int = 0
    power_cut: bool = False  # what its disk hadn't written is gone, too


@value(kw_only=True)
class Healed(Record):
    """All faults are over; so many messages are on the backlog."""

    backlog: int


@value(kw_only=True)
class Drained(Record):
    """Backlog and spool were seen empty, for the first time after the healing."""


@value(kw_only=True)
class Sampled(Record):
    """What a watcher measured of a process at that moment; the last two only ever grow."""

    process: str
    inflight: int  # bytes of sends that aren't answered
    polls: int = 0  # requests without a message to move: empty receives, probes, looks
    processor: float = 0.0  # seconds of processor time


@attrs.define(eq=False)
class Run:
    """The records of a run in the order of time; at one moment as their process wrote them."""

    _records: Sequence[Record]
    _by_kind: dict[type[Record], list[Record]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Run":
        in_order = sorted(records, key=lambda record: record.at)
        by_kind: dict[type[Record], list[Record]] = defaultdict(list)
        for record in in_order:
            by_kind[type(record)].append(record)
        return cls(in_order, by_kind)

    def all(self, kind: type[R]) -> Sequence[R]:
        found = self._by_kind.get(kind, [])
        return [record for record in found if isinstance(record, kind)]

    def mixed(self, *kinds: type[Record]) -> Sequence[Record]:
        """All of these kinds."""
        return [record for record in self._records if isinstance(record, kinds)]

    def first(self, kind: type[R]) -> R | None:
        found = self.all(kind)
        return found[0] if found else None

    @property
    def bounds(self) -> Bounds:
        began = self.first(RunBegan)
        return Bounds() if began is None else began.bounds

    def spared_until(self, healed: float) -> float:
        """When nobody waits any more because a namespace was busy, which is well since `healed`."""
        busy = [ended for fault, ended in self.faults() if fault.kind == BUSY]
        return max(healed, max(busy, default=-inf) + self.bounds.busy_pause)

    def asked_to_wait(self, fault: FaultBegan) -> float:
        """For how many seconds after that fault's end somebody still does, at most."""
        return self.bounds.busy_pause if fault.kind == BUSY else 0.0

    def unwatched(self) -> list[tuple[float, float]]:
        """When nobody may have looked at the primary's clock."""
        return [
            (fault.at, ended)
            for fault, ended in self.faults()
            if fault.target in {Target.HOST, Target.PRIMARY} and fault.entities is None
        ]

    def faults(self) -> list[tuple[FaultBegan, float]]:
        """Each fault and when it ended; one that nobody ended lasts for ever."""
        ended = {record.fault: record.at for record in self.all(FaultEnded)}
        return [(fault, ended.get(fault.fault, inf)) for fault in self.all(FaultBegan)]
