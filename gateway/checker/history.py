"""
The recorded behaviour of a whole installation in a run. The records of single messages are in
`operations.py`.

Gateways and syphons record their attempts, entity states and settlements; the fault injector
records its faults; a watcher records its measurements. Records by a gateway about itself serve for
budgets and causes. Only a consumer or the audit can show that a message arrived.
"""

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, TypeVar

import attrs
from attrs import validators

from gateway.checker.operations import Record
from gateway.domain.failover import State
from gateway.domain.health.flapping import FIRST_PROOF, LONGEST_PROOF, MOST_SUCCESSES, WINDOW
from gateway.domain.values import value

R = TypeVar("R", bound=Record)


@attrs.frozen(kw_only=True)
class Bounds:
    """
    The limits that follow from a run's configuration. Times are seconds, sizes are bytes.

    `drain_rate` (messages/s) is the measured rate of the syphon. `horizon` is how long a request
    may still take effect after its client stopped waiting.
    """

    failover_interval: float = 60.0
    send_timeout: float = 30.0
    attempt_timeout: float = 10.0
    suspect_wait: float = 0.25
    # An attempt without an answer for so long makes its entity suspect.
    silent_after: float = inf
    ping_interval: float = 60.0
    successes_to_return: int = 2
    # The longest pause of sends to a busy namespace; a fifth of it is jitter.
    busy_pause: float = 12.0
    answer: float = 0.0  # the longest time to an answer of a healthy namespace
    lock: float = 15.0
    longest_backoff: float = 300.0
    reread: float = 0.0  # time until an unreadable backlog queue is tried again
    look: float = 0.0  # time that one message of an entity in trouble costs those behind it
    unanswered: float = 0.0  # timeout of a syphon's send to the primary
    redelivery_guard: float = 6.0  # how long a new syphon delays redelivered messages
    drain_rate: float = attrs.field(default=1000.0, validator=validators.gt(0.0))
    max_inflight: int = 64 * 1024 * 1024
    horizon: float = 0.0
    quiet: float = 30.0  # shorter idle times are not judged
    idle_polls: float = 60.0  # per minute
    idle_processor: float = 0.1  # of one core
    slack: float = 1.0
    expiry_slack: float = 0.0  # see `verdict.Rules`
    front_wait: float = 0.0  # how long a front end delays a send, besides the gateway itself
    clock_grace: float = 60.0  # how long a namespace trusts no date after a step of its clock
    # The longest time until a gateway has listed the ordered backlog queues, once it can be read.
    listing: float = 15.0
    trial: float = 0.0  # timeout, in seconds, of a syphon's trial
    # The least time after which a gateway counts its own syphon's trial without an answer as
    # failed. The send goes on.
    trial_silence: float = 1.25
    late: float = inf  # an accepted send that took longer counts against its entity
    raises_unknown: bool = False  # an unknown outcome is raised at once, as the options say
    expected_reasons: frozenset[str] = frozenset()

    @property
    def stall(self) -> float:
        """The longest time without an answered send, while one namespace is healthy."""
        share = min(self.attempt_timeout, 0.4 * self.send_timeout)
        sent = share + self.suspect_wait + self.attempt_timeout
        return self.front_wait + sent + self.slack

    @property
    def return_within(self) -> float:
        """
        The longest time until a healed entity returns: a hanging attempt, a pause, the successes.
        """
        more = 1.2 * max(0, self.successes_to_return - 1) + self.successes_to_return * self.answer
        hangs = max(self.attempt_timeout, self.trial)
        return 1.2 * self.ping_interval + hangs + more + self.slack

    @property
    def delay(self) -> float:
        """
        The seconds for which an entity in trouble may keep a syphon from other entities: a lock; or
        an unanswered send, a pause, and the quarter of a lock in which a queue is looked through.
        """
        return max(self.lock, self.unanswered / 2 + 5.0 + self.lock / 4)

    def drain_within(self, messages: int) -> float:
        """
        The longest time until the backlog is empty, also for a send that began just before the
        healing and gets no answer.
        """
        return self.longest_backoff + self.unanswered + self.move_within(messages)

    def move_within(self, messages: int) -> float:
        """
        The longest time until messages move that may be locked at the moment, but aren't backing
        off.
        """
        return self.lock + self.moving(messages) + self.slack

    def moving(self, messages: int) -> float:
        """The longest time that moving `messages` messages takes."""
        return 1.5 * messages / self.drain_rate


