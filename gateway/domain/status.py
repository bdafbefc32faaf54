"""
The status of a gateway or a listener at a moment, as operators see it.

`app/status.py` collects it; `telemetry/metrics.py` writes it as metrics, `wire/pairgate/status.py`
as JSON.
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.billing import UsageReport
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.abilities import Ability, AbilityStatus, Answer
from gateway.domain.health.depth_history import QueueDepth
from gateway.domain.health.distribution import Distribution
from gateway.domain.health.expiry import Expiry
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.operators.drill import Drill

MOST_ENTITIES: Final = 100  # troubled entities by name; the others are only counted
_REMEDY: Final = "fix the cause, then run `pairgate redrive"
REACH: Final = Ability.REACH.value
_LACKS: Final = {
    REACH: "hasn't been reached",
    Ability.SEND.value: "has accepted no messages",
    Ability.RECEIVE.value: "has delivered no messages",
}
_LOOK: Final = "check the primary: the table below and `namespaces` show its answers"
_ADVICE: Final = {
    "suspect": _LOOK,
    "secondary": _LOOK,
    "half-open": "wait: they return by themselves when enough probes and sends succeed",
    "pinned": "an operator pinned them to the backlog: `pairgate failback` returns them",
}
_ALARM_ADVICE: Final = {
    "backlog_orphaned": "start `pairgate syphon`, or set enable_syphon = true",
    "left_untouched": "the text says whose messages these are, and how to move them",
    "primary_replaced": "check the URL of the primary; if it was replaced, use --adopt",
    "audit_failed": "free the disk, or fix the folder's permissions",
    "state_not_saved": "free the disk, or fix the folder's permissions",
    "syphon_stalled": (
        "check the primary, and the events `syphon_backed_off` and `syphon_failed` in the log"
    ),
}
_USUAL_ADVICE: Final = "see docs/reference/status.md"
RATE_SECONDS: Final = 10.0  # the window of rates
FALLS: Final = timedelta(seconds=60)  # after a fall of the depth a syphon counts as running


@attrs.frozen(kw_only=True)
class OperationDuration:
    """
    Seconds that receives with messages, or settlements, of one namespace took. `error` is the class
    of the error; empty: they succeeded.
    """

    name: str  # as in `health.operation_times`
    error: str
    seconds: Distribution


@attrs.frozen(kw_only=True)
class NamespaceStatus:
    """An open namespace of the configuration, with its abilities and quota usage."""

    name: str
    kind: str  # the scheme of its URL
    role: str  # primary, secondary, or only
    usage: UsageReport
    abilities: Mapping[str, AbilityStatus] = attrs.field(factory=dict)  # by their names
    operations: tuple[OperationDuration, ...] = ()

    def problems(self, at: datetime) -> Sequence[str]:
        """Return a line per missing ability, except management, which a gateway can do without."""
        troubled = {
            name: ability
            for name, ability in self.abilities.items()
            if ability.state is Answer.NO and name in _LACKS
        }
        if REACH in troubled:
            troubled = {REACH: troubled[REACH]}  # the cause of the others
        return [
            f"namespace {self.name} {_LACKS[name]} for {_span((at - one.since).total_seconds())}:"
            f" {one.error}; {one.remedy}"
            for name, one in troubled.items()
            if one.since is not None
        ]


@attrs.frozen(kw_only=True)
class TroubledEntity:
    """An entity that isn't healthy."""

    entity: str
    state: str
    since: datetime
    reason: str
    pinned: bool
    missing: bool = False  # the primary had it, and has it no more, or has disabled it
    # Messages that went to the backlog or the spool since it left the primary, or the process
    # started.
    diverted: int = 0
    waiting: int | None = None  # messages on the backlog; None: not known
    # Seconds until a probe that may let it return; None: none is due.
    next_probe: float | None = None


@attrs.frozen(kw_only=True)
class BusyEntity:
    """An entity that has been busy for longer than its failover interval."""

    entity: str
    seconds: float
    reason: str  # a `BusyReason`
    text: str  # the last answer


@attrs.frozen(kw_only=True)
class BacklogStatus:
    """The backlog queues on the secondary. None: not known."""

    wanted: int
    usable: int
    pending: int | None  # messages, of all gateways with this label
    oldest_age: float | None  # seconds
    as_of: datetime | None  # the date of these values
    locked_here: int = 0  # of `pending`, where the secondary doesn't count what is locked
    last_decrease: datetime | None = None  # the last reading with a lower `pending`
    consumers: bool = False  # other processes receive from the backlog
    dead_letters: DeadLetters = attrs.field(factory=DeadLetters)
    queues: Mapping[str, QueueDepth] = attrs.field(factory=dict)  # the first `MOST_QUEUES`
    syphons: SyphonsSeen = attrs.field(factory=SyphonsSeen)  # of all processes
    # Of `pending`, by entity: at most `MOST_ENTITIES`, those with the most. None: not known.
    by_entity: Mapping[str, int] | None = None

    def falls(self, at: datetime) -> bool:
        """True if the depth has fallen in the last `FALLS`, until that date."""
        return self.last_decrease is not None and at - self.last_decrease <= FALLS


