"""
The only way to wait for an answer of a namespace with a time limit; and the time that a client
gives its request, which a pair takes instead of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError, OutcomeUnknown

# A cancel scope can't say this: a scope that is later than the usual time only guards a request
# whose client has set no time, and must not make its send last longer.
_GIVEN: Final[ContextVar[float | None]] = ContextVar("given", default=None)


@contextmanager
def client_gives(seconds: float) -> Iterator[None]:
    """Within this context the client waits for that long, from now on: `client_deadline`."""
    token = _GIVEN.set(trio.current_time() + seconds)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def client_deadline() -> float | None:
    """The moment (Trio's clock) until which this task's client waits; None: it doesn't say."""
    return _GIVEN.get()


@attrs.define(eq=False)
class AnswerDeadline:
    """
    Made by `answered_within`. Entering it returns its scope, whose deadline may be moved.
    Cancelling the scope ends the wait earlier.
    """

    _seconds: float
    _what: str
    _at: str
    _error: Callable[[str], BrokerError]
    scope: trio.CancelScope

    def __enter__(self) -> trio.CancelScope:
        return self.scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.scope.__exit__(kind, error, traceback)
        if self.scope.cancelled_caught:
            where = f"{self._at}: " if self._at else ""
            # Without the cancellation as a cause: it only ended the wait, and tells a reader
            # nothing.
            raise self._error(
                f"{where}no answer {self._what} within {round(self._seconds, 2):g} s"
            ) from None


def answered_within(
    seconds: float,
    what: str = "from the namespace",
    *,
    at: str = "",
    since: float | None = None,
    error: Callable[[str], BrokerError] = OutcomeUnknown,
    shield: bool = False,
) -> AnswerDeadline:
    """
    A context manager that cancels its body `seconds` after `since` (Trio's clock; None: now) and
    raises `error` with the text "AT: no answer WHAT within SECONDS s".

    An answer is never thrown away: a body that ends without having been cancelled ends well, even
    after the deadline. A cancellation from outside passes through; `shield` delays it until the
    body has ended.

    Raises:
        OutcomeUnknown: the body was cancelled at the deadline; or the error that was asked for.
    """
    began = trio.current_time() if since is None else since
    deadline = began + max(seconds, 0.0)
    return AnswerDeadline(
        seconds, what, at, error, trio.CancelScope(deadline=deadline, shield=shield)
    )
