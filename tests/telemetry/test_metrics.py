"""The figures as Prometheus reads them."""

from typing import Any

import attrs

from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.depth_history import MOST_QUEUES, QueueDepth, first_queues
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.status.figures import OTHERS
from gateway.domain.status.process import Status
from gateway.extensions.order.status import ORDER
from gateway.telemetry.metrics import exposition
from tests.telemetry.metrics import samples, value
from tests.wire.pairgate.status import NOW, OUTAGE, WELL


def test_sends_are_told_by_who_accepted_and_by_outcome() -> None:
    name, common = "messaging_client_sent_messages_total", ("send", "pairgate")

    assert value(OUTAGE, name, *common, "primary", "accepted", "") == 3
    assert value(OUTAGE, name, *common, "backlog", "accepted", "") == 5
    assert value(OUTAGE, name, *common, "", "unknown", "NoAnswer") == 1


def test_durations_of_sends_are_told_by_who_accepted_or_by_the_error() -> None:
    name, common = "messaging_client_operation_duration_seconds", ("send", "pairgate")

    for verdict in (("primary", ""), ("", "NoAnswer")):
        buckets = [
            value(OUTAGE, f"{name}_bucket", *common, *verdict, bound)
            for bound in ("0.005", "0.1", "+Inf")
        ]
        assert buckets == [2, 3, 4]
        assert value(OUTAGE, f"{name}_count", *common, *verdict) == 4
        assert value(OUTAGE, f"{name}_sum", *common, *verdict) == 0.75


def test_changes_slow_calls_and_refusals_are_counted() -> None:
    refused = "pairgate_admission_refused_messages_total"
    causes = ("suspect", "secondary", "failed")

    assert value(OUTAGE, "pairgate_entity_state_changes_total", *causes) == 2
    assert value(OUTAGE, "pairgate_slow_calls_total") == 6
    assert value(OUTAGE, refused, "MessageTooLarge") == 2
    assert value(OUTAGE, refused, "Busy") == 0


def test_the_process_tells_of_its_connections_commits_loop_and_certificates() -> None:
    assert value(OUTAGE, "pairgate_connections", "amqp") == 2
    assert value(OUTAGE, "pairgate_connections_limit", "amqp") == 1000
    assert value(OUTAGE, "pairgate_connections_opened_total", "amqp") == 5
    assert value(OUTAGE, "pairgate_connections_refused_total", "amqp") == 1
    assert value(OUTAGE, "pairgate_store_commit_duration_seconds_count", "east") == 4
    assert value(OUTAGE, "pairgate_store_commit_operations_sum", "east") == 0.75
    assert value(OUTAGE, "pairgate_event_loop_lag_seconds_bucket", "0.1") == 3
    assert value(OUTAGE, "pairgate_event_loop_tasks") == 70
    expires = value(OUTAGE, "pairgate_token_expiry_time_seconds", "east")
    assert expires == OUTAGE.token_expiries["east"].timestamp()
    [expiry] = OUTAGE.expiries
    ends = value(OUTAGE, "pairgate_certificate_expiry_time_seconds", expiry.setting, expiry.file)
    assert ends == expiry.at.timestamp()
    refused = value(OUTAGE, "pairgate_certificate_files_refused", expiry.setting, expiry.file)
    assert refused == 1


def test_a_figure_that_a_process_does_not_measure_has_no_sample() -> None:
    names = {name for name, _ in samples(WELL)}

    assert not {each for each in names if "loop" in each or "certificate" in each}


def test_a_syphon_tells_its_rate_what_it_has_in_hand_and_whether_it_has_stalled() -> None:
    assert OUTAGE.pair is not None
    unsure = attrs.evolve(OUTAGE.pair, syphon=attrs.evolve(OUTAGE.pair.syphon, stalled=None))

    assert value(OUTAGE, "pairgate_syphon_moved_messages_per_second") == 0.5
    assert value(OUTAGE, "pairgate_syphon_copies", "received") == 3
    assert value(OUTAGE, "pairgate_syphon_stalled") == 1
    assert value(attrs.evolve(OUTAGE, pair=unsure), "pairgate_syphon_stalled") is None