@attrs.frozen(kw_only=True)
class SpoolStatus:
    """The local spool behind the secondary; `app/spooling.py` reads it. None: not known."""

    pending: int | None  # messages
    oldest_age: float | None  # seconds
    rate_in: float  # messages/s, in the last 10 s
    rate_out: float  # to the primary
    free_bytes: int | None  # of its own limit and of its disk, the smaller
    dead_letters: DeadLetters = attrs.field(factory=DeadLetters)


@attrs.frozen(kw_only=True)
class OrderStatus:
    """The keys of ordered entities, as this gateway knows them."""

    away: int  # keys whose sends go to the backlog, as some of their messages are there
    unknown: int  # ordered backlog queues that may have messages of any key
    waiting: int  # sends that wait for their key's return
    # Ordered backlog queues whose orderer this gateway is; None: it is that of all (no leases).
    leases: int | None = None
    missed: int = 0  # sends that ended without having got the lease, since the start
    # Sends that were forwarded, by result, since the start; None: none is.
    forwarded: Mapping[str, int] | None = None


class Cause(enum.Enum):
    """The reasons for which the syphon leaves messages on the backlog for `gone_grace`."""

    GONE = "gone"  # the primary has no such entity, or has disabled it
    WRONG_MAC = "wrong-mac"  # under a known key


@attrs.frozen(kw_only=True)
class Waiting:
    """A cause that an operator can fix before its messages are dead-lettered."""

    cause: Cause
    name: str  # of the entity, or the id of the key
    seconds: float  # since the syphon of this process has found it
    left: float  # seconds

    @property
    def text(self) -> str:
        """The cause, for how long, and the remedy."""
        lasts, left = _span(self.seconds), _span(self.left)
        if self.cause is Cause.GONE:
            return (
                f"messages have waited for {lasts} for {self.name}, which is missing or disabled on"
                f" the primary: create or enable it, or they are dead-lettered in {left}"
            )
        return (
            f"messages with the key {self.name!r} have had a wrong MAC for {lasts}: add their"
            f" gateway's secret to envelope_keys, or they are dead-lettered in {left}"
        )


@attrs.frozen(kw_only=True)
class SyphonStatus:
    """The syphons of this process, and the messages that they moved since its start."""

    running: bool  # the backlog's syphon runs in this process
    moved: int  # messages
    rate: float  # messages/s, in the last `RATE_SECONDS`
    last_moved: datetime | None
    backing_off: int  # entities
    dead_lettered: int  # messages that ended as dead letters of the backlog
    dead_lettered_by_reason: Mapping[str, int] = attrs.field(factory=dict)
    waiting: tuple[Waiting, ...] = ()  # at most `MOST_ENTITIES`
    pauses: tuple[str, ...] = ()  # by operators: what, by whom, until when, and why
    # Messages wait and none has moved for `stall_after`; None: no syphon of this process has looked
    stalled: bool | None = None
    copies: Mapping[str, int] = attrs.field(factory=dict)  # backlog messages, by `CopyState`
    # The last reason for which a message couldn't be moved, since the last one that was.
    last_error: str = ""


@attrs.frozen(kw_only=True)
class SendCount:
    """
    Messages of sends with that outcome. `accepted_by` is empty for failed sends, `error` (a class
    of `domain.errors`) for accepted ones.
    """

    accepted_by: str
    outcome: str
    messages: int
    error: str = ""


@attrs.frozen(kw_only=True)
class SendDuration:
    """Seconds from a send's arrival to its verdict. `accepted_by`, `error`: as in `SendCount`."""

    accepted_by: str
    error: str
    seconds: Distribution


@attrs.frozen(kw_only=True)
class StateChangeCount:
    """Changes of entities' states, by what has caused them."""

    before: str
    after: str
    cause: str
    times: int


@attrs.frozen(kw_only=True)
class ConnectionCount:
    """The clients' connections to the endpoints of one protocol, since the start but for `open`."""

    protocol: str
    open: int  # now
    opened: int
    refused: int  # surplus ones
    limit: int


