"""Feeds that bring triggers to listeners. The core has none: idle queues are polled then."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import attrs

from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.app.operations.targets import OpenNamespace
from gateway.app.runtime import Runtime
from gateway.extensions.listing import parts
from gateway.listening.listener import QueueListener
from gateway.ports import Service


@attrs.frozen(kw_only=True)
class TriggerSource:
    """
    The triggers that the command line selects; without URLs those of the configuration,
    else the gateway found here.
    """

    urls: tuple[str, ...] = ()
    admin: AdminChoice = attrs.field(factory=AdminChoice)


MakeFeeds = Callable[
    [AsyncExitStack, GatewayKeys, Runtime, OpenNamespace, QueueListener[Any], TriggerSource],
    Awaitable[Sequence[Service]],
]
"""Returns feeds of a listener's triggers, not running yet; raises `Failure` if one can't be."""


class StreamFeed(Protocol):
    """
    The triggers of one gateway, as streams of its endpoint `admin`. Made of `place` (of the
    endpoint), `authorization` (returns the value of that header, or None), `queues`, `triggers`,
    `account`, `observer` and `rng`.
    """

    def parts(self) -> Sequence[Service]:
        """As many feeds as it takes to name all queues; they run instead of this one."""
        ...


async def make_feeds(
    stack: AsyncExitStack,
    keys: GatewayKeys,
    runtime: Runtime,
    target: OpenNamespace,
    listener: QueueListener[Any],
    source: TriggerSource,
) -> Sequence[Service]:
    """
    The feeds of the listener's triggers, not running yet. Without any, idle queues of namespaces
    that don't push are polled.

    Raises:
        Failure: a URL is invalid, a namespace can't be opened, or no configured key has the
            required right.
    """
    makers: Sequence[MakeFeeds] = parts("feeds")
    arguments = (stack, keys, runtime, target, listener, source)
    return [feed for make in makers for feed in await make(*arguments)]


def stream_feeds() -> Sequence[Callable[..., StreamFeed]]:
    """The classes of feeds of a gateway's endpoint `admin`."""
    return tuple(parts("stream_feeds"))
