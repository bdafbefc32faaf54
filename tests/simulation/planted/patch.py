"""
Planted bugs: what a checker is worth is what it catches.

Each replaces one method or function of the pairing, the store, a front end or the listener, for as
long as a `with` lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

Function = Callable[..., Any]


def _as_tuple(owner: Any) -> tuple[Any, ...]:
    return owner if isinstance(owner, tuple) else (owner,)


@attrs.frozen
class Mutant:
    """`replace` makes the wrong function from the right one."""

    name: str
    owners: tuple[Any, ...] = attrs.field(converter=_as_tuple)  # classes or modules
    attribute: str
    replace: Callable[[Function], Function]

    @contextmanager
    def planted(self) -> Iterator[None]:
        right = [getattr(owner, self.attribute) for owner in self.owners]
        for owner, function in zip(self.owners, right, strict=True):
            setattr(owner, self.attribute, self.replace(function))
        try:
            yield
        finally:
            for owner, function in zip(self.owners, right, strict=True):
                setattr(owner, self.attribute, function)

    def __str__(self) -> str:
        return self.name
