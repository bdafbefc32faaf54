"""The rules by which the figures of several processes become one, and what applies them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import attrs

from gateway.domain.health.distribution import Distribution, added
from gateway.domain.status.figures import Metadata, Tag

T = TypeVar("T")
# The value of one process, those of the others that run, and those of processes that have ended.
Rule = Callable[[Any, Sequence[Any], Sequence[Any]], Any]


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
        if (rule := field.metadata.get(Tag.RULE)) is not None
    }
    changed: T = attrs.evolve(own, **changes)  # type: ignore[misc]  # a class of attrs
    return changed


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


def _of_now(choose: Callable[[Sequence[Any]], Any]) -> Metadata:
    return merge(lambda own, others, _: _one_of(choose, [own, *others]))


TOTAL: Final = merge(lambda own, others, ended: _one_of(_added, [own, *others, *ended]))
"""A count since the start: the sum of all processes, ended ones too."""
SUM: Final = _of_now(_added)
"""A present amount: the sum of the processes that run."""
LEAST: Final = _of_now(min)
MOST: Final = _of_now(max)
EACH: Final = merge(each_of)
"""The section or the rows of this process; in them the figures are merged by their own rules."""
ALL: Final = merge(all_of)
"""The rows of all processes, merged where their keys are the same."""
