"""The sections of a pair: its entities, backlog, spool and syphon, and the sends through it."""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import attrs
from attrs import field

from gateway.domain.dead_letters import OTHER, REASONS, DeadLetters
from gateway.domain.errors import BusyReason
from gateway.domain.health.depth_history import MOST_QUEUES, QueueDepth
from gateway.domain.health.distribution import Distribution
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import PairProcess
from gateway.domain.status.figures import (
    ALL,
    EACH,
    KEY,
    KEY_OF_ANY_CASE,
    LEAST,
    MOST,
    OTHERS,
    SUM,
    TOTAL,
    Metadata,
    counter,
    gauge,
    histogram,
    keyed,
    label,
    merge,
    place,
)

MOST_PROCESSES: Final = 100  # of the pair that are named
MOST_ENTITIES: Final = 100  # troubled entities by name; the others are only counted
RATE_SECONDS: Final = 10.0  # the window of rates
FALLS: Final = timedelta(seconds=60)  # after a fall of the depth a syphon counts as running
# The errors of `pairing.admission`.
_REFUSALS: Final = ("Busy", "InvalidRequest", "MessageTooLarge")


@attrs.frozen(kw_only=True)
class TroubledEntity:
    """An entity that isn't healthy."""

    entity: str = field(metadata=KEY_OF_ANY_CASE)
    state: str
    since: datetime
    reason: str
    pinned: bool
    missing: bool = False  # the primary had it, and has it no more, or has disabled it
    # Messages that went to the backlog or the spool since it left the primary, or the process
    # started.
    diverted: int = field(default=0, metadata=SUM)
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


def _longest_busy(
    own: Sequence[BusyEntity], others: Sequence[Sequence[BusyEntity]], ended: object
) -> tuple[BusyEntity, ...]:
    """Each entity once, as the process has it in which it has been busy for the longest time."""
    busy = sorted((one for each in (own, *others) for one in each), key=lambda one: one.seconds)
    return tuple({each.entity: each for each in busy}.values())


def _other_queues(backlog: "BacklogStatus") -> Mapping[str, int]:
    """The depth of each backlog queue, and of all further ones together."""
    depths = {
        name: each.pending for name, each in backlog.queues.items() if each.pending is not None
    }
    if backlog.pending is not None and len(backlog.queues) == MOST_QUEUES:
        depths[OTHERS] = max(0, backlog.pending - sum(depths.values()))
    return depths


@attrs.frozen(kw_only=True)
class BacklogStatus:
    """The backlog queues on the secondary. None: not known."""

    wanted: int = field(
        metadata=gauge(
            "pairgate_backlog_queues_wanted", "Backlog queues that the configuration asks for."
        )
    )
    usable: int | None = field(  # None: not known yet
        metadata=LEAST
        | gauge("pairgate_backlog_queues_usable", "Backlog queues that aren't backing off.")
    )
    pending: int | None = field(  # messages, of all gateways with this label
        metadata=gauge("pairgate_backlog_messages", "Messages in the backlog.")
    )
    oldest_age: float | None = field(  # seconds
        metadata=gauge("pairgate_backlog_oldest_age_seconds", "Age of the oldest message.")
    )
    as_of: datetime | None = field(  # the date of these values
        metadata=gauge(
            "pairgate_backlog_time_seconds",
            "Time of the secondary's last report, in seconds since 1970.",
        )
    )
    locked_here: int = 0  # of `pending`, where the secondary doesn't count what is locked
    last_decrease: datetime | None = None  # the last reading with a lower `pending`
    consumers: bool = False  # other processes receive from the backlog
    dead_letters: DeadLetters = field(factory=DeadLetters, metadata=place("backlog"))
    queues: Mapping[str, QueueDepth] = field(  # the first `MOST_QUEUES`
        factory=dict,
        metadata=keyed("queue")
        | gauge(
            "pairgate_backlog_queue_messages",
            "Messages on a backlog queue; of all further ones together.",
            labels=("queue",),
            of=_other_queues,
        ),
    )
    syphons: SyphonsSeen = field(factory=SyphonsSeen)  # of all processes
    # Of `pending`, by entity: at most `MOST_ENTITIES`, those with the most. None: not known.
    by_entity: Mapping[str, int] | None = None
    counted: bool = False  # `pending` has what this process has counted since `as_of`
    unknown: str = ""  # why `pending` isn't known
    # Messages/s by which the depth falls, by all processes; None: it doesn't, or isn't known to.
    decrease_rate: float | None = None
    # Messages/s that the syphons of other processes tell to move; None: they tell none.
    syphons_rate: float | None = None

    @property
    def is_empty(self) -> bool:
        """True if the secondary itself has said so, and nothing has been diverted since."""
        return self.pending == 0 and not self.counted

    def falls(self, at: datetime) -> bool:
        """True if the depth has fallen in the last `FALLS`, until that date."""
        return self.last_decrease is not None and at - self.last_decrease <= FALLS


