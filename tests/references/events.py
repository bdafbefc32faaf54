"""The fields of all events, for docs/reference/events.md."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import NoneType
from typing import Any, Final, get_args

import attrs

from gateway import extensions
from gateway.domain import events
from gateway.domain.events.gateway import Event
from gateway.telemetry.log import name_of
from tests.references.tables import table

# A line has every other value as a string.
KINDS: Final[Mapping[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    NoneType: "null",
}

# So that the base class knows its events.
for module in pkgutil.iter_modules(events.__path__, f"{events.__name__}."):
    import_module(module.name)
for folder in pkgutil.iter_modules(extensions.__path__, f"{extensions.__name__}."):
    if folder.ispkg and find_spec(f"{folder.name}.events") is not None:
        import_module(f"{folder.name}.events")
# Without those of plug-ins, which a test may have imported.
EVENT_CLASSES: Final = [
    each for each in Event.__subclasses__() if each.__module__.startswith("gateway.")
]


def parts() -> Mapping[str, str]:
    """A table of the events with the fields of their lines."""
    rows = {name_of(event): ", ".join(map(shown, attrs.fields(event))) for event in EVENT_CLASSES}
    return {
        "fields": table(("event", "fields"), *((f"`{name}`", rows[name]) for name in sorted(rows)))
    }


def shown(field: "attrs.Attribute[Any]") -> str:
    kinds = get_args(field.type) or (field.type,)
    return f"`{field.name}`: {' or '.join(KINDS.get(kind, 'string') for kind in kinds)}"
