"""
Figures: fields of the status's sections, which say themselves how they are used.

A section is a frozen class of attrs, as `BacklogStatus`. The metadata of a field say

    how processes are merged   TOTAL, SUM, LEAST, MOST, EACH, ALL, or a rule of its own (`merge`);
                               without one the figure of this process stays
    its metrics                `counter`, `gauge`, `histogram`; all but a gauge are totals
    what tells rows apart      KEY, `label`, `keyed`

as in

    inflight: int = field(metadata=SUM | gauge("pairgate_inflight_bytes", "Bytes of sends ..."))

`merged` adds up processes, `telemetry/metrics.py` writes Prometheus's text, and
`wire/pairgate/status.py` JSON, whatever the sections are. A figure that isn't known is None.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar, get_args

import attrs

from gateway.domain.health.distribution import Distribution, added

T = TypeVar("T")
# The value of one process, those of the others that run, and those of processes that have ended.
Rule = Callable[[Any, Sequence[Any], Sequence[Any]], Any]
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
    """A total that is a metric: it only grows while the process lives. `more`: as of `Metric`."""
    return {name: Metric("counter", name, text, **more)}


def gauge(name: str, text: str, **more: Any) -> Metadata:
    """A metric that rises and falls. A date is written in seconds since 1970."""
    return {name: Metric("gauge", name, text, **more)}


def histogram(name: str, text: str, **more: Any) -> Metadata:
    """A `Distribution` of all values since the start, which is a total and a metric."""
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


def merged(own: T, others: Sequence[T], ended: Sequence[T] = ()) -> T:
    """
    The section `own` with the figures of the other processes, each by the rule of its field.
    `ended` are those of processes that have ended: only their totals count.
    """
    kind: Any = type(own)
    changes = {
        field.name: rule(
            getattr(own, field.name),
            [getattr(each, field.name) for each in others],
            [getattr(each, field.name) for each in ended],
        )
        for field in attrs.fields(kind)
        if (rule := _rule_of(field.metadata)) is not None
    }
    changed: T = attrs.evolve(own, **changes)  # type: ignore[misc]  # a class of attrs
    return changed


def _rule_of(metadata: Mapping[Any, Any]) -> Rule | None:
    """The field's rule; counters and histograms without one are totals."""
    is_total = any(isinstance(each, Metric) and each.kind != "gauge" for each in metadata.values())
    rule: Rule | None = metadata.get(Tag.RULE, _total if is_total else None)
    return rule


def merge(rule: Rule) -> Metadata:
    """The figure is merged by that rule."""
    return {Tag.RULE: rule}


def newest(date: Callable[[Any], Any]) -> Metadata:
    """The value with the last date; of several that of this process."""
    return _of_now(lambda values: max(values, key=date))


def each_of(own: Any, others: Sequence[Any], ended: Sequence[Any]) -> Any:
    """The rule `EACH`."""
    if isinstance(own, tuple):
        kept = {_key_of(row) for row in own}
        return tuple(row for row in all_of(own, others, ended) if _key_of(row) in kept)
    known = [each for each in others if each is not None]
    return own and merged(own, known, [each for each in ended if each is not None])


def all_of(
    own: Iterable[Any], others: Iterable[Iterable[Any]], ended: Iterable[Iterable[Any]]
) -> tuple[Any, ...]:
    """The rule `ALL`."""
    running, past = _by_key(chain(own, *others)), _by_key(chain(*ended))
    found = [merged(first, rest, past.pop(key, ())) for key, (first, *rest) in running.items()]
    return (*found, *(merged(first, (), rest) for first, *rest in past.values()))


def _by_key(rows: Iterable[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(_key_of(row), []).append(row)
    return found


def _key_of(row: Any) -> tuple[Any, ...]:
    """The values that tell a row apart from others."""
    keys = [
        (getattr(row, field.name), field.metadata[Tag.KEY])
        for field in attrs.fields(type(row))
        if Tag.KEY in field.metadata
    ]
    return tuple(value if fold is None else fold(value) for value, fold in keys)


def _one_of(choose: Callable[[Sequence[Any]], Any], values: Sequence[Any]) -> Any:
    """A value for all, or one for each key of mappings; None if a value isn't known."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        keys = dict.fromkeys(chain(*values))
        return {key: _one_of(choose, [each[key] for each in values if key in each]) for key in keys}
    return choose(values)


def _added(values: Sequence[Any]) -> Any:
    return added(values) if isinstance(values[0], Distribution) else sum(values)


def _total(own: Any, others: Sequence[Any], ended: Sequence[Any]) -> Any:
    return _one_of(_added, [own, *others, *ended])


def _of_now(choose: Callable[[Sequence[Any]], Any]) -> Metadata:
    return merge(lambda own, others, _: _one_of(choose, [own, *others]))


TOTAL: Final = merge(_total)
"""A count since the start: the sum of all processes, ended ones too."""
SUM: Final = _of_now(_added)
"""A present amount: the sum of the processes that run."""
LEAST: Final = _of_now(min)
MOST: Final = _of_now(max)
EACH: Final = merge(each_of)
"""The section or the rows of this process; in them the figures are merged by their own rules."""
ALL: Final = merge(all_of)
"""The rows of all processes, merged where their keys are the same."""
