"""
Options that the core doesn't know: the tables of extensions, and their keys in tables of the core.
"""

from functools import cache
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import attrs

from gateway.domain.option_fields import FLAT
from gateway.extensions.listing import parts

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FIELD: Final = "extensions"  # of each class of the core that has options of extensions


@attrs.frozen(kw_only=True)
class Table(Generic[T_co]):
    """The options of an extension in one place: `HasTables.of` returns their value."""

    name: str  # in the file; of `keys`, for errors of the program only
    kind: Any  # the class of its options, as the type of a field
    missing: T_co  # the value without the table
    validator: Any = None  # as that of a field of attrs
    keys: bool = False  # no table: the options are keys among those of the core


class HasTables:
    """
    A class of options with those of extensions, in a field `extensions`: an instance of
    `tables_class(point)`.
    """

    __slots__ = ()
    point: ClassVar[str]  # the field of `Extension` that names the tables
    extensions: Any

    def of(self, table: Table[T]) -> T:
        """The value of an extension's table."""
        value: T = getattr(self.extensions, table.name)
        return value

    def with_table(self, table: Table[T], value: T) -> Self:
        """These options with another value of an extension's table."""
        extensions = attrs.evolve(self.extensions, **{table.name: value})
        changed: Self = attrs.evolve(self, extensions=extensions)  # type: ignore[misc]
        return changed


def tables(point: str) -> tuple[Table[Any], ...]:
    """The tables of all extensions at that point."""
    return tuple(parts(point))


@cache
def tables_class(point: str) -> type:
    """A class with a field for each table of an extension at that point."""
    fields = {
        each.name: attrs.field(
            type=each.kind,
            default=each.missing,
            validator=each.validator,
            metadata=FLAT if each.keys else None,
        )
        for each in tables(point)
    }
    return attrs.make_class("Tables", fields, frozen=True, kw_only=True)


def no_tables(point: str) -> Any:
    """The value of a field `extensions` without any of their options."""
    return tables_class(point)()


def kind_of(owner: type, field: "attrs.Attribute[Any]") -> Any:
    """The type of a field of an options class; of `extensions` that with the tables there are."""
    if field.name == FIELD and issubclass(owner, HasTables):
        return tables_class(owner.point)
    return field.type
