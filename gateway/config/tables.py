"""Tables of the configuration that the core doesn't know: those of extensions."""

from functools import cache
from typing import Any, Generic, TypeVar

import attrs

from gateway.extensions.listing import parts

T_co = TypeVar("T_co", covariant=True)


@attrs.frozen(kw_only=True)
class Table(Generic[T_co]):
    """A table of the file, or a list of tables, of an extension: `Config.of` returns its value."""

    name: str
    kind: Any  # the class of its options, as the type of a field
    missing: T_co  # the value without the table


@cache
def tables_class() -> type:
    """A class with a field for each table of an extension."""
    fields = {each.name: attrs.field(type=each.kind, default=each.missing) for each in tables()}
    return attrs.make_class("Tables", fields, frozen=True, kw_only=True)


def tables() -> tuple[Table[Any], ...]:
    return tuple(parts("tables"))
