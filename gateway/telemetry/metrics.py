"""
`Status` in Prometheus's text form.

Names are those of OpenTelemetry's semantic conventions for messaging where these have one, written
as Prometheus writes them; ours begin with `pairgate_`. Labels are bounded: namespaces, standings,
legs, outcomes, kinds of operations and events, the queues of a listener. Entities are no labels:
`GET /status` names those in trouble.
"""

from collections.abc import Iterator
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.domain.billing import Bill
from gateway.domain.status import BacklogStatus, PairStatus, QueueStatus, Status, SyphonStatus

# OpenTelemetry, "Semantic conventions for messaging client metrics".
SENT: Final = "messaging_client_sent_messages"
CONSUMED: Final = "messaging_client_consumed_messages"
_SYSTEM: Final = {"messaging_system": "pairgate", "messaging_operation_name": "send"}
_COUNTS: Final = {
    "completed": "Messages whose handler has done them.",
    "failed": "Attempts of handlers that failed.",
    "poisoned": "Messages that nobody tries again.",
    "too_late": "Messages whose lock had ended before they could be settled.",
}


def exposition(status: Status) -> bytes:
    """The text that `GET /metrics` answers."""
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
            "When the process began, in seconds since 1970.",
            status.started.timestamp(),
        )
        events = CounterMetricFamily(
            "pairgate_events", "What has happened, by the names of the log.", labels=["event"]
        )
        for name, times in status.events.items():
            events.add_metric([name], times)
        yield events
        alarms = GaugeMetricFamily(
            "pairgate_alarm", "1: a red state in the last ten minutes.", labels=["event"]
        )
        for alarm in status.alarms:
            alarms.add_metric([alarm.event], 1)
        yield alarms
        yield from _billing("namespace", {each.name: each.bill for each in status.namespaces})
        if status.pair is not None:
            yield from _pair(status.pair)
        if status.queues:
            yield from _listener(status.queues)


def _billing(label: str, bills: dict[str, Bill]) -> Iterator[Metric]:
    prefix = "pairgate_" if label == "namespace" else "pairgate_listener_"
    operations = CounterMetricFamily(
        f"{prefix}billed_operations",
        "Operations as a cloud would bill them.",
        labels=[label, "operation"],
    )
    per_message = GaugeMetricFamily(
        f"{prefix}billed_operations_per_message",
        "Operations over the messages that went through, since the start.",
        labels=[label],
    )
    per_idle_day = GaugeMetricFamily(
        f"{prefix}billed_operations_per_idle_day",
        "What a day without a message would be billed, by the idle time since the start.",
        labels=[label],
    )
    consumed = CounterMetricFamily(
        CONSUMED, "Messages that were received.", labels=[f"pairgate_{label}"]
    )
    for name, bill in bills.items():
        for operation, count in bill.operations.items():
            operations.add_metric([name, operation.value], count)
        if bill.per_message is not None:
            per_message.add_metric([name], bill.per_message)
        if bill.per_idle_day is not None:
            per_idle_day.add_metric([name], bill.per_idle_day)
        consumed.add_metric([name], bill.received)
    yield from (operations, per_message, per_idle_day)
    if label == "namespace":
        yield consumed


def _pair(pair: PairStatus) -> Iterator[Metric]:
    sent = CounterMetricFamily(
        SENT,
        "Messages of sends, by the leg that took them and the outcome.",
        labels=[*_SYSTEM, "pairgate_leg", "pairgate_outcome"],
    )
    for count in pair.sends:
        sent.add_metric([*_SYSTEM.values(), count.leg, count.outcome], count.messages)
    yield sent
    standings = GaugeMetricFamily(
        "pairgate_entities", "Entities that aren't simply on the primary.", labels=["standing"]
    )
    for standing, entities in pair.standings.items():
        standings.add_metric([standing], entities)
    yield standings
    yield _gauge("pairgate_inflight_bytes", "Of sends without an answer.", pair.inflight)
    yield _gauge("pairgate_inflight_limit_bytes", "More of them wait.", pair.max_inflight)
    yield _gauge("pairgate_busy_entities", "Sends to so many entities pause now.", pair.paused)
    yield CounterMetricFamily(
        "pairgate_busy_pauses", "Pauses that the primary asked for.", value=pair.pauses
    )
    yield from _backlog(pair.backlog)
    yield from _syphon(pair.syphon)


def _backlog(backlog: BacklogStatus) -> Iterator[Metric]:
    """What isn't known has no sample, so that nobody takes it for zero."""
    yield _gauge(
        "pairgate_backlog_queues_usable", "Backlog queues that don't rest.", backlog.usable
    )
    yield _gauge("pairgate_backlog_queues_wanted", "As the configuration says.", backlog.wanted)
    if backlog.pending is not None:
        yield _gauge("pairgate_backlog_messages", "That wait on the secondary.", backlog.pending)
    if backlog.oldest_age is not None:
        yield _gauge(
            "pairgate_backlog_oldest_age_seconds", "Of the oldest message.", backlog.oldest_age
        )
    if backlog.as_of is not None:
        yield _gauge(
            "pairgate_backlog_time_seconds",
            "When the secondary told that, in seconds since 1970.",
            backlog.as_of.timestamp(),
        )


def _syphon(syphon: SyphonStatus) -> Iterator[Metric]:
    yield _gauge("pairgate_syphon_running", "1: in this process.", int(syphon.running))
    yield CounterMetricFamily(
        "pairgate_syphon_moved_messages", "From the backlog to the primary.", value=syphon.moved
    )
    yield CounterMetricFamily(
        "pairgate_syphon_parked_messages",
        "That ended as dead letters of the backlog.",
        value=syphon.parked,
    )
    yield _gauge("pairgate_syphon_held_entities", "That rest after a failure.", syphon.held)
    if syphon.last_moved is not None:
        yield _gauge(
            "pairgate_syphon_last_moved_time_seconds",
            "In seconds since 1970.",
            syphon.last_moved.timestamp(),
        )


def _listener(queues: tuple[QueueStatus, ...]) -> Iterator[Metric]:
    for field, text in _COUNTS.items():
        family = CounterMetricFamily(f"pairgate_listener_{field}_messages", text, labels=["queue"])
        for each in queues:
            family.add_metric([each.queue], getattr(each, field))
        yield family
    tasks = GaugeMetricFamily(
        "pairgate_listener_tasks", "That take messages.", labels=["queue", "state"]
    )
    held = GaugeMetricFamily(
        "pairgate_listener_held_messages", "Locked by this process.", labels=["queue"]
    )
    for each in queues:
        tasks.add_metric([each.queue, "active"], each.active_tasks)
        tasks.add_metric([each.queue, "resting"], each.total_tasks - each.active_tasks)
        held.add_metric([each.queue], each.held)
    yield tasks
    yield held
    yield from _billing("queue", {each.queue: each.bill for each in queues})


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