@value(kw_only=True)
class RunBegan(Record):
    """The limits of the whole run."""

    bounds: Bounds = Bounds()


@value(kw_only=True)
class Opened(Record):
    """
    A process begins to record. It ends with `Closed`, or with a `Killed` that another process
    records.
    """

    process: str


@value(kw_only=True)
class Closed(Record):
    """The process records nothing after this."""

    process: str


class Way(enum.Enum):
    """The destination of a physical send."""

    PRIMARY = "primary"
    PROBE = "probe"  # to the primary too, but without a message
    BACKLOG = "backlog"
    SPOOL = "spool"
    SYPHON = "syphon"  # from the backlog to the primary


class End(enum.Enum):
    """The result of a physical send, as the sender saw it."""

    ACCEPTED = "accepted"
    OUTAGE = "outage"  # not sent, and counts for the failover
    UNKNOWN = "unknown"  # no answer; counts, too
    CUT_OFF = "cut off"  # the sender stopped waiting: unknown, and may or may not count
    BUSY = "busy"  # never counts
    REFUSED = "refused"  # the fault of the client or the entity: never counts


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
class EntityStateMoved(Record):
    """The entity changed its state in that gateway."""

    process: str
    entity: str
    before: State
    after: State


@value(kw_only=True)
class Settled(Record):
    """The secondary confirmed that a syphon completed this backlog copy."""

    process: str
    queue: str
    copy: str
    message_id: str


@value(kw_only=True)
class Unconfirmed(Record):
    """A syphon stopped waiting for that confirmation: the copy may stay locked."""

    process: str
    message_id: str


@value(kw_only=True)
class DeadLettered(Record):
    """A syphon asked the secondary to dead-letter this message; it decided to at `began`."""

    process: str
    message_id: str
    began: float


@value(kw_only=True)
class ClockSet(Record):
    """
    From now on the wall clock is `ahead` seconds off the true time, and `drift` seconds more each
    second.

    A clock that is never set is right. `process` is as in `Attempted`, or a namespace's
    `FaultTarget`. Once a clock is set, dates are judged by the clocks, which requires that all
    `Attempted` and `DeadLettered` are recorded.
    """

    process: str
    ahead: float
    drift: float = 0.0


@value(kw_only=True)
class Paused(Record):
    """The gateway noticed that it had been paused, and forgot its streaks of failures."""

    process: str


def longest_proof(moves: Iterable[EntityStateMoved]) -> float:
    """
    The longest additional time that a flapping entity may stay away (see `failover`): an entity
    that failed again soon after its return must prove itself for longer.
    """
    returned: dict[tuple[str, str], float] = {}
    flaps: Counter[tuple[str, str]] = Counter()
    for move in moves:
        key = move.process, move.entity
        if move.after is State.PRIMARY:
            returned[key] = move.at
        elif move.before is State.PRIMARY and move.at - returned.get(key, -inf) < WINDOW:
            flaps[key] += 1
    most = max(flaps.values(), default=0)
    successes = 1.5 * MOST_SUCCESSES  # probes are about a second apart
    return max(successes, min(LONGEST_PROOF, FIRST_PROOF * 2.0 ** (most - 1))) if most else 0.0


BUSY: Final = "busy"  # the kind of fault that makes sends wait, as intended


