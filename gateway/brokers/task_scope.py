"""A scope for the tasks that work behind an object's methods."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import attrs
import trio

Raised = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
"""The arguments of `__aexit__`."""


@attrs.define(eq=False)
class TaskScope:
    """
    An async context manager with a nursery. At its end the tasks have `grace` seconds; then they
    are cancelled.

    An error of the block leaves it as it is: the nursery, which would wrap it in a group, doesn't
    learn of it. An error of a task is a bug, and leaves the block in a group.
    """

    grace: float = attrs.field(default=0.0, kw_only=True)
    nursery: trio.Nursery = attrs.field(init=False)
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack, init=False)

    async def __aenter__(self) -> Self:
        self.nursery = await self._stack.enter_async_context(trio.open_nursery())
        return self

    async def __aexit__(self, *raised: *Raised) -> None:
        try:
            await self.aclose()
        except BaseExceptionGroup as group:
            # A cancellation of the whole block doesn't replace its error.
            if raised[1] is None or group.split(trio.Cancelled)[1] is not None:
                raise

    async def aclose(self) -> None:
        """End the scope, as the end of its block does."""
        if self.grace:
            self.nursery.cancel_scope.deadline = trio.current_time() + self.grace
        else:
            self.nursery.cancel_scope.cancel()
        await self._stack.aclose()
