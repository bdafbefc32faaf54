"""Tasks behind a receiver, which end with its block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def tasks_behind() -> AsyncIterator[trio.Nursery]:
    """
    A nursery whose tasks are cancelled when the block ends. An error of the block leaves it as it
    is, not in a group; an error of a task is a bug, and leaves it in a group.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:  # noqa: ASYNC103 raised again below
                failure = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None or group.split(trio.Cancelled)[1] is not None:
            raise
    if failure is not None:
        raise failure
