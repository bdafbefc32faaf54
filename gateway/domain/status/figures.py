"""
Figures: fields of the status's sections, which say themselves how they are used.

A section is a frozen class of attrs, as `BacklogStatus`. The metadata of a field say

    how processes are merged   a rule of `merging`: TOTAL, SUM, LEAST, MOST, EACH, ALL, a rule of
                               its own; without one the figure of this process stays
    its metrics                `counter`, `gauge`, `histogram`
    what tells rows apart      KEY, `label`, `keyed`

as in

    pauses: int = field(metadata=TOTAL | counter("pairgate_busy_pauses", "Pauses that ..."))

`merging.merged` adds up processes, `telemetry/metrics.py` writes Prometheus's text, and
`wire/pairgate/status.py` JSON, whatever the sections are. A figure that isn't known is None.
"""

import enum
from collections.abc import Callable
from typing import Any, Final, get_args

import attrs

from gateway.domain.health.distribution import Distribution

OTHERS: Final = "(others)"  # the name of the row that stands for those beyond `bounded`


class Tag(enum.Enum):
    """A key of the metadata of a field."""

    RULE = "rule"  # how processes are merged
    KEY = "key"  # a function of the value, or None: tells rows apart
    LABEL = "label"  # the name of the label that a row's metrics have
    KEYED = "keyed"  # the same, of the keys of a mapping to sections
    PLACE = "place"  # a part of the names of metrics
    BOUND = "bound"  # rows that are labels of metrics


Metadata = dict[Any, Any]


@attrs.frozen
class Metric:
    """
    A metric of a figure. Its samples have the labels of the rows around it, unless it is `alone`.
    With `labels` of its own the figure is a mapping from their values, one or a tuple.
    """

    kind: str  # counter, gauge, histogram
    name: str  # `{place}` stands for the place of the section
    help: str
    labels: tuple[str, ...] = ()
    of: Callable[[Any], Any] | None = None  # of the section, if the figure isn't the field itself
    alone: bool = False

    def figure(self, section: Any, field: str) -> Any:
        """A number, a date, a distribution, or a mapping to them; None: not known."""
        return getattr(section, field) if self.of is None else self.of(section)


def counter(name: str, text: str, **more: Any) -> Metadata:
    """A metric that only grows while the process lives. `more`: as of `Metric`."""
    return {name: Metric("counter", name, text, **more)}


def gauge(name: str, text: str, **more: Any) -> Metadata:
    """A metric that rises and falls. A date is written in seconds since 1970."""
    return {name: Metric("gauge", name, text, **more)}


def histogram(name: str, text: str, **more: Any) -> Metadata:
    """A metric of a `Distribution`."""
    return {name: Metric("histogram", name, text, **more)}


def label(name: str) -> Metadata:
    """The field tells rows apart, and is a label of their metrics."""
    return {Tag.LABEL: name, Tag.KEY: None}


def keyed(name: str) -> Metadata:
    """The field is a mapping to sections; its keys are a label of their metrics."""
    return {Tag.KEYED: name}


def place(name: str) -> Metadata:
    """The section in the field has that place in the names of its metrics."""
    return {Tag.PLACE: name}


def bounded(most: int) -> Metadata:
    """The rows in the field have metrics of the first `most`, and of all others as one row."""
    return {Tag.BOUND: most}


def section_in(kind: Any) -> Any:
    """
    The class `X` of a field's type, as `X`, `X | None`, `tuple[X, ...]` or `Mapping[str, X]`; None:
    the type has no section.
    """
    if isinstance(kind, type) and attrs.has(kind):
        return None if kind is Distribution else kind
    return next(filter(None, map(section_in, get_args(kind))), None)


KEY: Final[Metadata] = {Tag.KEY: None}
"""The field tells rows apart."""
KEY_OF_ANY_CASE: Final[Metadata] = {Tag.KEY: str.lower}