def test_durations_of_handlers_are_told_by_queue_and_error() -> None:
    name, common = "messaging_process_duration_seconds_count", ("process", "pairgate", "orders")

    assert value(OUTAGE, name, *common, "") == 4
    assert value(OUTAGE, name, *common, "ValueError") == 4


def test_an_outage_is_seen() -> None:
    assert value(OUTAGE, "pairgate_entities", "secondary") == 1
    assert value(OUTAGE, "pairgate_backlog_messages") == 5
    assert value(OUTAGE, "pairgate_backlog_oldest_age_seconds") == 1.5
    assert value(OUTAGE, "pairgate_syphon_moved_messages_total") == 7
    assert value(OUTAGE, "pairgate_syphon_backing_off_entities") == 1
    assert value(OUTAGE, "pairgate_inflight_bytes") == 10
    assert value(OUTAGE, "pairgate_busy_pauses_total") == 4
    assert value(OUTAGE, "pairgate_alarm", "syphon_stalled") == 1


def test_the_work_of_a_namespace_is_told_apart_and_an_unknown_figure_is_missing() -> None:
    able, since = "pairgate_namespace_ability", "pairgate_namespace_ability_since_time_seconds"
    [namespace] = OUTAGE.namespaces
    began = namespace.abilities["send"].since

    assert began is not None
    assert value(OUTAGE, able, "east", "send") == 0
    assert value(OUTAGE, since, "east", "send") == began.timestamp()
    assert value(OUTAGE, able, "east", "reach") == 0
    assert value(OUTAGE, able, "east", "receive") is None
    assert value(OUTAGE, able, "east", "manage") is None
    assert value(WELL, able, "east", "send") is None


def test_leases_of_ordered_entities_and_forwarded_sends_are_told_where_there_are_some() -> None:
    forwarded = "pairgate_ordered_forwarded_sends_total"

    assert value(OUTAGE, "pairgate_ordered_leases") == 1
    assert value(OUTAGE, "pairgate_ordered_missed_sends_total") == 4
    assert value(OUTAGE, forwarded, "accepted") == 5
    order = attrs.evolve(OUTAGE.sections[ORDER], leases=None, forwarded=None)
    alone = attrs.evolve(OUTAGE, sections={ORDER: order})
    assert value(alone, "pairgate_ordered_missed_sends_total") is None
    assert value(alone, forwarded, "accepted") is None


def test_the_spool_is_told_where_there_is_one() -> None:
    names = ["messages", "oldest_age_seconds", "in_messages_per_second",
             "out_messages_per_second", "free_bytes"]  # fmt: skip

    assert [value(OUTAGE, f"pairgate_spool_{name}") for name in names] == [3, 2.5, 1.5, 0, 1024]
    assert [value(WELL, f"pairgate_spool_{name}") for name in names] == [None] * 5


def test_bills_are_told_for_namespaces_and_for_queues() -> None:
    for prefix, name in (("pairgate", "east"), ("pairgate_listener", "orders")):
        assert value(OUTAGE, f"{prefix}_billed_operations_total", name, "empty") == 60
        assert value(OUTAGE, f"{prefix}_billed_operations_per_message", name) == 1
        assert value(OUTAGE, f"{prefix}_billed_operations_per_idle_day", name) == 1440


def test_an_unknown_figure_has_no_sample() -> None:
    assert OUTAGE.pair is not None
    unknown = {"pending": None, "oldest_age": None, "as_of": None, "dead_letters": DeadLetters()}
    backlog = attrs.evolve(OUTAGE.pair.backlog, **unknown)
    silent = attrs.evolve(OUTAGE, pair=attrs.evolve(OUTAGE.pair, backlog=backlog))

    assert value(silent, "pairgate_backlog_messages") is None
    assert value(silent, "pairgate_backlog_oldest_age_seconds") is None
    assert value(silent, "pairgate_backlog_dead_letters", "EnvelopeMalformed") is None
    assert value(silent, "pairgate_backlog_dead_letters_oldest_age_seconds") is None


