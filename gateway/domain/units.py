"""
The unit of an option, as the metadata of its field: what the type doesn't tell.

Without it a `float` is a duration in seconds, and an `int` a count.
"""

from collections.abc import Mapping
from typing import Final

import attrs

BYTES: Final[Mapping[str, str]] = {"unit": "bytes"}  # or bytes per second
NUMBER: Final[Mapping[str, str]] = {"unit": "number"}  # a share, a ratio, a rate


def is_size(field: "attrs.Attribute[object]") -> bool:
    return field.metadata.get("unit") == BYTES["unit"]


def is_number(field: "attrs.Attribute[object]") -> bool:
    return field.metadata.get("unit") == NUMBER["unit"]
