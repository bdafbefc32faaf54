"""
What a namespace may be able to do beyond a `Broker`, asked for with `isinstance`.

A front end that finds a capability missing says so in its protocol's own form.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode, Settlement
from gateway.domain.poison import TermsOf
from gateway.domain.rules import Rule
from gateway.domain.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.domain.visibility import Shown, Ticket
from gateway.ports import Receiver


@runtime_checkable
class Peeks(Protocol):
    """A namespace that can show messages without taking them."""

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """Messages from that sequence number on, locked and scheduled ones too, oldest first."""
        ...


@runtime_checkable
class FailsFast(Protocol):
    """A namespace that needs a connection, and remembers for some seconds that it got none."""

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`, for a caller that has another way: within a pause after a failure to
        connect it raises that failure again, at once, and doesn't connect.
        """
        ...


@runtime_checkable
class Verifies(Protocol):
    """A namespace whose queues may be set up so that messages are lost without a word."""

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """
        What of the queue's settings may lose or stop messages, or can't be seen; changes nothing.

        Raises:
            BrokerError: there is no such queue, or no answer.
        """
        ...


@runtime_checkable
class Updates(Protocol):
    """A namespace whose queues can be changed."""

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        Return once the queue has these properties; its version is another one then.

        With `if_version` a queue of another version stays as it is (`PreconditionFailed`); None
        overwrites.
        """
        ...


@runtime_checkable
class Topology(Updates, Protocol):
    """A namespace with topics. `if_version` is as in `Updates`, for each kind of entity."""

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo: ...

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo: ...

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo: ...

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]: ...

    async def delete_topic(self, topic: EntityPath) -> None: ...

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """Without a rule it gets `$Default`, which takes every message."""
        ...

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo: ...

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo: ...

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]: ...

    async def delete_subscription(self, topic: EntityPath, name: str) -> None: ...

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule: ...

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule: ...

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule: ...

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]: ...

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None: ...


@runtime_checkable
class SettlesMany(Protocol):
    """A receiver, also one of a session, that settles several deliveries in one step."""

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `Receiver.settle` for each, in this order; return its verdict on each: None, or the error
        that `settle` would have raised. One that fails doesn't stop the others.

        Raises:
            BrokerError: the verdict on all of them.
        """
        ...


@runtime_checkable
class KeepsMessages(Protocol):
    """A receiver that keeps the messages which are locked, and takes no more with too many."""

    def forget_message(self, delivery: Delivery) -> None:
        """
        It will be completed, or given back as it came: nothing more of it needs to be kept.

        Whatever else is done with it is `NotSupported` from now on. Of one that isn't held (any
        more) there is nothing to forget.
        """
        ...


@runtime_checkable
class Polls(Protocol):
    """
    A receiver of a namespace that doesn't tell when a message comes: each look is a request, also
    one that finds nothing. Its `receive` asks again and again; who counts requests uses `poll`.
    """

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """
        One request: at most `limit` deliveries, none where there are none. It may take as long as
        one request of this namespace may. `lock`: for how long, where that is the taker's choice.

        Cancelling and errors are as those of `Receiver.receive`.
        """
        ...


@runtime_checkable
class TakesBack(Protocol):
    """A receiver that knows whether giving back what nobody has looked at counts as a delivery."""

    @property
    def takes_back_uncounted(self) -> bool:
        """Whether `Abandon(delivered=False)` leaves the delivery count as it was before."""
        ...


@runtime_checkable
class SendsMany(Protocol):
    """A namespace that takes several batches in one step, each with a verdict of its own."""

    async def send_many(
        self, entity: EntityPath, batches: Sequence[Sequence[Message]]
    ) -> Sequence[BrokerError | None]:
        """
        As `Broker.send` for each, in this order; return its verdict on each: None, or the error
        that `send` would have raised. One that is refused doesn't stop the others.

        Calls are done in the order in which they are made, also where one doesn't wait for the
        other to end: the messages of the second stand behind those of the first.

        Raises:
            BrokerError: the verdict on all of them.
        """
        ...


