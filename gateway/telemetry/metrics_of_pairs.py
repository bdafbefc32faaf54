"""The metrics of a pair, with its backlog, its spool and its syphon: a part of `metrics`."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.domain.dead_letters import OTHER, REASONS, UNKNOWN, DeadLetters
from gateway.domain.errors import BusyReason
from gateway.domain.health.depth_history import MOST_QUEUES as MOST_BACKLOG_QUEUES
from gateway.domain.status import BacklogStatus, OrderStatus, PairStatus, SpoolStatus, SyphonStatus

OTHERS: Final = "(others)"
# The errors of `pairing.admission`.
_REFUSALS: Final = ("Busy", "InvalidRequest", "MessageTooLarge")


def pair_metrics(pair: PairStatus) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "pairgate_admission_refused_messages",
        "Messages that were refused on arrival, by the kind of the error.",
        labels=["error_type"],
    )
    for error, number in (dict.fromkeys(_REFUSALS, 0) | dict(pair.refused)).items():
        refused.add_metric([error], number)
    yield refused
    yield CounterMetricFamily(
        "pairgate_admission_oversized_messages",
        "Messages for the primary alone, as they are too large for the secondary.",
        value=pair.oversized,
    )
    twice = CounterMetricFamily(
        "pairgate_possibly_twice_messages",
        "Messages of which a send had no answer and another one was made, by who made them.",
        labels=["by"],
    )
    for maker, number in pair.possibly_twice.items():
        twice.add_metric([maker], number)
    yield twice
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
    yield GaugeMetricFamily(
        "pairgate_inflight_bytes", "Bytes of sends without an answer.", pair.inflight
    )
    yield GaugeMetricFamily(
        "pairgate_inflight_limit_bytes",
        "Limit of the bytes in flight; sends beyond it wait.",
        pair.max_inflight,
    )
    yield GaugeMetricFamily(
        "pairgate_busy_entities", "Entities whose sends pause now.", pair.paused
    )
    yield CounterMetricFamily(
        "pairgate_busy_pauses", "Pauses that the primary asked for.", value=pair.pauses
    )
    busy = GaugeMetricFamily(
        "pairgate_busy_too_long_entities",
        "Entities that have been busy for longer than their failover interval, by reason.",
        labels=["reason"],
    )
    for reason in BusyReason:
        busy.add_metric([reason.value], sum(each.reason == reason.value for each in pair.busy))
    yield busy
    yield from _backlog(pair.backlog)
    yield from _syphons_seen(pair)
    if pair.spool is not None:
        yield from _spool(pair.spool)
    yield from _syphon(pair.syphon)
    if pair.order is not None:
        yield from _order(pair.order)


def _order(order: OrderStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "pairgate_ordered_keys_away",
        "Keys of ordered entities whose sends go to the backlog.",
        order.away,
    )
    yield GaugeMetricFamily(
        "pairgate_ordered_sends_waiting",
        "Sends that wait until their key's messages have left the backlog.",
        order.waiting,
    )
    yield GaugeMetricFamily(
        "pairgate_ordered_queues_unknown",
        "Ordered backlog queues that may have messages of any key.",
        order.unknown,
    )
    if order.leases is not None:
        yield GaugeMetricFamily(
            "pairgate_ordered_leases",
            "Ordered backlog queues whose lease this gateway has.",
            order.leases,
        )
        yield CounterMetricFamily(
            "pairgate_ordered_missed_sends",
            "Sends that ended as they had neither the lease nor an orderer.",
            value=order.missed,
        )
    if order.forwarded is not None:
        forwarded = CounterMetricFamily(
            "pairgate_ordered_forwarded_sends",
            "Sends that were forwarded to the orderer, by result.",
            labels=["result"],
        )
        for result, number in order.forwarded.items():
            forwarded.add_metric([result], number)
        yield forwarded


def _backlog(backlog: BacklogStatus) -> Iterator[Metric]:
    """
    The samples of the backlog. An unknown value has no sample, so that it isn't taken for zero.
    """
    yield GaugeMetricFamily(
        "pairgate_backlog_queues_usable", "Backlog queues that aren't backing off.", backlog.usable
    )
    yield GaugeMetricFamily(
        "pairgate_backlog_queues_wanted",
        "Backlog queues that the configuration asks for.",
        backlog.wanted,
    )
    if backlog.pending is not None:
        yield GaugeMetricFamily(
            "pairgate_backlog_messages", "Messages in the backlog.", backlog.pending
        )
    yield from _backlog_queues(backlog)
    yield from _dead_letters("backlog", backlog.dead_letters)
    if backlog.oldest_age is not None:
        yield GaugeMetricFamily(
            "pairgate_backlog_oldest_age_seconds", "Age of the oldest message.", backlog.oldest_age
        )
    if backlog.as_of is not None:
        yield GaugeMetricFamily(
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
        yield GaugeMetricFamily(
            "pairgate_syphons_alive",
            "Syphons of all processes that are alive.",
            pair.syphons_alive,
        )
    last = pair.backlog.syphons.last
    if last is not None:
        yield GaugeMetricFamily(
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
        yield GaugeMetricFamily(
            f"pairgate_{place}_dead_letters_oldest_age_seconds",
            "Age of the oldest dead letter since it was enqueued.",
            dead.oldest_age,
        )


def _syphon(syphon: SyphonStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
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
    for reason in (*REASONS, OTHER):  # from 0 on, so that a rate includes the first event
        dead_lettered.add_metric([reason], syphon.dead_lettered_by_reason.get(reason, 0))
    yield dead_lettered
    yield GaugeMetricFamily(
        "pairgate_syphon_backing_off_entities",
        "Entities that are backing off after a failure.",
        syphon.backing_off,
    )
    yield GaugeMetricFamily(
        "pairgate_syphon_moved_messages_per_second",
        "Rate from the backlog to the primary in the last 10 s.",
        syphon.rate,
    )
    yield GaugeMetricFamily(
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
        yield GaugeMetricFamily(
            "pairgate_syphon_stalled",
            "1: messages wait on the backlog, and none has moved for stall_after.",
            int(syphon.stalled),
        )
    if syphon.last_moved is not None:
        yield GaugeMetricFamily(
            "pairgate_syphon_last_moved_time_seconds",
            "Last move, in seconds since 1970.",
            syphon.last_moved.timestamp(),
        )


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
            yield GaugeMetricFamily(name, text, value)
    yield from _dead_letters("spool", spool.dead_letters)
