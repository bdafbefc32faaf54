"""Blocking clients in threads, each with a limit: a call that hangs fails its own test alone."""

from collections.abc import Callable
from typing import Any, TypeVar

import pika
import trio

from tests.harness.patience import PATIENCE

T = TypeVar("T")


async def blocking(call: Callable[..., T], *arguments: Any) -> T:
    """
    Return the result of the call, which runs in a thread.

    Raises:
        trio.TooSlowError: it hangs; the thread is left alone.
    """
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)


def pika_connection(port: int, **how: Any) -> pika.BlockingConnection:
    """A connection of RabbitMQ's own client, which waits for a machine that stalls."""
    limits = ("socket_timeout", "stack_timeout", "blocked_connection_timeout")
    parameters = {**dict.fromkeys(limits, PATIENCE), **how}
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **parameters))
