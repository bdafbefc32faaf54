"""
How to declare a value that is made for every message: `@value`, where others are `@attrs.frozen`.

It is frozen for mypy, which checks all code that makes or reads one, and not at run time: attrs
sets each field of a frozen class by a call, so that making one takes twice as long.
"""

from functools import partial
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from attrs import frozen as value
else:
    value = partial(attrs.define, unsafe_hash=True)

__all__ = ["value"]