@attrs.frozen(kw_only=True)
class SpoolStatus:
    """The local spool behind the secondary; `app/spooling.py` reads it. None: not known."""

    pending: int | None = field(  # messages
        metadata=gauge("pairgate_spool_messages", "Messages in the local spool.")
    )
    oldest_age: float | None = field(  # seconds
        metadata=gauge("pairgate_spool_oldest_age_seconds", "Age of the oldest message.")
    )
    rate_in: float = field(  # messages/s, in the last 10 s
        metadata=SUM
        | gauge("pairgate_spool_in_messages_per_second", "Rate into the spool in the last 10 s.")
    )
    rate_out: float = field(  # to the primary
        metadata=SUM
        | gauge(
            "pairgate_spool_out_messages_per_second",
            "Rate from the spool to the primary in the last 10 s.",
        )
    )
    free_bytes: int | None = field(  # of its own limit and of its disk, the smaller
        metadata=gauge("pairgate_spool_free_bytes", "Free space of the spool.")
    )
    dead_letters: DeadLetters = field(factory=DeadLetters, metadata=place("spool"))


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


@attrs.frozen(kw_only=True)
class SyphonStatus:
    """The syphons of this process, and the messages that they moved since its start."""

    running: bool = field(  # the backlog's syphon runs in this process
        metadata=gauge("pairgate_syphon_running", "1: a syphon runs in this process.")
    )
    moved: int = field(  # messages
        metadata=counter(
            "pairgate_syphon_moved_messages", "Messages moved from the backlog to the primary."
        )
    )
    rate: float = field(  # messages/s, in the last `RATE_SECONDS`
        metadata=gauge(
            "pairgate_syphon_moved_messages_per_second",
            "Rate from the backlog to the primary in the last 10 s.",
        )
    )
    last_moved: datetime | None = field(
        metadata=gauge(
            "pairgate_syphon_last_moved_time_seconds", "Last move, in seconds since 1970."
        )
    )
    backing_off: int = field(  # entities
        metadata=gauge(
            "pairgate_syphon_backing_off_entities", "Entities that are backing off after a failure."
        )
    )
    dead_lettered: int  # messages that ended as dead letters of the backlog
    dead_lettered_by_reason: Mapping[str, int] = field(
        factory=dict,
        metadata=counter(
            "pairgate_syphon_dead_lettered_messages",
            "Messages dead-lettered in the backlog, by reason.",
            labels=("reason",),
            # From 0 on, so that a rate includes the first event.
            of=lambda syphon: {
                reason: syphon.dead_lettered_by_reason.get(reason, 0)
                for reason in (*REASONS, OTHER)
            },
        ),
    )
    waiting: tuple[Waiting, ...] = ()  # at most `MOST_ENTITIES`
    pauses: tuple[str, ...] = field(  # by operators: what, by whom, until when, and why
        default=(),
        metadata=gauge(
            "pairgate_syphon_pauses",
            "Pauses of the syphon by operators, in force now.",
            of=lambda syphon: len(syphon.pauses),
        ),
    )
    # Messages wait and none has moved for `stall_after`; None: no syphon of this process has looked
    stalled: bool | None = field(
        default=None,
        metadata=gauge(
            "pairgate_syphon_stalled",
            "1: messages wait on the backlog, and none has moved for stall_after.",
        ),
    )
    copies: Mapping[str, int] = field(  # backlog messages, by `CopyState`
        factory=dict,
        metadata=gauge(
            "pairgate_syphon_copies",
            "Backlog messages that the syphon has in hand, by the state of their way.",
            labels=("state",),
        ),
    )
    # The last reason for which a message couldn't be moved, since the last one that was.
    last_error: str = ""