def test_the_depth_of_each_backlog_queue_is_told() -> None:
    name, queue = "pairgate_backlog_queue_messages", "east/x-servicebus-transfer"

    assert value(OUTAGE, name, f"{queue}/0") == 5
    assert value(OUTAGE, name, f"{queue}/1") == 0
    assert value(OUTAGE, "pairgate_backlog_queue_oldest_age_seconds", f"{queue}/0") == 1.5
    assert value(OUTAGE, "pairgate_backlog_queue_oldest_age_seconds", f"{queue}/1") is None
    assert value(OUTAGE, name, OTHERS) is None


def test_backlog_queues_beyond_the_first_are_one() -> None:
    shown = {f"queue {n:04}": QueueDepth(pending=2, oldest_age=None) for n in range(1000)}
    status = with_backlog(queues=first_queues(shown), pending=2000)

    assert value(status, "pairgate_backlog_queue_messages", OTHERS) == 2000 - 2 * MOST_QUEUES
    names = [name for name, _ in samples(status) if name == "pairgate_backlog_queue_messages"]
    assert len(names) == MOST_QUEUES + 1


def test_syphons_of_all_processes_are_told_if_they_are_known() -> None:
    unknown = with_backlog(syphons=SyphonsSeen())
    none = with_backlog(syphons=SyphonsSeen(at=NOW, since=NOW, unknown=""))
    assert none.pair is not None
    here = attrs.evolve(none.pair.syphon, running=True)
    own = attrs.evolve(none, pair=attrs.evolve(none.pair, syphon=here))
    elsewhere = attrs.evolve(here, running=False)
    none = attrs.evolve(none, pair=attrs.evolve(none.pair, syphon=elsewhere))

    assert value(OUTAGE, "pairgate_syphons_alive") == 1
    assert value(OUTAGE, "pairgate_syphons_last_seen_time_seconds") == NOW.timestamp()
    assert value(none, "pairgate_syphons_alive") == 0
    assert value(own, "pairgate_syphons_alive") == 1
    assert value(none, "pairgate_syphons_last_seen_time_seconds") is None
    assert value(unknown, "pairgate_syphons_alive") is None


def with_backlog(**fields: Any) -> Status:
    assert OUTAGE.pair is not None
    backlog = attrs.evolve(OUTAGE.pair.backlog, **fields)
    return attrs.evolve(OUTAGE, pair=attrs.evolve(OUTAGE.pair, backlog=backlog))


def test_dead_letters_of_the_backlog_are_told_by_reason() -> None:
    assert OUTAGE.pair is not None
    backlog = attrs.evolve(
        OUTAGE.pair.backlog,
        dead_letters=DeadLetters(
            messages=5, oldest_age=9.5, reasons={"EnvelopeMalformed": 4, "unknown": 1}
        ),
    )
    syphon = attrs.evolve(OUTAGE.pair.syphon, dead_lettered_by_reason={"other": 3})
    dead = attrs.evolve(OUTAGE, pair=attrs.evolve(OUTAGE.pair, backlog=backlog, syphon=syphon))

    assert value(dead, "pairgate_backlog_dead_letters", "EnvelopeMalformed") == 4
    assert value(dead, "pairgate_backlog_dead_letters", "unknown") == 1
    assert value(dead, "pairgate_backlog_dead_letters", "EntityNotFound") == 0
    assert value(dead, "pairgate_backlog_dead_letters_oldest_age_seconds") == 9.5
    assert value(dead, "pairgate_syphon_dead_lettered_messages_total", "other") == 3
    assert value(dead, "pairgate_syphon_dead_lettered_messages_total", "EnvelopeMalformed") == 0


def test_entities_are_no_labels() -> None:
    assert b"Orders" not in exposition(OUTAGE)


def test_one_namespace_alone_has_no_figures_of_a_pair() -> None:
    assert not any("backlog" in name or "syphon" in name for name, _ in samples(WELL))