@attrs.frozen(kw_only=True)
class CommitStatus:
    """The commits of one embedded store."""

    name: str  # of its namespace, or of the spool
    seconds: Distribution
    operations: Distribution  # in each commit


@attrs.frozen(kw_only=True)
class RefusalCount:
    """Requests whose credentials were refused, since the start."""

    protocol: str  # of the endpoint
    reason: str
    times: int


@attrs.frozen(kw_only=True)
class LimitCount:
    """
    The number of times since the start that a client was refused, because it had reached a limit.
    """

    client: str  # its credential or address; empty: clients beyond those that are counted by name
    limit: str  # connections, requests, bytes
    times: int


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
    states: Mapping[str, int]  # the number of troubled entities by state
    entities: tuple[TroubledEntity, ...]  # at most `MOST_ENTITIES`
    backlog: BacklogStatus
    syphon: SyphonStatus
    sends: tuple[SendCount, ...]
    inflight: int  # bytes
    max_inflight: int
    paused: int  # entities whose sends wait because the primary is busy
    pauses: int  # since the start
    busy: tuple[BusyEntity, ...] = ()  # for too long
    spool: SpoolStatus | None = None  # None: none is configured
    pins: tuple[str, ...] = ()  # by operators: what, by whom, until when, and why
    durations: tuple[SendDuration, ...] = ()
    refused: Mapping[str, int] = attrs.field(factory=dict)  # messages, by the class of the error
    oversized: int = 0  # messages for the primary alone, as the secondary couldn't take them
    # Messages of which a send had no answer and another one was made, by who made them.
    possibly_twice: Mapping[str, int] = attrs.field(factory=dict)
    slow_calls: int = 0
    state_changes: tuple[StateChangeCount, ...] = ()
    drill: Drill | None = None  # that is under way
    order: OrderStatus | None = None  # None: no entity keeps its order

    @property
    def syphons_alive(self) -> int | None:
        """The syphons of all processes that are alive, this one's included; None: not known."""
        count = self.backlog.syphons.count
        return None if count is None else max(count, int(self.syphon.running))

    def syphons_text(self, at: datetime) -> str:
        """The syphons of all processes, for people."""
        if self.syphon.running and not self.backlog.syphons.count:
            return "that of this process; others aren't known"
        return self.backlog.syphons.text(at)


@attrs.frozen(kw_only=True)
class QueueStatus:
    """A queue that a listener receives from. None: the namespace doesn't tell, or didn't answer."""

    queue: str
    active_tasks: int
    total_tasks: int
    locked: int  # messages
    completed: int
    failed: int
    poisoned: int
    too_late: int
    usage: UsageReport
    # Seconds that the handler took, by the class of its error; empty: it succeeded
    handled: Mapping[str, Distribution] = attrs.field(factory=dict)
    depth: int | None = None  # messages that wait


@attrs.frozen(kw_only=True)
class PoolStatus:
    """The processes of one listener that an agent runs. None: not known."""

    listener: str  # its queues
    processes: int  # that run now, those that drain included
    wanted: int
    handling: int  # messages that handlers have now
    handled: int  # since the start of the agent
    depth: int | None = None  # messages that wait, at the last look
    oldest_age: float | None = None  # seconds


@attrs.frozen(kw_only=True)
class Wake:
    """The way that an idle listener learns of messages, where its namespace must be polled."""

    announced: bool  # all senders send triggers, so that an idle listener doesn't poll
    poll_every: float | None  # seconds between receives; None: only after a trigger

    @property
    def text(self) -> str:
        if self.announced:
            return "every message has a trigger: an idle listener doesn't poll"
        if self.poll_every is None:
            return "sweep is off: an idle listener misses messages without a trigger"
        return (
            "not every sender is known to send triggers:"
            f" an idle listener polls every {self.poll_every:g} s"
        )


