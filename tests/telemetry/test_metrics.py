"""The figures as Prometheus reads them."""

from collections.abc import Mapping

import attrs
from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.status import Status
from gateway.telemetry.metrics import exposition
from tests.wire.test_status import OUTAGE, WELL


def samples(status: Status) -> Mapping[tuple[str, frozenset[str]], float]:
    """Each sample's value, by its name and the values of its labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition(status).decode())
        for sample in family.samples
    }


def value(status: Status, name: str, *labels: str) -> float | None:
    return samples(status).get((name, frozenset(labels)))


def test_sends_are_told_by_leg_and_outcome() -> None:
    name, common = "messaging_client_sent_messages_total", ("send", "pairgate")

    assert value(OUTAGE, name, *common, "primary", "accepted") == 3
    assert value(OUTAGE, name, *common, "backlog", "accepted") == 5
    assert value(OUTAGE, name, *common, "", "unknown") == 1


def test_an_outage_is_seen() -> None:
    assert value(OUTAGE, "pairgate_entities", "secondary") == 1
    assert value(OUTAGE, "pairgate_backlog_messages") == 5
    assert value(OUTAGE, "pairgate_backlog_oldest_age_seconds") == 1.5
    assert value(OUTAGE, "pairgate_syphon_moved_messages_total") == 7
    assert value(OUTAGE, "pairgate_syphon_held_entities") == 1
    assert value(OUTAGE, "pairgate_inflight_bytes") == 10
    assert value(OUTAGE, "pairgate_busy_pauses_total") == 4
    assert value(OUTAGE, "pairgate_alarm", "syphon_stalled") == 1


def test_bills_are_told_for_namespaces_and_for_queues() -> None:
    for prefix, name in (("pairgate", "east"), ("pairgate_listener", "orders")):
        assert value(OUTAGE, f"{prefix}_billed_operations_total", name, "empty") == 60
        assert value(OUTAGE, f"{prefix}_billed_operations_per_message", name) == 1
        assert value(OUTAGE, f"{prefix}_billed_operations_per_idle_day", name) == 1440


def test_what_isnt_known_has_no_sample() -> None:
    assert OUTAGE.pair is not None
    backlog = attrs.evolve(OUTAGE.pair.backlog, pending=None, oldest_age=None, as_of=None)
    silent = attrs.evolve(OUTAGE, pair=attrs.evolve(OUTAGE.pair, backlog=backlog))

    assert value(silent, "pairgate_backlog_messages") is None
    assert value(silent, "pairgate_backlog_oldest_age_seconds") is None


def test_entities_are_no_labels() -> None:
    assert b"Orders" not in exposition(OUTAGE)


def test_one_namespace_alone_has_no_figures_of_a_pair() -> None:
    assert not any("backlog" in name or "syphon" in name for name, _ in samples(WELL))