@runtime_checkable
class ReceivesDeferred(Protocol):
    """A receiver, also one of a session, of a namespace where messages can be deferred."""

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        Deferred messages by their numbers, in that order, and locked like others.

        What is settled with `Defer` or given back is deferred again. A deferred message expires
        when somebody asks for it, and not before. A cancellation is as one of `receive`.

        Raises:
            MessageNotFound: one isn't there, has expired, or is locked; none was taken.
        """
        ...


class SessionReceiver(Receiver, Protocol):
    """
    A receiver that holds the lock of one session; leaving its scope gives the session back.

    Every method raises `SessionLockLost` once the lock has run out, a waiting `receive` too.
    """

    @property
    def session_id(self) -> str: ...

    @property
    def locked_until(self) -> datetime:
        """As far as this receiver has made sure of it."""
        ...

    async def renew_session(self) -> datetime:
        """Extend the lock by the queue's lock duration; return until when it holds."""
        ...

    async def get_state(self) -> bytes | None:
        """
        What was last stored with `set_state`, by whichever receiver.

        Raises:
            StateDamaged: that can't be read any more.
        """
        ...

    async def set_state(self, state: bytes | None) -> None:
        """
        Return once the state is stored; None: there is none any more.

        Raises:
            InvalidRequest: it is too large.
        """
        ...


@runtime_checkable
class Sessions(Protocol):
    """A namespace whose queues may require sessions."""

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """
        Lock that session, be there messages or not.

        None: wait for a session that has messages and that nobody holds, the one with the oldest
        message first. Cancelled while it waits, nothing is locked.

        Raises:
            SessionNotAvailable: another receiver holds that one.
            InvalidRequest: the queue has no sessions.
        """
        ...

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """
        One page of the sessions that have messages, by name; with `updated_since` of those whose
        state was set after that date, by that date.
        """
        ...


@runtime_checkable
class Schedules(Protocol):
    """A namespace that numbers what is scheduled, so that it can be taken back."""

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Broker.send`, for messages that each have `scheduled`; return their sequence numbers.

        A message gets another number when it's due.
        """
        ...

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """
        Remove those messages, durably.

        Raises:
            MessageNotFound: one isn't there or has become due; none was removed.
        """
        ...


class Visibility(Protocol):
    """
    The queues of a namespace as Storage Queue has them: who takes a message hides it for as long
    as it wants, and has a ticket that changes or removes it until somebody else takes it.

    Nothing here waits for messages. Errors are those of `Broker`; every method raises
    `EntityNotFound` where there is no such queue.
    """

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> Shown:
        """As `Broker.send`, for one message that nobody sees before that time has passed."""
        ...

    async def sent(self, entity: EntityPath, message_id: str) -> Ticket | None:
        """A ticket for a message that was sent with that id of late; None: nobody knows it."""
        ...

    async def take(self, entity: EntityPath, limit: int, terms_of: TermsOf) -> Sequence[Shown]:
        """
        Hide up to `limit` messages for as long as the terms say; none where there are none.

        What was taken too often by them goes to the queue for its poison (`domain/poison.py`),
        which is made if it's missing: it is in one of both, or in both where nobody knows. One
        that can't go there is served as before. Cancelled, what was taken is visible again after
        its time.
        """
        ...

    async def look(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """The first messages that anybody could take; none is touched."""
        ...

    async def change(
        self, entity: EntityPath, ticket: Ticket, hidden: timedelta, body: bytes | None = None
    ) -> Shown:
        """
        Hide the message for that long from now on, durably, with another body if one is given.

        Raises:
            MessageNotFound: it isn't there, or has expired.
            LockLost: somebody has taken or changed it since the ticket was given.
            NotSupported: the namespace can't do that, or not with that body.
        """
        ...

    async def remove(self, entity: EntityPath, ticket: Ticket) -> None:
        """Remove the message, durably. Raises as `change`."""
        ...

    async def clear(self, entity: EntityPath) -> None:
        """Remove all messages that nobody has locked. Cancelled, it has removed some."""
        ...
