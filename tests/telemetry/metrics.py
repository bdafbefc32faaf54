"""Parts of the tests of metrics that other tests need, too."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.status.process import Status
from gateway.telemetry.metrics import exposition


def samples(status: Status) -> Mapping[tuple[str, frozenset[str]], float]:
    """Each sample's value, by its name and the values of its labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition(status).decode())
        for sample in family.samples
    }


def value(status: Status, name: str, *labels: str) -> float | None:
    return samples(status).get((name, frozenset(labels)))
