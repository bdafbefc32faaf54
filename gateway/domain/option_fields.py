"""
The metadata of an option's field: the unit, which its type doesn't tell, its place in the file, and
whether it is a secret.

Without a unit a `float` is a duration in seconds, and an `int` a count.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

BYTES: Final[Mapping[str, Any]] = {"unit": "bytes"}  # or bytes per second
NUMBER: Final[Mapping[str, Any]] = {"unit": "number"}  # a share, a ratio, a rate
# The field's own options are in the surrounding table, not in a table of their own.
FLAT: Final[Mapping[str, Any]] = {"flat": True}
# A text, or a tuple of texts, that the file must not have: it names the place of each. Such a field
# has `repr=False` besides, so that no log shows it.
SECRET: Final[Mapping[str, Any]] = {"secret": True}


def is_size(field: "attrs.Attribute[Any]") -> bool:
    return BYTES.items() <= field.metadata.items()


def is_number(field: "attrs.Attribute[Any]") -> bool:
    return NUMBER.items() <= field.metadata.items()


def is_flat(field: "attrs.Attribute[Any]") -> bool:
    return FLAT.items() <= field.metadata.items()


def is_secret(field: "attrs.Attribute[Any]") -> bool:
    return SECRET.items() <= field.metadata.items()