@attrs.frozen(kw_only=True)
class SendCount:
    """
    Messages of sends with that outcome. `accepted_by` is empty for failed sends, `error` (a class
    of `domain.errors`) for accepted ones.
    """

    accepted_by: str = field(metadata=KEY)
    outcome: str = field(metadata=KEY)
    messages: int = field(metadata=TOTAL)
    error: str = field(default="", metadata=KEY)


@attrs.frozen(kw_only=True)
class SendDuration:
    """Seconds from a send's arrival to its verdict. `accepted_by`, `error`: as in `SendCount`."""

    accepted_by: str = field(metadata=KEY)
    error: str = field(metadata=KEY)
    seconds: Distribution = field(metadata=TOTAL)


def counts_of(sends: Sequence[SendCount], *usual: str) -> Mapping[tuple[str, ...], int]:
    """
    The messages by operation, who accepted, outcome and error. Those that the usual ones accept
    begin at 0, so that a rate includes the first event.
    """
    counts = {(each, "accepted", ""): 0 for each in usual}
    counts |= {(each.accepted_by, each.outcome, each.error): each.messages for each in sends}
    return {("pairgate", "send", *verdict): messages for verdict, messages in counts.items()}


def sent(of: Any) -> Metadata:
    """The field has `SendCount`s; `of` gives them as `counts_of` does."""
    return counter(
        "messaging_client_sent_messages",
        "Sent messages, by who accepted them and by outcome.",
        labels=(
            *("messaging_system", "messaging_operation_name"),
            *("pairgate_accepted_by", "pairgate_outcome", "error_type"),
        ),
        of=of,
    )


def took(of: Any) -> Metadata:
    """
    The field has durations; `of` gives them by the operation's name and type, namespace, who
    accepted, and error.
    """
    return histogram(
        "messaging_client_operation_duration_seconds",
        "Time from a send's arrival to its verdict, of a receive, or of a settlement.",
        labels=(
            *("messaging_operation_name", "messaging_operation_type"),
            *("pairgate_namespace", "pairgate_accepted_by", "error_type", "messaging_system"),
        ),
        of=lambda section: {(*labels, "pairgate"): each for labels, each in of(section)},
        alone=True,
    )


SENDS_TOOK: Final = took(
    lambda section: (
        (("send", "send", "", each.accepted_by, each.error), each.seconds)
        for each in section.durations
    )
)


@attrs.frozen(kw_only=True)
class StateChangeCount:
    """Changes of entities' states, by what has caused them."""

    before: str = field(metadata=label("before"))
    after: str = field(metadata=label("after"))
    cause: str = field(metadata=label("cause"))
    times: int = field(
        metadata=counter(
            "pairgate_entity_state_changes",
            "Changes of entities' states, by the states before and after and by the cause.",
        )
    )


