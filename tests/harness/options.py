"""Options of the core with those of extensions, each given by its name, as in a file."""

from typing import Any, TypeVar

import attrs

from gateway.extensions.tables import HasTables, tables_class

T = TypeVar("T", bound=HasTables)


def made(kind: type[T], **values: Any) -> T:
    """The options of that class with these values."""
    theirs = [name for name in values if name not in attrs.fields_dict(kind)]  # type: ignore[arg-type]
    own = kind(**{name: value for name, value in values.items() if name not in theirs})
    return changed(own, **{name: values[name] for name in theirs})


def changed(options: T, **values: Any) -> T:
    """The options with these values of extensions' keys."""
    extensions = options.extensions
    for name, value in values.items():
        [table] = [
            field.name
            for field in attrs.fields(tables_class(options.point))
            if name in attrs.fields_dict(field.type)  # type: ignore[arg-type]
        ]
        keys = attrs.evolve(getattr(extensions, table), **{name: value})
        extensions = attrs.evolve(extensions, **{table: keys})
    return attrs.evolve(options, extensions=extensions)  # type: ignore[misc,no-any-return]