@attrs.frozen(kw_only=True)
class Status:
    """The status of one process. `pair` is None without a pair; `queues` are a listener's."""

    at: datetime
    started: datetime
    namespaces: tuple[NamespaceStatus, ...]
    pair: PairStatus | None = None
    queues: tuple[QueueStatus, ...] = ()
    pools: tuple[PoolStatus, ...] = ()  # of an agent
    wake: Wake | None = None
    events: Mapping[str, int] = attrs.field(factory=dict)  # since the start, by name
    alarms: tuple[Alarm, ...] = ()
    refused: tuple[RefusalCount, ...] = ()
    limited: tuple[LimitCount, ...] = ()
    connections: tuple[ConnectionCount, ...] = ()
    commits: tuple[CommitStatus, ...] = ()
    loop_lag: Distribution | None = None  # seconds; None: not measured
    # When the tokens for the namespaces (and for `claims`) expire, by name.
    token_expiries: Mapping[str, datetime] = attrs.field(factory=dict)
    tasks: int | None = None  # of the event loop; None: not counted
    expiries: tuple[Expiry, ...] = ()
    sends: tuple[SendCount, ...] = ()  # of a gateway without a pair
    durations: tuple[SendDuration, ...] = ()  # of these sends

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems that an operator should look at, one line each; empty: healthy."""
        alarms = (
            f"{each.event}, {_span((self.at - each.last).total_seconds())} ago: {each.text};"
            f" {_ALARM_ADVICE.get(each.event, _USUAL_ADVICE)}"
            for each in self.alarms
        )
        namespaces = (text for each in self.namespaces for text in each.problems(self.at))
        ends = dict.fromkeys(text for each in self.expiries for text in each.problems())
        return (*namespaces, *_problems_of(self.pair, self._lost(), self.at), *alarms, *ends)

    def _lost(self) -> bool:
        """True if some namespace can't be reached."""
        reached = (each.abilities.get(REACH) for each in self.namespaces)
        return any(one is not None and one.state is Answer.NO for one in reached)


def _problems_of(pair: PairStatus | None, lost: bool, at: datetime) -> list[str]:
    if pair is None:
        return []
    found = [
        f"entities that are {state}: {count}; {_ADVICE[state]}"
        for state, count in pair.states.items()
        if state in _ADVICE and count
    ]
    if missing := [each.entity for each in pair.entities if each.missing]:
        found.append(
            f"missing or disabled on the primary: {', '.join(missing)}; create them (`pairgate"
            " provision` makes the planned ones) or enable them, their sends go to the backlog"
        )
    if pair.busy:
        each = max(pair.busy, key=lambda busy: busy.seconds)
        found.append(
            f"busy for longer than their failover interval: {len(pair.busy)} entities,"
            f" {each.entity} for {_span(each.seconds)} ({each.text}); sends wait or fail: raise the"
            " limits of the primary, or set throttle_failover_after"
        )
    if not pair.backlog.usable:
        found.append(
            "no backlog queue can be used; check the secondary, or run `pairgate provision`"
        )
    if not found and not lost and _is_left(pair, at):
        found.append(
            f"{pair.backlog.pending} messages wait on the backlog, the primary is healthy, and no"
            f" syphon moves them{_seen(pair.backlog.syphons, at)}: start `pairgate syphon`, or set"
            " enable_syphon = true"
        )
    found += [f"pinned to the backlog: {each}; `pairgate failback`" for each in pair.pins]
    if pair.drill is not None:
        found.append(f"a drill is under way: {pair.drill.text}; `pairgate drill --end`")
    found += [f"the syphon is paused: {each}; `pairgate resume`" for each in pair.syphon.pauses]
    found += [each.text for each in pair.syphon.waiting]
    found += _dead_letter_problems(pair)
    if pair.spool is not None:
        found += _dead_letters_in("spool", pair.spool.dead_letters, f"{_REMEDY} --spool`")
    return found


def _is_left(pair: PairStatus, at: datetime) -> bool:
    """
    True if messages wait and no syphon moves them. A syphon of this process that can't move them
    reports that itself (`syphon_stalled`).
    """
    backlog = pair.backlog
    elsewhere = backlog.consumers or backlog.falls(at) or backlog.syphons.moves
    return bool(backlog.pending) and not pair.syphon.running and not elsewhere


def _seen(syphons: SyphonsSeen, at: datetime) -> str:
    """The syphons of other processes, in brackets; empty if nothing is known of them."""
    return "" if syphons.unknown else f" ({syphons.text(at)})"


def _dead_letter_problems(pair: PairStatus) -> list[str]:
    dead = pair.backlog.dead_letters
    if dead.messages is None and pair.syphon.dead_lettered:
        return [
            f"{pair.syphon.dead_lettered} backlog messages were dead-lettered since the start,"
            f" and the secondary doesn't report how many are still there: {_REMEDY}`"
        ]
    return _dead_letters_in("backlog", dead, f"{_REMEDY}`")


def _dead_letters_in(place: str, dead: DeadLetters, remedy: str) -> list[str]:
    if not dead.messages:
        return []
    age = ""
    if dead.oldest_age is not None:
        age = f", the oldest is {_span(dead.oldest_age)} old"
    return [f"dead letters of the {place}: {dead.text}{age}: {remedy}"]


def _span(seconds: float) -> str:
    return str(timedelta(seconds=max(0, round(seconds))))
