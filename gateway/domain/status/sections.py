"""Sections that the core is given: parts of the status whose owners it doesn't know."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs

from gateway.domain.health.problems import Problem
from gateway.domain.status.figures import Metadata, Tag

T = TypeVar("T")
Line = str | Sequence[Sequence[str]]  # of a screen; else a table, its heading first


@attrs.frozen(eq=False, kw_only=True)
class Section(Generic[T]):
    """
    A part of the status, as a field of it: its value is one of `kind`, made of sections.

    `problems`, `lines` and `fact` are its words for operators: those of what they should look at,
    those on the screen of the command `status`, and those of the summary in one line.
    """

    path: str  # of its place in the JSON, as `pair.order`
    kind: Any  # as the type of a field: OrderStatus | None
    missing: T  # the value in a process that has no such part
    metadata: Metadata = attrs.field(factory=dict)  # as of a field
    problems: Callable[[T], Iterable[Problem]] = lambda _: ()
    lines: Callable[[T], Iterable[Line]] = lambda _: ()
    fact: Callable[[T], str] = lambda _: ""

    @property
    def place(self) -> tuple[Sequence[str], str]:
        """The keys of the JSON object that has the section, and the section's key in it."""
        *around, name = self.path.split(".")
        return around, name


Sections = Mapping[Section[Any], Any]  # with their values
Readings = Mapping[Section[Any], Callable[[], Any]]  # with what gives their values


def merge_sections(
    own: Sections, others: Sequence[Sections], ended: Sequence[Sections]
) -> dict[Section[Any], Any]:
    """The sections of several processes as those of one, each by its own rule."""

    def values(section: Section[Any], processes: Sequence[Sections]) -> list[Any]:
        return [each[section] for each in processes if section in each]

    return {
        section: value
        if (rule := section.metadata.get(Tag.RULE)) is None
        else rule(value, values(section, others), values(section, ended))
        for section, value in own.items()
    }
