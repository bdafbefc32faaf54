"""
The ports of the gateway. Read this file first.

A `Broker` is one namespace. Adapters (`brokers/`) implement it; the pair (`pairing/`) is made of
two brokers and is itself a `Broker`. Front ends and listeners use a `Broker` and can't tell which
one they have. Operations that only some namespaces have are in `capabilities`;
`offering.py` says how to ask for them.

The terms are those of Azure Service Bus (peek-lock, lock token, settlement, dead-letter sub-queue)
and of AMQP 1.0 (section 2.6.12: the receiver settles second; section 3.4: delivery states).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final, Protocol, TypeVar

import trio

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.events.gateway import Event
from gateway.domain.message import Delivery, Message, ReceiveMode, Settlement

S = TypeVar("S")

WallClock = Callable[[], datetime]
"""The current date, in UTC. Intervals are measured with `trio.current_time()` instead."""

NewId = Callable[[], str]
"""Returns an id that was never returned before: of a message, an attempt, a lock."""


class Receiver(Protocol):
    """
    An open way to receive messages from one queue. Several tasks may use it at once.

    A receiver is a scope: leaving it releases the unsettled deliveries, so that others can receive
    them, as far as the broker can be reached. Where it can't, they are released when their locks
    expire.
    """

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        Wait for at least one delivery; return at most `limit` deliveries (1 or more), oldest first.

        In peek-lock mode each returned delivery is locked for the queue's lock duration and has a
        lock token (Service Bus: peek-lock). In receive-and-delete mode the broker has removed the
        messages (AMQP 1.0, section 2.6.12: settled by the sender).

        Cancellation loses no message in peek-lock mode: what the broker had already locked becomes
        available again, at the latest when its lock expires. In receive-and-delete mode messages
        that were under way may be lost.

        Raises:
            BrokerError: no messages were received. Any that the broker had already locked become
                available again when their locks expire.
            EntityNotFound: the queue doesn't exist, or was deleted since the receiver was opened.
            EntityDisabled: the queue can't be received from.
            SessionRequired: the queue requires sessions.
            NotAuthorized: the credentials don't allow receiving.
            Unavailable: the broker can't be reached.
        """
        ...

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        Return once the broker has settled the delivery durably (AMQP 1.0, section 3.4).

        `delivery` is one that this receiver returned in peek-lock mode. A cancelled settlement has
        an unknown outcome, as with `OutcomeUnknown`.

        Raises:
            LockLost: the lock had expired, or the delivery was settled before; nothing was done.
                Never after a settlement of the delivery had an unknown outcome.
            OutcomeUnknown: the broker may or may not have settled it; the message may come again.
                Another attempt may tell: it returns if the message is settled then.
            Unavailable: the broker wasn't reached: nothing was done, and the message becomes
                available again when its lock expires.
            NotSupported: the namespace doesn't have that settlement (`Defer`, `DeadLetter`), or
                can't change properties with it; nothing was done.
            InvalidRequest: the settlement carries values that the namespace refuses.
            EntityNotFound: the queue was deleted, with the message. A protocol that can't tell the
                two apart says `LockLost`; RabbitMQ doesn't check, so `settle` returns.
        """
        ...

    async def renew(self, delivery: Delivery) -> datetime:
        """
        Extend the lock by the queue's lock duration, from now on; return the date (UTC) at which
        the lock expires. A cancelled renewal may or may not have extended the lock.

        Raises:
            LockLost: the lock had expired, or the delivery was settled before. Never after a
                settlement of the delivery had an unknown outcome: that is `OutcomeUnknown`, too.
            NotSupported: the namespace can't renew locks.
            OutcomeUnknown: the broker may or may not have extended the lock.
            Unavailable: the broker wasn't reached; the lock expires as before.
            EntityNotFound: the queue was deleted; as in `settle`.
        """
        ...


class Broker(Protocol):
    """
    A namespace. The pair of two brokers is a `Broker` too.

    Every method raises subclasses of `BrokerError`, never an exception group. No method has a time
    limit of its own: the caller's cancel scope is the deadline. A cancelled operation that changes
    something has an unknown outcome; one that only reads changes nothing.

    Any method may raise, beside the errors that it lists:
        Unavailable: the broker can't be reached, or reports that it is down; nothing was changed.
        OutcomeUnknown: the request was handed over and no answer came; of methods that change
            something.
        NotAuthorized: the credentials are refused, or don't include the right (Send, Listen,
            Manage).
        Untrusted: the broker's certificate isn't trusted.
        Busy: the broker asks to wait; `retry_after` says for how many seconds, if known.
    """

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        Return once the broker owns all messages, durably and in this order (AMQP 1.0, section
        2.6.12: the disposition `accepted`).

        The batch has one verdict: all messages were accepted, or the error speaks for all. If the
        broker may have accepted a part, the error is `OutcomeUnknown`. Without messages the method
        returns; whether it checks the entity then is up to the adapter. An adapter that isn't
        connected connects, also shortly after a failed attempt (see `FailsFast`).

        A pair says which of its namespaces accepted the messages: `capabilities.Diverts`.

        Raises:
            BrokerError: `outcome` says whether nothing was sent or whether that is unknown;
                `counts_as_outage` whether the error says something about the namespace's health.
            EntityNotFound: there is no such queue or topic; nothing was sent.
            EntityDisabled: the entity doesn't accept messages; nothing was sent.
            MessageTooLarge: a message is, or all together are, larger than the namespace accepts.
            QuotaExceeded: the entity is full.
            SessionRequired: the queue requires sessions and a message has no session id.
            InvalidRequest: the namespace refuses a message for its content.
            NotSupported: the namespace can't deliver a message as it was sent.
        """
        ...

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        """
        Open a receiver for a queue, a subscription or a dead-letter sub-queue.

        Entering the scope may check the queue, or may not even connect: adapters of protocols
        without a link (HTTP) do nothing yet. The first `receive` checks it in any case, so an
        entered scope is no evidence that the queue exists; `probe` and `inspect` are. Cancelled
        while entering, nothing is open.

        Raises (when entered, else from the first `receive`):
            EntityNotFound: there is no such queue.
            EntityDisabled: the queue can't be received from.
            SessionRequired: the queue requires sessions (`Sessions.open_session`).
            NotSupported: the namespace doesn't have that mode or sub-queue.
        """
        ...

    async def probe(self, entity: EntityPath) -> None:
        """
        Return if a send to the queue or topic would succeed now, as far as the broker tells
        without a send. No consumer ever sees a message of a probe.

        Raises:
            EntityNotFound: there is no such entity.
            EntityDisabled: the entity doesn't accept messages.
            BrokerError: `counts_as_outage` says whether the namespace is in trouble.
        """
        ...

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """
        Return a queue's properties, and its counts of messages: None where the namespace can't
        tell a count, and approximate where it counts so. Needs the Manage right.

        Raises:
            EntityNotFound: there is no such queue.
        """
        ...

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        Return one page of the queues whose path starts with `prefix` (case ignored), sorted by
        path: at most `top` queues (0 or more) after the first `skip`. Queues that are created or
        deleted meanwhile may be missing, and shift later pages. Needs the Manage right.

        Raises:
            NotSupported: the namespace can't list its queues.
        """
        ...

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        Return once the queue exists, with these properties; those that it has are returned. Needs
        the Manage right.

        Raises:
            EntityExists: the queue exists already, and stays as it is.
            NotSupported: the namespace doesn't have a property that differs from its default; the
                text names it, and nothing was created.
            InvalidRequest: the name, or a property's value, isn't allowed.
        """
        ...

    async def delete_queue(self, entity: EntityPath) -> None:
        """
        Return once the queue is deleted, with all of its messages, also locked and dead-lettered
        ones. Needs the Manage right.

        Raises:
            EntityNotFound: there is no such queue; nothing was deleted.
            NotSupported: the namespace can't delete queues.
        """
        ...


class Observer(Protocol):
    """Receives the events of the gateway (log, metrics, tests)."""

    def report(self, event: Event) -> None:
        """Take note of the event. Never raises and never waits."""
        ...


class Service(Protocol):
    """A part of the gateway that runs for as long as the gateway."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Run until cancelled. Calls `task_status.started()` when the part is ready. The task that
        starts a service is the one that ends it.
        """
        ...


ANY: Final = "*"  # as an ETag: overwrite any version
ABSENT: Final = ""  # the ETag of a key that has no value


class Versioned(Protocol[S]):
    """
    A store whose values have an ETag that changes with each write.

    `SqliteValues`, `FolderValues` and `AzureBlobValues` store bytes, and None for a key without a
    value (ETag `ABSENT`). `Values` stores values of one type as JSON in any of them.
    """

    async def read(self, key: str) -> tuple[S, str]:
        """Return the value and its ETag."""
        ...

    async def write(self, key: str, value: S, *, if_match: str) -> str:
        """
        Return the new ETag once the value is stored durably.

        Raises:
            PreconditionFailed: the value has another ETag now; it stays as it is.
        """
        ...
