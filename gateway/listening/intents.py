"""
Changes in several steps, made safe by a queue: the intent is enqueued, a worker does the steps, and
the message is completed last. After a crash the intent is delivered again, and the work is resumed.

Each step must be idempotent. A step that changes shared state does so with `update`.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.domain.errors import PreconditionFailed
from gateway.listening.items import Item
from gateway.listening.job import Handler
from gateway.ports import Versioned

T = TypeVar("T")
S = TypeVar("S")


async def update(store: Versioned[S], key: str, edit: Callable[[S], S], *, attempts: int = 10) -> S:
    """
    Read, edit, and write if the value hasn't changed meanwhile; otherwise read again. If `edit`
    returns its argument, because nothing is to be done (any more), nothing is written.

    Raises:
        PreconditionFailed: the value changed in between each time.
    """
    for _ in range(attempts):
        value, etag = await store.read(key)
        edited = edit(value)
        if edited == value:
            return value
        try:
            await store.write(key, edited, if_match=etag)
        except PreconditionFailed:
            continue
        return edited
    raise PreconditionFailed(f"{key}: concurrent changes won {attempts} times in a row")


def steps(*each: Callable[[Item[T]], Awaitable[None]]) -> Handler[T]:
    """
    A handler that does these steps one after the other, in each attempt from the first step on.
    """

    async def handle(intent: Item[T]) -> None:
        for step in each:
            await step(intent)

    return handle
