"""Tasks of one receiver that wait for its namespace, while others put something aside."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import attrs
import trio


@attrs.define(eq=False)
class Waiting:
    """Who waits asks the namespace, and doesn't see what another task has left here since."""

    _scopes: dict[trio.CancelScope, None] = attrs.field(factory=dict, init=False)

    @contextmanager
    def until(self, due: float = inf) -> Iterator[None]:
        """What is inside ends at that moment (`trio.current_time()`), or when it's called."""
        with trio.move_on_at(due) as scope:
            self._scopes[scope] = None
            try:
                yield
            finally:
                del self._scopes[scope]

    def call_one(self) -> None:
        """Have the one that waits longest, if any, look at what was left."""
        if self._scopes:
            next(iter(self._scopes)).cancel()