class FaultTarget(enum.Enum):
    """The part of the installation that a fault affects."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    GATEWAY = "gateway"
    SYPHON = "syphon"
    HOST = "host"  # everything pauses


@value(kw_only=True)
class FaultBegan(Record):
    """A fault begins. `entities` None: it affects all entities of the target."""

    fault: str  # unique in the run
    kind: str
    target: FaultTarget
    entities: frozenset[str] | None = None


@value(kw_only=True)
class FaultEnded(Record):
    fault: str


@value(kw_only=True)
class Swallowed(Record):
    """
    The fault injector kept answers from the clients that waited for them.

    Up to `messages` messages may therefore be sent once more. Counted at the injector, without
    asking the gateway.
    """

    messages: int


@value(kw_only=True)
class Killed(Record):
    """A process was killed, with `in_flight` messages in flight."""

    process: str
    in_flight: int = 0
    power_cut: bool = False  # unwritten data of its disk was lost, too


@value(kw_only=True)
class VolumeLost(Record):
    """
    The primary, which ended at `since`, starts without its data: what it had taken is its own loss.

    It numbers copies from the begin again.
    """

    since: float


@value(kw_only=True)
class Healed(Record):
    """All faults are over; the backlog has `backlog` messages."""

    backlog: int


@value(kw_only=True)
class Drained(Record):
    """Backlog and spool were seen empty for the first time after the healing."""


@value(kw_only=True)
class Sampled(Record):
    """
    A watcher's measurement of a process at that moment. `polls` and `processor` are totals; `load`
    are the threads of the whole machine that want a processor, for each one that it has.
    """

    process: str
    inflight: int  # bytes of unanswered sends
    polls: int = 0  # requests without a message to move: empty receives, probes, peeks
    processor: float = 0.0  # seconds of processor time
    load: float = 0.0


@attrs.define(eq=False)
class Run:
    """
    The records of a run in the order of time; records with equal times in the order of their
    process.
    """

    _records: Sequence[Record]
    _by_kind: dict[type[Record], list[Record]]
    proof: float  # additional seconds until entities return that flapped

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Run":
        in_order = sorted(records, key=lambda record: record.at)
        by_kind: dict[type[Record], list[Record]] = defaultdict(list)
        for record in in_order:
            by_kind[type(record)].append(record)
        moves = [one for one in in_order if isinstance(one, EntityStateMoved)]
        return cls(in_order, by_kind, longest_proof(moves))

    def all(self, kind: type[R]) -> Sequence[R]:
        found = self._by_kind.get(kind, [])
        return [record for record in found if isinstance(record, kind)]

    def mixed(self, *kinds: type[Record]) -> Sequence[Record]:
        """All records of these kinds."""
        return [record for record in self._records if isinstance(record, kinds)]

    def first(self, kind: type[R]) -> R | None:
        found = self.all(kind)
        return found[0] if found else None

    @property
    def bounds(self) -> Bounds:
        began = self.first(RunBegan)
        return Bounds() if began is None else began.bounds

    @property
    def return_within(self) -> float:
        """As `Bounds.return_within`, plus the additional time if an entity flapped."""
        return self.bounds.return_within + self.proof

    def spared_until(self, healed: float) -> float:
        """
        The time from which no client waits any more for a namespace that was busy, if it is healthy
        since `healed`.
        """
        busy = [ended for fault, ended in self.faults() if fault.kind == BUSY]
        return max(healed, max(busy, default=-inf) + self.bounds.busy_pause)

    def asked_to_wait(self, fault: FaultBegan) -> float:
        """The seconds after that fault's end for which clients may still wait because of it."""
        return self.bounds.busy_pause if fault.kind == BUSY else 0.0

    def unwatched(self) -> list[tuple[float, float]]:
        """The times in which no process may have read the primary's clock."""
        return [
            (fault.at, ended)
            for fault, ended in self.faults()
            if fault.target in {FaultTarget.HOST, FaultTarget.PRIMARY} and fault.entities is None
        ]

    def faults(self) -> list[tuple[FaultBegan, float]]:
        """Each fault with its end; a fault without a recorded end lasts for ever."""
        ended = {record.fault: record.at for record in self.all(FaultEnded)}
        return [(fault, ended.get(fault.fault, inf)) for fault in self.all(FaultBegan)]
