"""
`Status` in Prometheus's text format.

Names follow OpenTelemetry's semantic conventions for messaging (1.44) if these have one, in
Prometheus's spelling; our own begin with `pairgate_`. A label that OpenTelemetry leaves out has no
value, as `error_type` of what succeeded.

Labels are bounded: namespaces, states, accepted by, outcomes, kinds of errors, operations and
events, known reasons of dead letters, `MOST_QUEUES` queues of a listener, and as many backlog
queues as a status has. Entities are no
labels: `GET /status` names those in trouble. An unknown figure has no sample.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from math import inf
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.domain.access import ClientLimit
from gateway.domain.billing import UsageReport, sum_of
from gateway.domain.dead_letters import OTHER, REASONS, UNKNOWN, DeadLetters
from gateway.domain.health.abilities import Answer
from gateway.domain.health.depth_history import MOST_QUEUES as MOST_BACKLOG_QUEUES
from gateway.domain.health.distribution import Distribution, added
from gateway.domain.health.expiry import Expiry
from gateway.domain.health.operation_times import RECEIVE, SETTLE
from gateway.domain.status import (
    BacklogStatus,
    CommitStatus,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    PairStatus,
    QueueStatus,
    SendCount,
    SpoolStatus,
    Status,
    SyphonStatus,
)

# OpenTelemetry, "Semantic conventions for messaging client metrics".
SENT: Final = "messaging_client_sent_messages"
CONSUMED: Final = "messaging_client_consumed_messages"
DURATION: Final = "messaging_client_operation_duration_seconds"
PROCESSED: Final = "messaging_process_duration_seconds"
_SYSTEM: Final = "messaging_system"
_OPERATION: Final = "messaging_operation_name"
_KIND: Final = "messaging_operation_type"
_PAIRGATE: Final = "pairgate"

MOST_QUEUES: Final = 100  # of a listener; the sums of the others are one queue
OTHERS: Final = "(others)"
_REFUSALS: Final = ("Busy", "InvalidRequest", "MessageTooLarge")  # those of `pairing.admission`
_COUNTS: Final = {
    "completed": "Messages that their handler has completed.",
    "failed": "Failed calls of handlers.",
    "poisoned": "Messages that were dead-lettered as poison.",
    "too_late": "Messages whose lock expired before they were settled.",
}


def exposition(status: Status) -> bytes:
    """The response body of `GET /metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(status))
    return generate_latest(registry)


@attrs.frozen(eq=False)
class _Figures(Collector):
    _status: Status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield _gauge(
            "pairgate_start_time_seconds",
            "Start of the process, in seconds since 1970.",
            status.started.timestamp(),
        )
        events = CounterMetricFamily(
            "pairgate_events", "Events, by their names in the log.", labels=["event"]
        )
        for name, times in status.events.items():
            events.add_metric([name], times)
        yield events
        alarms = GaugeMetricFamily(
            "pairgate_alarm",
            "1: the event was a red state in the last ten minutes.",
            labels=["event"],
        )
        for alarm in status.alarms:
            alarms.add_metric([alarm.event], 1)
        yield alarms
        refused = CounterMetricFamily(
            "pairgate_credentials_refused",
            "Requests with refused credentials, by the endpoint's protocol and the reason.",
            labels=["protocol", "reason"],
        )
        for each in status.refused:
            refused.add_metric([each.protocol, each.reason], each.times)
        yield refused
        yield _limited(status.limited)
        yield from _abilities(status.namespaces)
        yield from _billing("namespace", {each.name: each.usage for each in status.namespaces})
        yield from _connections(status.connections)
        yield from _commits(status.commits)
        yield from _loop(status)
        if status.token_expiries:
            yield _token_expiries(status.token_expiries)
        if status.expiries:
            yield from _expiries(status.expiries)
        yield from _client_operations(status)
        if status.pair is not None:
            yield from _pair(status.pair)
        if status.queues:
            yield from _listener(_bounded(status.queues))


def _loop(status: Status) -> Iterator[Metric]:
    if status.loop_lag is not None:
        yield _histogram(
            "pairgate_event_loop_lag_seconds",
            "How late the event loop runs what is due.",
            {(): status.loop_lag},
        )
    if status.tasks is not None:
        yield GaugeMetricFamily(
            "pairgate_event_loop_tasks", "Living tasks of the event loop.", status.tasks
        )


def _abilities(namespaces: Sequence[NamespaceStatus]) -> Iterator[Metric]:
    """An unknown value has no sample."""
    labels = ["namespace", "ability"]
    able = GaugeMetricFamily(
        "pairgate_namespace_ability",
        "1: the ability works; 0: it fails.",
        labels=labels,
    )
    since = GaugeMetricFamily(
        "pairgate_namespace_ability_since_time_seconds",
        "Last change of the ability, in seconds since 1970.",
        labels=labels,
    )
    for namespace in namespaces:
        for name, one in namespace.abilities.items():
            if one.state is Answer.UNKNOWN:
                continue
            able.add_metric([namespace.name, name], int(one.state is Answer.YES))
            if one.since is not None:
                since.add_metric([namespace.name, name], one.since.timestamp())
    yield from (able, since)


def _spool(spool: SpoolStatus) -> Iterator[Metric]:
    known = {
        "pairgate_spool_messages": ("Messages in the local spool.", spool.pending),
        "pairgate_spool_oldest_age_seconds": ("Age of the oldest message.", spool.oldest_age),
        "pairgate_spool_in_messages_per_second": (
            "Rate into the spool in the last 10 s.",
            spool.rate_in,
        ),
        "pairgate_spool_out_messages_per_second": (
            "Rate from the spool to the primary in the last 10 s.",
            spool.rate_out,
        ),
        "pairgate_spool_free_bytes": ("Free space of the spool.", spool.free_bytes),
    }
    for name, (text, value) in known.items():
        if value is not None:
            yield _gauge(name, text, value)
    yield from _dead_letters("spool", spool.dead_letters)


def _billing(label: str, usages: dict[str, UsageReport]) -> Iterator[Metric]:
    prefix = "pairgate_" if label == "namespace" else "pairgate_listener_"
    operations = CounterMetricFamily(
        f"{prefix}billed_operations",
        "Operations as a cloud would bill them.",
        labels=[label, "operation"],
    )
    per_message = GaugeMetricFamily(
        f"{prefix}billed_operations_per_message",
        "Operations per processed message, since the start.",
        labels=[label],
    )
    per_idle_day = GaugeMetricFamily(
        f"{prefix}billed_operations_per_idle_day",
        "Operations billed in a day without messages, by the idle time since the start.",
        labels=[label],
    )
    consumed = CounterMetricFamily(
        CONSUMED, "Received messages.", labels=[_SYSTEM, _OPERATION, "pairgate_namespace"]
    )
    for name, usage in usages.items():
        for operation, count in usage.operations.items():
            operations.add_metric([name, operation.value], count)
        if usage.per_message is not None:
            per_message.add_metric([name], usage.per_message)
        if usage.per_idle_day is not None:
            per_idle_day.add_metric([name], usage.per_idle_day)
        consumed.add_metric([_PAIRGATE, "receive", name], usage.received)
    yield from (operations, per_message, per_idle_day)
    if label == "namespace":
        yield consumed


def _client_operations(status: Status) -> Iterator[Metric]:
    """The sends of the gateway, with a pair or without; receives and settlements by namespace."""
    part = status if status.pair is None else status.pair
    usual = ("primary",) if status.pair is None else ("primary", "backlog")
    if status.pair is not None or part.sends:
        yield _sent(part.sends, usual)
    times: dict[tuple[str, ...], Distribution] = {
        (_PAIRGATE, "send", "send", "", each.accepted_by, each.error): each.seconds
        for each in part.durations
    }
    for namespace in status.namespaces:
        for operation in namespace.operations:
            kind = RECEIVE if operation.name == RECEIVE else SETTLE
            labels = (_PAIRGATE, operation.name, kind, namespace.name, "", operation.error)
            times[labels] = operation.seconds
    if status.pair is not None or times:
        yield _histogram(
            DURATION,
            "Time from a send's arrival to its verdict, of a receive, or of a settlement.",
            times,
            labels=[
                *(_SYSTEM, _OPERATION, _KIND),
                *("pairgate_namespace", "pairgate_accepted_by", "error_type"),
            ],
        )


def _sent(sends: Sequence[SendCount], usual: Iterable[str]) -> Metric:
    sent = CounterMetricFamily(
        SENT,
        "Sent messages, by who accepted them and by outcome.",
        labels=[_SYSTEM, _OPERATION, "pairgate_accepted_by", "pairgate_outcome", "error_type"],
    )
    # From 0 on, so that a rate includes the first.
    messages = {(each, "accepted", ""): 0 for each in usual}
    messages |= {(each.accepted_by, each.outcome, each.error): each.messages for each in sends}
    for labels, number in messages.items():
        sent.add_metric([_PAIRGATE, "send", *labels], number)
    return sent


def _pair(pair: PairStatus) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "pairgate_admission_refused_messages",
        "Messages that were refused on arrival, by the kind of the error.",
        labels=["error_type"],
    )
    for error, number in (dict.fromkeys(_REFUSALS, 0) | dict(pair.refused)).items():
        refused.add_metric([error], number)
    yield refused
    yield CounterMetricFamily(
        "pairgate_slow_calls",
        "Sends that the primary didn't answer within slow_call_duration.",
        value=pair.slow_calls,
    )
    changes = CounterMetricFamily(
        "pairgate_entity_state_changes",
        "Changes of entities' states, by the states before and after and by the cause.",
        labels=["before", "after", "cause"],
    )
    for change in pair.state_changes:
        changes.add_metric([change.before, change.after, change.cause], change.times)
    yield changes
    states = GaugeMetricFamily(
        "pairgate_entities", "Entities in a state other than primary.", labels=["state"]
    )
    for state, entities in pair.states.items():
        states.add_metric([state], entities)
    yield states
    yield _gauge("pairgate_inflight_bytes", "Bytes of sends without an answer.", pair.inflight)
    yield _gauge(
        "pairgate_inflight_limit_bytes",
        "Limit of the bytes in flight; sends beyond it wait.",
        pair.max_inflight,
    )
    yield _gauge("pairgate_busy_entities", "Entities whose sends pause now.", pair.paused)
    yield CounterMetricFamily(
        "pairgate_busy_pauses", "Pauses that the primary asked for.", value=pair.pauses
    )
    yield from _backlog(pair.backlog)
    yield from _syphons_seen(pair)
    if pair.spool is not None:
        yield from _spool(pair.spool)
    yield from _syphon(pair.syphon)
    if pair.order is not None:
        yield _gauge(
            "pairgate_ordered_keys_away",
            "Keys of ordered entities whose sends go to the backlog.",
            pair.order.away,
        )
        yield _gauge(
            "pairgate_ordered_sends_waiting",
            "Sends that wait until their key's messages have left the backlog.",
            pair.order.waiting,
        )
        yield _gauge(
            "pairgate_ordered_queues_unknown",
            "Ordered backlog queues that may have messages of any key.",
            pair.order.unknown,
        )


def _backlog(backlog: BacklogStatus) -> Iterator[Metric]:
    """An unknown value has no sample, so that it isn't taken for zero."""
    yield _gauge(
        "pairgate_backlog_queues_usable", "Backlog queues that aren't backing off.", backlog.usable
    )
    yield _gauge(
        "pairgate_backlog_queues_wanted",
        "Backlog queues that the configuration asks for.",
        backlog.wanted,
    )
    if backlog.pending is not None:
        yield _gauge("pairgate_backlog_messages", "Messages in the backlog.", backlog.pending)
    yield from _backlog_queues(backlog)
    yield from _dead_letters("backlog", backlog.dead_letters)
    if backlog.oldest_age is not None:
        yield _gauge(
            "pairgate_backlog_oldest_age_seconds", "Age of the oldest message.", backlog.oldest_age
        )
    if backlog.as_of is not None:
        yield _gauge(
            "pairgate_backlog_time_seconds",
            "Time of the secondary's last report, in seconds since 1970.",
            backlog.as_of.timestamp(),
        )


def _backlog_queues(backlog: BacklogStatus) -> Iterator[Metric]:
    depths = GaugeMetricFamily(
        "pairgate_backlog_queue_messages",
        "Messages on a backlog queue; of all further ones together.",
        labels=["queue"],
    )
    ages = GaugeMetricFamily(
        "pairgate_backlog_queue_oldest_age_seconds",
        "Age of the oldest message on a backlog queue.",
        labels=["queue"],
    )
    for name, each in backlog.queues.items():
        if each.pending is not None:
            depths.add_metric([name], each.pending)
        if each.oldest_age is not None:
            ages.add_metric([name], each.oldest_age)
    shown = [each.pending for each in backlog.queues.values() if each.pending is not None]
    if backlog.pending is not None and len(backlog.queues) == MOST_BACKLOG_QUEUES:
        depths.add_metric([OTHERS], max(0, backlog.pending - sum(shown)))
    yield from (depths, ages)


def _syphons_seen(pair: PairStatus) -> Iterator[Metric]:
    if pair.syphons_alive is not None:
        yield _gauge(
            "pairgate_syphons_alive",
            "Syphons of all processes that are alive.",
            pair.syphons_alive,
        )
    last = pair.backlog.syphons.last
    if last is not None:
        yield _gauge(
            "pairgate_syphons_last_seen_time_seconds",
            "Last sign of life of any syphon, in seconds since 1970.",
            last.timestamp(),
        )


def _dead_letters(place: str, dead: DeadLetters) -> Iterator[Metric]:
    if dead.messages is not None:
        family = GaugeMetricFamily(
            f"pairgate_{place}_dead_letters", "Dead letters, by reason.", labels=["reason"]
        )
        for reason in (*REASONS, OTHER, UNKNOWN):
            family.add_metric([reason], dead.reasons.get(reason, 0))
        yield family
    if dead.oldest_age is not None:
        yield _gauge(
            f"pairgate_{place}_dead_letters_oldest_age_seconds",
            "Age of the oldest dead letter since it was enqueued.",
            dead.oldest_age,
        )


def _syphon(syphon: SyphonStatus) -> Iterator[Metric]:
    yield _gauge(
        "pairgate_syphon_running", "1: a syphon runs in this process.", int(syphon.running)
    )
    yield CounterMetricFamily(
        "pairgate_syphon_moved_messages",
        "Messages moved from the backlog to the primary.",
        value=syphon.moved,
    )
    dead_lettered = CounterMetricFamily(
        "pairgate_syphon_dead_lettered_messages",
        "Messages dead-lettered in the backlog, by reason.",
        labels=["reason"],
    )
    for reason in (*REASONS, OTHER):  # from 0 on, so that a rate includes the first
        dead_lettered.add_metric([reason], syphon.dead_lettered_by_reason.get(reason, 0))
    yield dead_lettered
    yield _gauge(
        "pairgate_syphon_backing_off_entities",
        "Entities that are backing off after a failure.",
        syphon.backing_off,
    )
    yield _gauge(
        "pairgate_syphon_moved_messages_per_second",
        "Rate from the backlog to the primary in the last 10 s.",
        syphon.rate,
    )
    yield _gauge(
        "pairgate_syphon_pauses",
        "Pauses of the syphon by operators, in force now.",
        len(syphon.pauses),
    )
    copies = GaugeMetricFamily(
        "pairgate_syphon_copies",
        "Backlog messages that the syphon has in hand, by the state of their way.",
        labels=["state"],
    )
    for state, number in syphon.copies.items():
        copies.add_metric([state], number)
    yield copies
    if syphon.stalled is not None:
        yield _gauge(
            "pairgate_syphon_stalled",
            "1: messages wait on the backlog, and none has moved for stall_after.",
            int(syphon.stalled),
        )
    if syphon.last_moved is not None:
        yield _gauge(
            "pairgate_syphon_last_moved_time_seconds",
            "Last move, in seconds since 1970.",
            syphon.last_moved.timestamp(),
        )


def _listener(queues: Sequence[QueueStatus]) -> Iterator[Metric]:
    for field, text in _COUNTS.items():
        family = CounterMetricFamily(f"pairgate_listener_{field}_messages", text, labels=["queue"])
        for each in queues:
            family.add_metric([each.queue], getattr(each, field))
        yield family
    tasks = GaugeMetricFamily(
        "pairgate_listener_tasks", "Receiving tasks.", labels=["queue", "state"]
    )
    locked = GaugeMetricFamily(
        "pairgate_listener_locked_messages", "Messages locked by this process.", labels=["queue"]
    )
    for each in queues:
        tasks.add_metric([each.queue, "active"], each.active_tasks)
        tasks.add_metric([each.queue, "idle"], each.total_tasks - each.active_tasks)
        locked.add_metric([each.queue], each.locked)
    yield tasks
    yield locked
    yield _histogram(
        PROCESSED,
        "Time that the handler took for a message.",
        {
            (_PAIRGATE, "process", each.queue, error): seconds
            for each in queues
            for error, seconds in each.handled.items()
        },
        labels=[_SYSTEM, _OPERATION, "messaging_destination_name", "error_type"],
    )
    yield from _billing("queue", {each.queue: each.usage for each in queues})


def _bounded(queues: Sequence[QueueStatus]) -> Sequence[QueueStatus]:
    """The first `MOST_QUEUES` queues, and the sums of all others as one more."""
    if len(queues) <= MOST_QUEUES:
        return queues
    others = queues[MOST_QUEUES:]
    kinds = sorted({error for each in others for error in each.handled})
    handled = {
        error: added(each.handled[error] for each in others if error in each.handled)
        for error in kinds
    }
    return [
        *queues[:MOST_QUEUES],
        QueueStatus(
            queue=OTHERS,
            active_tasks=sum(each.active_tasks for each in others),
            total_tasks=sum(each.total_tasks for each in others),
            locked=sum(each.locked for each in others),
            **{field: sum(getattr(each, field) for each in others) for field in _COUNTS},
            usage=sum_of([each.usage for each in others]),
            handled={error: seconds for error, seconds in handled.items() if seconds is not None},
        ),
    ]


def _limited(counts: Sequence[LimitCount]) -> Metric:
    """Refusals by the limit alone: the clients' names are in the status."""
    limited = CounterMetricFamily(
        "pairgate_client_limit_refused",
        "Connections, requests and bodies of clients that had as many as one client may.",
        labels=["limit"],
    )
    sums = Counter(dict.fromkeys((limit.value for limit in ClientLimit), 0))
    for each in counts:
        sums[each.limit] += each.times
    for limit, times in sums.items():
        limited.add_metric([limit], times)
    return limited


def _connections(connections: Sequence[ConnectionCount]) -> Iterator[Metric]:
    labels = ["protocol"]
    now = GaugeMetricFamily(
        "pairgate_connections", "Connections of clients, by the endpoint's protocol.", labels=labels
    )
    limit = GaugeMetricFamily(
        "pairgate_connections_limit", "Limit of these connections.", labels=labels
    )
    opened = CounterMetricFamily(
        "pairgate_connections_opened", "Connections that were accepted.", labels=labels
    )
    refused = CounterMetricFamily(
        "pairgate_connections_refused",
        "Connections that were closed because there were too many.",
        labels=labels,
    )
    for each in connections:
        now.add_metric([each.protocol], each.open)
        limit.add_metric([each.protocol], each.limit)
        opened.add_metric([each.protocol], each.opened)
        refused.add_metric([each.protocol], each.refused)
    yield from (now, limit, opened, refused)


def _commits(commits: Sequence[CommitStatus]) -> Iterator[Metric]:
    labels = ["namespace"]
    yield _histogram(
        "pairgate_store_commit_duration_seconds",
        "Time of a commit of an embedded store, the sync of the disk included.",
        {(each.name,): each.seconds for each in commits},
        labels=labels,
    )
    yield _histogram(
        "pairgate_store_commit_operations",
        "Operations that share a commit.",
        {(each.name,): each.operations for each in commits},
        labels=labels,
    )


def _expiries(expiries: Sequence[Expiry]) -> Iterator[Metric]:
    labels = ["setting", "file"]
    family = GaugeMetricFamily(
        "pairgate_certificate_expiry_time_seconds",
        "End of a certificate, in seconds since 1970.",
        labels=labels,
    )
    refused = GaugeMetricFamily(
        "pairgate_certificate_files_refused",
        "1: changed files can't be used, and the previous certificate stays in use.",
        labels=labels,
    )
    for each in expiries:
        family.add_metric([each.setting, each.file], each.at.timestamp())
        refused.add_metric([each.setting, each.file], bool(each.refused))
    yield family
    yield refused


def _token_expiries(expiries: Mapping[str, datetime]) -> Metric:
    family = GaugeMetricFamily(
        "pairgate_token_expiry_time_seconds",
        "When the token for a namespace expires, in seconds since 1970.",
        labels=["namespace"],
    )
    for name, at in expiries.items():
        family.add_metric([name], at.timestamp())
    return family


def _histogram(
    name: str,
    text: str,
    values: Mapping[tuple[str, ...], Distribution],
    labels: Sequence[str] = (),
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for labelled, each in values.items():
        counts = accumulate(each.counts)
        buckets = [
            (_bound_text(bound), count)
            for bound, count in zip((*each.bounds, inf), counts, strict=True)
        ]
        family.add_metric(labelled, buckets, each.total)
    return family


def _bound_text(bound: float) -> str:
    return "+Inf" if bound == inf else str(bound)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
