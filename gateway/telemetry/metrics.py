"""
A status in Prometheus's text format, as the metadata of its figures say.

Names follow OpenTelemetry's semantic conventions for messaging (1.44) if these have one, in
Prometheus's spelling; our own begin with `pairgate_`. A label that OpenTelemetry leaves out has no
value, as `error_type` of successful operations.

Labels are bounded: namespaces, states, accepted by, outcomes, kinds of errors, operations and
events, known reasons of dead letters, as many queues of a listener as `bounded` says, and as many
backlog queues as a status has. Entities are no labels: `GET /status` names the troubled ones. An
unknown figure has no sample.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from gateway.domain.health.distribution import Distribution
from gateway.domain.status.figures import OTHERS, Metric, Tag, merged, section_in
from gateway.domain.status.process import Status

Labels = dict[str, str]
Labelled = tuple[Labels, Any]  # a section or a figure, with the labels of the rows around it


def exposition(status: Status) -> bytes:
    """The response body of `GET /metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(status))
    return generate_latest(registry)


@attrs.define(eq=False)
class _Figures(Collector):
    _status: Status
    _families: dict[str, Family] = attrs.field(factory=dict, init=False)

    def collect(self) -> Iterator[Family]:
        self._add_all(Status, [({}, self._status)], "")
        for section, value in self._status.sections.items():
            if value != section.missing:
                self._add_sections(section.kind, section.metadata, [({}, value)], "")
        yield from self._families.values()

    def _add_all(
        self, kind: Any, sections: Sequence[Labelled], place: str, *, are_rows: bool = False
    ) -> None:
        """
        Add the figures of all sections of one class, so that a metric has its samples together.
        Rows have their metrics even while there are no rows.
        """
        for field in attrs.fields(kind):
            for metric in (each for each in field.metadata.values() if isinstance(each, Metric)):
                figures = [(label, metric.figure(each, field.name)) for label, each in sections]
                known = [(labels, figure) for labels, figure in figures if figure is not None]
                if known or are_rows:
                    self._add(metric, known, place)
            values = [(labels, getattr(section, field.name)) for labels, section in sections]
            self._add_sections(field.type, field.metadata, values, place)

    def _add_sections(
        self, kind: Any, metadata: Mapping[Any, Any], values: Sequence[Labelled], place: str
    ) -> None:
        """Add the figures of the sections in these values of a field, or of a `Section`."""
        inner = section_in(kind)
        if inner is None:
            return
        found = [each for labels, value in values for each in _within(metadata, labels, value)]
        are_rows = any(isinstance(value, tuple | Mapping) for _, value in values)
        if found or are_rows:
            self._add_all(inner, found, metadata.get(Tag.PLACE, place), are_rows=are_rows)

    def _add(self, metric: Metric, figures: Sequence[Labelled], place: str) -> None:
        name = metric.name.format(place=place)
        family = self._families.setdefault(name, Family(name, metric.help, metric.kind))
        for labels, figure in figures:
            _add_samples(family, metric, {} if metric.alone else labels, figure)


def _within(metadata: Mapping[Any, Any], labels: Labels, value: Any) -> Iterator[Labelled]:
    """The sections in a field."""
    if isinstance(value, Mapping):
        for key, section in value.items():
            yield {**labels, metadata[Tag.KEYED]: key}, section
    elif isinstance(value, tuple):
        for row in _first_rows(value, metadata.get(Tag.BOUND)):
            names = ((each.metadata.get(Tag.LABEL), each.name) for each in attrs.fields(type(row)))
            yield {**labels, **{label: getattr(row, name) for label, name in names if label}}, row
    elif value is not None:
        yield labels, value


def _first_rows(rows: tuple[Any, ...], most: int | None) -> Iterable[Any]:
    """The first rows, and all others as one more."""
    if most is None or len(rows) <= most:
        return rows
    others = merged(rows[most], rows[most + 1 :])
    names = [each.name for each in attrs.fields(type(others)) if Tag.LABEL in each.metadata]
    return (*rows[:most], attrs.evolve(others, **dict.fromkeys(names, OTHERS)))


def _add_samples(family: Family, metric: Metric, labels: Labels, figure: Any) -> None:
    if isinstance(figure, Mapping):
        for key, each in figure.items():
            names = key if isinstance(key, tuple) else (key,)
            texts = (name.value if isinstance(name, enum.Enum) else name for name in names)
            own = dict(zip(metric.labels, texts, strict=True))
            _add_samples(family, metric, {**labels, **own}, each)
    elif isinstance(figure, Distribution):
        bounds = (*map(str, figure.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(figure.counts), strict=True):
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{family.name}_count", labels, figure.count)
        family.add_sample(f"{family.name}_sum", labels, figure.total)
    else:
        suffix = "_total" if metric.kind == "counter" else ""
        number = figure.timestamp() if isinstance(figure, datetime) else figure
        family.add_sample(family.name + suffix, labels, number)
