"""
`Status` in Prometheus's text format.

Names follow OpenTelemetry's semantic conventions for messaging (1.44) if these have one, in
Prometheus's spelling; our own begin with `pairgate_`. A label that OpenTelemetry leaves out has no
value, as `error_type` of successful operations.

Labels are bounded: namespaces, states, accepted by, outcomes, kinds of errors, operations and
events, known reasons of dead letters, `MOST_QUEUES` queues of a listener, and as many backlog
queues as a status has. Entities are no labels: `GET /status` names the troubled ones. An unknown
figure has no sample.
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
from gateway.domain.health.abilities import Answer
from gateway.domain.health.distribution import Distribution, added
from gateway.domain.health.expiry import Expiry
from gateway.domain.health.operation_times import RECEIVE, SETTLE
from gateway.domain.status import (
    CommitStatus,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    QueueStatus,
    SendCount,
    Status,
)
from gateway.telemetry.metrics_of_pairs import OTHERS, pair_metrics

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
        yield GaugeMetricFamily(
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
            yield from pair_metrics(status.pair)
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
    """The samples of abilities, without samples of unknown values."""
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
    """The sends of the gateway, with or without a pair; receives and settlements by namespace."""
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
    # Samples begin at 0, so that a rate includes the first event.
    messages = {(each, "accepted", ""): 0 for each in usual}
    messages |= {(each.accepted_by, each.outcome, each.error): each.messages for each in sends}
    for labels, number in messages.items():
        sent.add_metric([_PAIRGATE, "send", *labels], number)
    return sent


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
    """The refusals by limit only; the clients' names are in the status."""
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
        "When a certificate expires, in seconds since 1970.",
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
