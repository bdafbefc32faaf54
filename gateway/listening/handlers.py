"""
Handlers that aren't async functions, and whether a message or the endpoint is to blame for a
failure.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from gateway.domain.bounded import Bounded
from gateway.domain.errors import starting_thread
from gateway.domain.message import Settlement
from gateway.listening.errors import EndpointDown
from gateway.listening.items import Item
from gateway.listening.job import Handler

T = TypeVar("T")

Work = Callable[[Item[T]], Awaitable[Settlement | None]] | Callable[[Item[T]], Settlement | None]
"""A user's handler: an async function, or one that blocks."""

ROW: Final = 5  # messages that fail one after another before the endpoint is suspected
PATIENCE: Final = 5  # times that one message's failure is attributed to the endpoint


def handler_of(work: Work[T], *, threads: int) -> Handler[T]:
    """
    Return the handler that runs the function: an async function directly, any other in up to
    `threads` threads. A thread can't be cancelled: if its message is abandoned, because its lock
    expires or a drain's grace is over, the thread continues, and its result is ignored.
    """
    if _is_async(work):
        return cast("Handler[T]", work)
    limiter = trio.CapacityLimiter(threads)
    function = cast("Callable[[Item[T]], Settlement | None]", work)

    async def handle(item: Item[T]) -> Settlement | None:
        started = False

        def run() -> Settlement | None:
            nonlocal started
            started = True
            return function(item)

        try:
            with starting_thread():
                return await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)
        except OSError as error:
            if started:
                raise
            raise EndpointDown(f"the handler doesn't start: {error.strerror}") from error

    return handle


def _is_async(work: Any) -> bool:
    while isinstance(work, partial):
        work = work.func
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(
        getattr(work, "__call__", None)  # noqa: B004 an object with an async __call__
    )


def key_of(item: Item[Any]) -> tuple[str, int]:
    """The item's message, as its queue and its number there."""
    return item.queue.key, item.delivery.sequence_number


@attrs.define(eq=False)
class Blame:
    """
    Distinguishes a failing message from a failing endpoint: with the endpoint, all messages fail.

    From the fifth consecutive failure of different messages on, without a success in between, the
    endpoint is to blame. Each message's failure is attributed to it a few times only, so that five
    poison messages don't stop a queue for good.
    """

    # attributed failures by message
    _failing: Bounded[object, int] = attrs.field(factory=lambda: Bounded(ROW), init=False)

    def succeeded(self) -> None:
        self._failing.clear()

    def judge(self, item: Item[Any], error: Exception) -> Exception:
        """The exception to raise for a message that has failed with `error`."""
        key = key_of(item)
        excused = self._failing.pop(key, 0)
        if len(self._failing) + 1 < ROW:
            self._failing[key] = 0
            return error
        if excused >= PATIENCE:
            return error  # forgotten, so that the next message that fails gets as many tries
        self._failing[key] = excused + 1
        return EndpointDown(f"{ROW} messages in a row failed, the last with {type(error).__name__}")
