"""The queues that are received from as one."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.errors import BrokerError
from gateway.ports import Receiver


class JoinedQueues(Protocol):
    """The queues that are received from as one, each at its place among them."""

    @property
    def leading(self) -> int | None:
        """
        The place of the queue that decides what the entity is: an error of it that is no outage is
        that of each receive, and only it may say that there are no messages. None: all queues are
        alike.
        """
        ...

    @property
    def in_order(self) -> bool:
        """
        True if the locks are those of sessions, so that kept messages wait for the next call,
        however long that takes: a later one would overtake those that are given back.
        """
        ...

    @property
    def changes(self) -> Changes:
        """Of `places`."""
        ...

    def places(self) -> Collection[int]:
        """The places that there are now."""
        ...

    def open_receiver(self, place: int) -> AbstractAsyncContextManager[Receiver]:
        """As `Broker.open_receiver`, of the queue at that place."""
        ...

    async def wait_before_retry(self, place: int, error: BrokerError, failures: int) -> None:
        """Return when to try that queue again, after as many failures in a row."""
        ...

    def check_enlisted(self, place: int) -> None:
        """
        Check that deliveries of that queue can be settled in a transaction.

        Raises:
            NotSupported: they can't.
        """
        ...


@attrs.define(eq=False, kw_only=True)
class JoinedSource:
    """A queue as a source: its receiver, once that is open, and why it can't be received from."""

    place: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    receiver: Receiver | None = None
    receiving: trio.CancelScope | None = None
    error: BrokerError | None = None
    kept: int = 0  # deliveries among those that no call has returned yet

    @property
    def is_undecided(self) -> bool:
        """True if it isn't known yet whether the queue can be received from."""
        return self.receiver is None and self.error is None
