"""
`@value` declares the values that are created for every message; others are `@attrs.frozen`.

A `@value` is frozen for mypy but not at run time: attrs sets each field of a frozen class by a
call, so that creating an object would take twice as long.
"""

from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    value = partial(attrs.define, unsafe_hash=True)

__all__ = ["value"]
