"""
Lets one task of a receiver wake another that is blocked on the broker, because messages were
returned to the local buffer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import attrs
import trio


@attrs.define(eq=False)
class WaitingReceives:
    """
    Receives that wait for the namespace, and don't notice messages that another task has returned
    to the buffer.
    """

    _scopes: dict[trio.CancelScope, None] = attrs.field(factory=dict, init=False)

    @contextmanager
    def until(self, due: float = inf) -> Iterator[None]:
        """Run the context until `due` (`trio.current_time()`), or until `call_one` ends it."""
        with trio.move_on_at(due) as scope:
            self._scopes[scope] = None
            try:
                yield
            finally:
                del self._scopes[scope]

    def call_one(self) -> None:
        """Wake the longest waiting receive, if any, to check the buffer."""
        if self._scopes:
            next(iter(self._scopes)).cancel()
