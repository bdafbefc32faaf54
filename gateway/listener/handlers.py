"""Handlers of other kinds than an async function, and who is at fault when one fails."""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from gateway.domain.message import Settlement
from gateway.listener.errors import EndpointDown
from gateway.listener.items import Item
from gateway.listener.job import Handler

T = TypeVar("T")

Work = Callable[[Item[T]], Awaitable[Settlement | None]] | Callable[[Item[T]], Settlement | None]
"""What a user writes: an async function, or one that blocks."""

ROW: Final = 5  # messages that fail one after another before the endpoint is suspected
PATIENCE: Final = 5  # times that a message is excused so


def handler_of(work: Work[T], *, threads: int) -> Handler[T]:
    """
    An async function as it is, and any other in up to `threads` threads.

    A thread can't be cancelled: when its message is given back, because its lock ends or a drain
    has no more time, the thread goes on, and its result doesn't count.
    """
    if _is_async(work):
        return cast("Handler[T]", work)
    limiter = trio.CapacityLimiter(threads)
    function = cast("Callable[[Item[T]], Settlement | None]", work)

    async def handle(item: Item[T]) -> Settlement | None:
        return await trio.to_thread.run_sync(
            partial(function, item), abandon_on_cancel=True, limiter=limiter
        )

    return handle


def _is_async(work: Any) -> bool:
    while isinstance(work, partial):
        work = work.func
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(
        getattr(work, "__call__", None)  # noqa: B004 an object with an async __call__
    )


@attrs.define(eq=False)
class Blame:
    """
    Tells a message that fails from an endpoint that fails: with the endpoint, all messages fail.

    From the fifth message on that fails without a success in between, the endpoint is to blame.
    Each message is excused a few times only, so that five bad ones don't stop a queue for good.
    """

    _failing: dict[object, int] = attrs.field(factory=dict, init=False)  # how often excused

    def succeeded(self) -> None:
        self._failing.clear()

    def judge(self, item: Item[Any], error: Exception) -> Exception:
        """What is to be raised for a message that has failed with `error`."""
        key = item.queue.key, item.delivery.sequence_number
        excused = self._failing.pop(key, 0)
        if len(self._failing) + 1 < ROW:
            self._failing[key] = 0
            return error
        if excused >= PATIENCE:
            return error  # and forgotten: the next one that fails is tried as long
        while len(self._failing) >= ROW:
            self._failing.pop(next(iter(self._failing)))
        self._failing[key] = excused + 1
        return EndpointDown(f"{ROW} messages in a row failed, the last with {type(error).__name__}")