@attrs.frozen(kw_only=True)
class PairStatus:
    """The pair, its troubled entities, and what it did since the start."""

    label: str
    states: Mapping[str, int] = field(  # the number of troubled entities by state
        metadata=gauge(
            "pairgate_entities", "Entities in a state other than primary.", labels=("state",)
        )
    )
    entities: tuple[TroubledEntity, ...] = field(metadata=EACH)  # at most `MOST_ENTITIES`
    backlog: BacklogStatus = field(metadata=EACH)
    syphon: SyphonStatus = field(
        metadata=gauge(
            "pairgate_syphons_alive",
            "Syphons of all processes that are alive.",
            of=lambda pair: pair.syphons_alive,
        )
    )
    sends: tuple[SendCount, ...] = field(
        metadata=ALL | sent(lambda pair: counts_of(pair.sends, "primary", "backlog"))
    )
    inflight: int = field(  # bytes
        metadata=SUM | gauge("pairgate_inflight_bytes", "Bytes of sends without an answer.")
    )
    max_inflight: int = field(
        metadata=SUM
        | gauge(
            "pairgate_inflight_limit_bytes",
            "Limit of the bytes in flight; sends beyond it wait.",
        )
    )
    paused: int = field(  # entities whose sends wait because the primary is busy
        metadata=MOST | gauge("pairgate_busy_entities", "Entities whose sends pause now.")
    )
    pauses: int = field(  # since the start
        metadata=counter("pairgate_busy_pauses", "Pauses that the primary asked for.")
    )
    busy: tuple[BusyEntity, ...] = field(  # for too long
        default=(),
        metadata=merge(_longest_busy)
        | gauge(
            "pairgate_busy_too_long_entities",
            "Entities that have been busy for longer than their failover interval, by reason.",
            labels=("reason",),
            of=lambda pair: {
                reason.value: sum(each.reason == reason.value for each in pair.busy)
                for reason in BusyReason
            },
        ),
    )
    spool: SpoolStatus | None = field(default=None, metadata=EACH)  # None: none is configured
    pins: tuple[str, ...] = ()  # by operators: what, by whom, until when, and why
    # Of `states`: those that the primary has answered without a failure for a few seconds. They
    # return by themselves, later for an earlier return that didn't last.
    answering: Mapping[str, int] = field(factory=dict)
    durations: tuple[SendDuration, ...] = field(default=(), metadata=ALL | SENDS_TOOK)
    refused: Mapping[str, int] = field(  # messages, by the class of the error
        factory=dict,
        metadata=counter(
            "pairgate_admission_refused_messages",
            "Messages that were refused on arrival, by the kind of the error.",
            labels=("error_type",),
            of=lambda pair: dict.fromkeys(_REFUSALS, 0) | dict(pair.refused),
        ),
    )
    oversized: int = field(  # messages for the primary alone, as the secondary couldn't take them
        default=0,
        metadata=counter(
            "pairgate_admission_oversized_messages",
            "Messages for the primary alone, as they are too large for the secondary.",
        ),
    )
    # Messages of which a send had no answer and another one was made, by who made them.
    possibly_twice: Mapping[str, int] = field(
        factory=dict,
        metadata=counter(
            "pairgate_possibly_twice_messages",
            "Messages of which a send had no answer and another one was made, by who made them.",
            labels=("by",),
        ),
    )
    slow_calls: int = field(
        default=0,
        metadata=counter(
            "pairgate_slow_calls",
            "Sends that the primary didn't answer within slow_call_duration.",
        ),
    )
    state_changes: tuple[StateChangeCount, ...] = field(default=(), metadata=ALL)
    # Messages that went to the backlog or the spool since the start, of the entities with the most:
    # at most `MOST_ENTITIES`.
    diverted: Mapping[str, int] = field(factory=dict, metadata=TOTAL)
    primary_answers: bool | None = None  # None: not known
    # Problems of the pair's other processes, as far as this one may read their records.
    process_problems: tuple[Problem, ...] = field(
        default=(),
        metadata=gauge(
            "pairgate_process_problems",
            "Problems that the pair's other processes tell.",
            of=lambda pair: len(pair.process_problems),
        ),
    )
    processes: tuple[PairProcess, ...] = ()  # by their records; at most `MOST_PROCESSES`
    # Spools with messages, and drills, of the pair's other processes, as their records tell.
    process_texts: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()  # those that follow no orders from here: which, and why
    # Why it isn't known which processes follow orders from here; empty: it is known.
    reach_unknown: str = ""

    @property
    def troubled(self) -> Mapping[str, int]:
        """The number of entities by state, but for those that return by themselves."""
        return Counter(self.states) - Counter(self.answering)

    @property
    def syphons_alive(self) -> int | None:
        """The syphons of all processes that are alive, this one's included; None: not known."""
        count = self.backlog.syphons.count
        return None if count is None else max(count, int(self.syphon.running))
