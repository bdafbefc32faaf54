"""
Triggers: senders wake listeners, so that an idle queue isn't polled.

A `Triggers` is the receiving end of a channel. The code that carries triggers between processes
calls `publish` for each trigger that arrives, and `lose` and `regain` when the channel breaks and
is back.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from gateway.changes import Changes
from gateway.domain.entity import EntityPath


@attrs.frozen(kw_only=True)
class Trigger:
    """Announces that messages of `size` bytes are being enqueued, or have been."""

    account: str = ""  # names the namespace
    queue: EntityPath
    size: int = 0


@attrs.define(eq=False)
class Subscription:
    """
    The triggers of a queue, as a rising number. A listener that remembers the number before it
    receives, and then waits for another number, misses no trigger.
    """

    _triggers: "Triggers | None" = None
    _changes: Changes = attrs.field(factory=Changes, init=False)

    @property
    def notifications(self) -> int:
        return self._changes.version

    @property
    def is_connected(self) -> bool:
        """True if the announcement of a message will certainly arrive."""
        return self._triggers is not None and self._triggers.is_connected

    @property
    def hears_all_senders(self) -> bool:
        """True if every sender is known to announce its messages."""
        return self._triggers is not None and self._triggers.hears_all_senders

    def notify(self) -> None:
        self._changes.notify()

    async def wait(self, seen: int) -> None:
        """Return when `notifications` differs from `seen`."""
        await self._changes.wait(seen)


@attrs.define(eq=False)
class Triggers:
    """
    Passes each trigger to the listeners of its queue; a topic's trigger to the listeners of its
    subscriptions.

    Triggers may arrive through several channels, each with its own name: connected means that none
    of them is lost. With `hears_all_senders` every sender is known to announce its messages;
    otherwise idle listeners also receive every `sweep` seconds.
    """

    is_connected: bool = True
    hears_all_senders: bool = attrs.field(default=False, kw_only=True)
    _lost: set[str] = attrs.field(factory=set, init=False)  # names of channels
    _subscriptions: dict[tuple[str, EntityPath], list[Subscription]] = attrs.field(
        factory=dict, init=False
    )

    def publish(self, trigger: Trigger) -> None:
        """Wake the listeners: before the first message is enqueued, or after the last."""
        for subscription in self._subscriptions.get((trigger.account, trigger.queue), ()):
            subscription.notify()

    @contextmanager
    def subscribe(self, account: str, queue: EntityPath) -> Iterator[Subscription]:
        """The triggers of that queue, and of its topic, for the life of the context."""
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
        """Note that the channel is broken: from now on listeners poll, with backoff."""
        self._lost.add(channel)
        self.is_connected = False
        self.publish_all()

    def regain(self, channel: str = "") -> None:
        """
        Note that the channel is back: listeners receive once, for messages of the meantime, and
        then wait, unless another channel is lost.
        """
        self._lost.discard(channel)
        self.is_connected = not self._lost
        self.publish_all()

    def publish_all(self) -> None:
        """Wake all listeners: any queue may have new messages."""
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notify()
