"""
The options and events that a package knows.

An option of the configuration is named by its path, and one of `pairgate serve` by both words. Of a
table that is unknown as a whole, only the table is missed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import attrs

from gateway.cli import command_named
from gateway.config.options import Config
from gateway.config.reading import FILLED_LATER, without_none
from gateway.domain.option_fields import is_flat
from gateway.extensions.tables import kind_of
from gateway.telemetry.log import name_of
from tests.references.events import EVENT_CLASSES

# Lists of the core whose entries are read by other classes than those of their values.
ENTRIES: Final = frozenset({"issuers", "access", "accounts", "pairing.envelope_keys"})


def known() -> Mapping[str, list[str]]:
    return {
        "options": sorted([*_options(Config), *_options_of_serve()]),
        "events": sorted(map(name_of, EVENT_CLASSES)),
    }


def _options(kind: Any, path: str = "") -> Iterator[str]:
    attrs.resolve_types(kind)
    for field in attrs.fields(kind):
        if (kind, field.name) in FILLED_LATER:
            continue
        inner = inner_type(kind_of(kind, field))
        here = path if is_flat(field) else f"{path}.{field.name}".lstrip(".")
        if not is_flat(field):
            yield here
        if attrs.has(inner) and here not in ENTRIES:
            yield from _options(inner, here)


def _options_of_serve() -> Iterator[str]:
    for parameter in command_named("serve").params:
        yield from (f"serve {option}" for option in parameter.opts if option.startswith("--"))


def inner_type(kind: Any) -> Any:
    """The class of the values in a list, or in a table of tables; else the type itself."""
    kind = without_none(kind)
    if get_origin(kind) is tuple:
        return inner_type(get_args(kind)[0])
    return inner_type(get_args(kind)[1]) if get_origin(kind) is Mapping else kind
