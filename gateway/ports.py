"""
The seams of the gateway. Read this file first.

A `Broker` is one namespace. Adapters (`brokers/`) implement it, `pairing/` makes one of two and is
itself a `Broker`, front ends and listeners use it and cannot tell which one they have. What only
some namespaces can do besides stands in `capabilities.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

import trio

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.events import Event
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode, Settlement

WallClock = Callable[[], datetime]
"""The date, always UTC. Intervals are measured with `trio.current_time()` instead."""

NewId = Callable[[], str]
"""A fresh id, never given before: of a message, an attempt, a lock."""


class Receiver(Protocol):
    """
    An open way to take messages from one queue; several tasks may use it at once.

    It is a scope: leaving it gives back what is unsettled, as far as the broker can be reached.
    """

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        Wait for at least one delivery; return at most `limit`, oldest first.

        Cancelling loses nothing: what was taken and not handed over comes back when its lock
        runs out. In receive-and-delete mode a cancellation may lose what was on its way.

        Raises:
            BrokerError: nothing was taken, or its locks run out.
        """
        ...

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        Return once the broker has done it, durably.

        Raises:
            LockLost: it was too late; the message is or was delivered again.
            OutcomeUnknown: nobody knows; the message may come again.
        """
        ...

    async def renew(self, delivery: Delivery) -> datetime:
        """
        Extend the lock by the queue's lock duration; return until when it holds.

        Raises:
            LockLost: it was too late.
        """
        ...


class Broker(Protocol):
    """
    One namespace. The pair of two brokers is a `Broker` too.

    Every method raises plain `BrokerError`s, never an exception group, and has no time limit
    of its own: the caller's cancel scope is the deadline. A cancelled operation has an
    unknown outcome.
    """

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        Return once the broker owns all messages, durably and in this order; say where.

        A batch has one verdict. If a part may have arrived, the error is `OutcomeUnknown`. A broker
        that isn't connected connects; an earlier failure to do so is no answer.

        Raises:
            BrokerError: `outcome` says whether nothing was sent or nobody knows;
                `counts_as_outage` whether it says something about the namespace's health.
        """
        ...

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """Start to receive from a queue or a dead-letter sub-queue."""
        ...

    async def probe(self, entity: EntityPath) -> None:
        """
        Return if the entity could be sent to now, as far as one can know without sending.

        Never puts a message where a consumer sees it.
        """
        ...

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """
        Tell what is known of a queue.

        Raises:
            EntityNotFound: there is none.
        """
        ...

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """One page of the queues whose path starts with `prefix` (case ignored), by name."""
        ...

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        Make a queue.

        Raises:
            EntityExists: it is there already, and stays as it is.
            NotSupported: a property asks for what this namespace can't do.
        """
        ...

    async def delete_queue(self, entity: EntityPath) -> None:
        """Remove a queue with all of its messages."""
        ...


class Observer(Protocol):
    """Who wants to know what happens. Never raises, never waits."""

    def report(self, event: Event) -> None: ...


class Service(Protocol):
    """A part that lives as long as the gateway."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled. Whoever starts it owns it."""
        ...
