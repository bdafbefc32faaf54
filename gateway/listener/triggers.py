"""
Push: who enqueues tells who listens, so that an idle queue is not polled.

A `Triggers` is the end of a channel in this process. What carries triggers between processes calls
`publish` for each that comes in, and `lose` and `regain` when the channel breaks and is back.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from gateway.domain.entity import EntityPath


@attrs.frozen(kw_only=True)
class Trigger:
    """Somebody enqueues, or has enqueued, so many bytes."""

    account: str = ""  # names the namespace
    queue: EntityPath
    size: int = 0


@attrs.define(eq=False)
class Subscription:
    """
    The triggers of one queue, as a number that rises: who remembers the number before it looks
    at the queue, and then waits for another one, misses nothing.
    """

    _triggers: "Triggers | None" = None
    rings: int = attrs.field(default=0, init=False)
    _rang: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_connected(self) -> bool:
        """Whether a message that its sender announces is sure to ring."""
        return self._triggers is not None and self._triggers.is_connected

    @property
    def hears_all_senders(self) -> bool:
        """Whether it is known that every sender announces its messages."""
        return self._triggers is not None and self._triggers.hears_all_senders

    def ring(self) -> None:
        self.rings += 1
        self._rang.set()
        self._rang = trio.Event()

    async def wait(self, seen: int) -> None:
        """Return when `rings` is another number than `seen`."""
        await trio.lowlevel.checkpoint()
        while self.rings == seen:
            await self._rang.wait()


@attrs.define(eq=False)
class Triggers:
    """
    Brings each trigger to the listeners of its queue, and to no others. One of a topic is for those
    of its subscriptions.

    They may come by several channels, each with a name of its own: connected are all, or none.
    With `hears_all_senders` every sender is known to announce its messages; otherwise idle
    listeners also look at their queues every `sweep` seconds.
    """

    is_connected: bool = True
    hears_all_senders: bool = attrs.field(default=False, kw_only=True)
    _lost: set[str] = attrs.field(factory=set, init=False)  # channels
    _subscriptions: dict[tuple[str, EntityPath], list[Subscription]] = attrs.field(
        factory=dict, init=False
    )

    def publish(self, trigger: Trigger) -> None:
        """Wake them: before the first message is enqueued or after the last one."""
        for subscription in self._subscriptions.get((trigger.account, trigger.queue), ()):
            subscription.ring()

    @contextmanager
    def subscribe(self, account: str, queue: EntityPath) -> Iterator[Subscription]:
        subscription = Subscription(self)
        keys = {(account, queue), (account, queue.topic)}
        for key in keys:
            self._subscriptions.setdefault(key, []).append(subscription)
        try:
            yield subscription
        finally:
            for key in keys:
                self._subscriptions[key].remove(subscription)
                if not self._subscriptions[key]:
                    del self._subscriptions[key]

    def lose(self, channel: str = "") -> None:
        """The channel broke: from now on listeners poll, with back-off."""
        self._lost.add(channel)
        self.is_connected = False
        self.publish_all()

    def regain(self, channel: str = "") -> None:
        """
        The channel is back: listeners look once for what came meanwhile, and then wait, unless
        another one is lost.
        """
        self._lost.discard(channel)
        self.is_connected = not self._lost
        self.publish_all()

    def publish_all(self) -> None:
        """Something may have come to any queue: wake them all."""
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.ring()
