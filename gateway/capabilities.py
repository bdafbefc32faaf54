"""
Operations that some namespaces, and some of their receivers, have beyond `Broker` and `Receiver`.

`offered` and `required` of `offering.py` are the way to ask for a capability.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Final, Protocol, TypeVar

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import MESSAGE_FAULTS, BrokerError, QuotaExceeded, Unavailable
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode, Settlement
from gateway.domain.storage_queue.poison import TermsOf
from gateway.domain.storage_queue.pop_receipt import PopReceipt, TakenMessage
from gateway.domain.topics.filters import Rule
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.domain.values import value
from gateway.offering import capability, offered
from gateway.ports import Broker, Receiver

T = TypeVar("T")

Send = Callable[[EntityPath, Sequence[Message]], Awaitable[T]]
"""One of the ways to send one batch: `Broker.send`, `FailsFast.try_send`, ..."""

Batches = Sequence[Sequence[Message]]

SendEach = Callable[[EntityPath, Batches], Awaitable[Sequence[T | BrokerError]]]
"""
A way to send several batches in their order: returns for each what `Send` returns, or the error.
It has its place among concurrent calls before its first checkpoint (`SendsMany.send_many`).
"""

MOST_DELETED: Final = 4000  # messages of one call, as in Service Bus's Premium tier

# A single message of several may have caused these errors.
FAULTS_OF_ONE: Final = (*MESSAGE_FAULTS, QuotaExceeded)


@capability(Broker, "this namespace can't peek messages")
class Peeks(Protocol):
    """A namespace that can show messages without locking them (Service Bus: message browsing)."""

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        Return at most `limit` messages whose sequence number is `from_sequence` or higher, in order
        of their sequence numbers; locked, scheduled and deferred ones too. The deliveries have no
        lock token. Nothing is changed, so cancellation has no effect.

        Raises:
            EntityNotFound: there is no such queue, subscription or sub-queue.
            NotSupported: this namespace can't peek into this entity.
        """
        ...


@capability(Broker, "this namespace has no address")
class Placed(Protocol):
    """A namespace that is reached over a network."""

    @property
    def address(self) -> str:
        """Host and port as in the configuration; empty for a namespace of this process."""
        ...


def address_of(broker: Broker) -> str:
    """As `Placed.address`; empty for a namespace that isn't reached over a network."""
    placed = offered(broker, Placed)
    return "" if placed is None else placed.address


@capability(Broker, "this namespace needs no connection")
class FailsFast(Protocol):
    """A namespace that needs a connection and remembers for some seconds that it got none."""

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`, for a caller that can send elsewhere: in the pause after a failed attempt
        to connect, the method raises that failure again, at once, and doesn't connect.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...


@capability(Broker, "this namespace diverts no sends")
class Diverts(Protocol):
    """A broker that may divert a send: a pair, or a namespace that is a Pairgate and says so."""

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `Broker.send`; return which namespace or store accepted the messages.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...


def accepting_send(broker: Broker) -> Send[AcceptedBy]:
    """`Diverts.send_diverting` of the broker; one that diverts nothing is its own primary."""
    diverts = offered(broker, Diverts)
    if diverts is not None:
        return diverts.send_diverting

    async def send(entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        await broker.send(entity, messages)
        return AcceptedBy.PRIMARY

    return send


async def send_accepted_by(
    broker: Broker, entity: EntityPath, messages: Sequence[Message]
) -> AcceptedBy:
    """Send as `accepting_send` does; a caller that sends often asks for that once."""
    return await accepting_send(broker)(entity, messages)


@capability(Broker, "this namespace doesn't bound its sends")
class BoundsSends(Protocol):
    """
    A broker each of whose sends ends by itself, whatever its namespaces do: a pair. Its callers
    need no deadline of their own, unless they want an earlier one.
    """

    def longest_send(self) -> float:
        """Return the seconds after which each send has its verdict."""
        ...


def longest_send_of(broker: Broker) -> Callable[[], float]:
    """`BoundsSends.longest_send` of the broker; infinite if it doesn't bound its sends."""
    bounds = offered(broker, BoundsSends)
    return _without_bound if bounds is None else bounds.longest_send


def _without_bound() -> float:
    return math.inf


@capability(Broker, "this namespace has no identity to report")
class Identifies(Protocol):
    """A namespace that may report its identity, which is the same at each of its addresses."""

    async def identity(self) -> Identity:
        """
        Return the identity of the namespace; a Pairgate reports that of the namespace behind it.

        Raises:
            NotSupported: the namespace reports no identity; only its address is known.
            BrokerError: the namespace didn't answer.
        """
        ...


@capability(Broker, "this namespace has no queue settings to verify")
class Verifies(Protocol):
    """A namespace whose queues may have settings that lose messages silently."""

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """
        Return a sentence for each setting of the queue that may lose or block messages, or that
        can't be read; none if all is well. `is_backlog`: the queue belongs to a pair's backlog,
        which needs more. Nothing is changed.

        Raises:
            EntityNotFound: there is no such queue.
            BrokerError: the namespace didn't answer.
        """
        ...


@capability(Broker, "the queues of this namespace can't be updated")
class Updates(Protocol):
    """A namespace whose queues can be updated."""

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        Return once the queue has all of these properties, and a new version.

        The queue is updated only if its version is `if_version` (an HTTP client's `If-Match`);
        None updates any version. Needs the Manage right.

        Raises:
            EntityNotFound: there is no such queue.
            PreconditionFailed: the queue has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or a property can't be changed.
            NotSupported: the namespace doesn't have that property; nothing was changed.
        """
        ...


@capability(Broker, "this namespace can't delete an entity by its version")
class DeletesByVersion(Protocol):
    """A namespace whose entities can be deleted on condition that nobody has changed them."""

    async def delete_version(self, path: EntityPath, version: int) -> None:
        """
        Return once the queue, topic or subscription is deleted with all of its messages, if it had
        that version (an HTTP client's `If-Match`). Needs the Manage right.

        Raises:
            EntityNotFound: there is no such entity.
            PreconditionFailed: the entity has another version; nothing was deleted.
            NotSupported: the namespace's entities have no versions; nothing was deleted.
        """
        ...


@capability(Broker, "this namespace doesn't support topics")
class Topology(Updates, Protocol):
    """
    A namespace with topics, subscriptions and rules, as Service Bus has them.

    `if_version` and `PreconditionFailed` are as in `Updates`, pages as in `Broker.list_queues`.
    Names of topics, subscriptions and rules ignore case. All methods need the Manage right.
    """

    async def create_topic(self, topic: EntityPath, properties: TopicProperties) -> TopicInfo:
        """
        Return once the topic exists, without subscriptions: it drops messages until it has one.

        Raises:
            EntityExists: a topic or a queue has that name; it stays as it is.
            InvalidRequest: the name, or a property's value, isn't allowed.
        """
        ...

    async def update_topic(
        self, topic: EntityPath, properties: TopicProperties, *, if_version: int | None = None
    ) -> TopicInfo:
        """
        Return once the topic has all of these properties, and a new version.

        Raises:
            EntityNotFound: there is no such topic.
            PreconditionFailed: the topic has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or the property can't change.
        """
        ...

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        """
        Return the topic's properties and counts.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def list_topics(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[TopicInfo]:
        """Return one page of the topics whose path starts with `prefix`, sorted by path."""
        ...

    async def delete_topic(self, topic: EntityPath) -> None:
        """
        Return once the topic is deleted, with its subscriptions and their messages.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def create_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        rule: Rule | None = None,
    ) -> SubscriptionInfo:
        """
        Return once the subscription exists, with one rule: `rule`, or else `$Default`, which
        matches every message. It receives messages that are sent from then on.

        Raises:
            EntityNotFound: there is no such topic.
            EntityExists: the topic has that subscription already; it stays as it is.
            InvalidRequest: the name, a property's value or the rule isn't allowed.
        """
        ...

    async def update_subscription(
        self,
        topic: EntityPath,
        name: str,
        properties: SubscriptionProperties,
        *,
        if_version: int | None = None,
    ) -> SubscriptionInfo:
        """
        Return once the subscription has all of these properties, and a new version. Its rules and
        messages stay.

        Raises:
            EntityNotFound: there is no such topic or subscription.
            PreconditionFailed: the subscription has another version; nothing was changed.
            InvalidRequest: a value isn't allowed, or the property can't change.
        """
        ...

    async def inspect_subscription(self, topic: EntityPath, name: str) -> SubscriptionInfo:
        """
        Return the subscription's properties and counts of messages.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def list_subscriptions(
        self, topic: EntityPath, *, skip: int = 0, top: int = 100
    ) -> Sequence[SubscriptionInfo]:
        """
        Return one page of the topic's subscriptions, sorted by name.

        Raises:
            EntityNotFound: there is no such topic.
        """
        ...

    async def delete_subscription(self, topic: EntityPath, name: str) -> None:
        """
        Return once the subscription is deleted, with its rules and messages.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def create_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """
        Return the rule once it applies to each message that is sent from then on. A message is
        taken if any rule of the subscription matches it.

        Raises:
            EntityNotFound: there is no such topic or subscription.
            EntityExists: the subscription has a rule with that name; it stays as it is.
            InvalidRequest: the name, the filter or the action isn't allowed.
        """
        ...

    async def update_rule(self, topic: EntityPath, subscription: str, rule: Rule) -> Rule:
        """
        Return the rule once it has replaced the one with its name, for messages that are sent from
        then on.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
            InvalidRequest: the filter or the action isn't allowed.
        """
        ...

    async def inspect_rule(self, topic: EntityPath, subscription: str, name: str) -> Rule:
        """
        Return the rule.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
        """
        ...

    async def list_rules(
        self, topic: EntityPath, subscription: str, *, skip: int = 0, top: int = 100
    ) -> Sequence[Rule]:
        """
        Return one page of the subscription's rules, sorted by name.

        Raises:
            EntityNotFound: there is no such topic or subscription.
        """
        ...

    async def delete_rule(self, topic: EntityPath, subscription: str, name: str) -> None:
        """
        Return once the rule no longer applies. A subscription without rules takes no messages.

        Raises:
            EntityNotFound: there is no such topic, subscription or rule.
        """
        ...


@capability(Receiver, "this namespace can't settle several messages at once")
class SettlesMany(Protocol):
    """A receiver, of a queue or of a session, that settles several deliveries in one step."""

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `Receiver.settle` for each, in this order; return a verdict for each: None, or the error
        that `settle` would have raised. An error of one delivery doesn't stop the others. A
        cancellation leaves the outcome of all unknown.

        Raises:
            BrokerError: the verdict for all deliveries.
        """
        ...


@value
class TransactedSend:
    """A batch that is sent when its transaction is committed."""

    entity: EntityPath
    messages: Sequence[Message]


@value
class TransactedSettlement:
    """
    A settlement that is done when its transaction is committed. Made by `Enlists.enlist`;
    `receiver` is the one that the namespace itself made, without the wrappers around it.
    """

    receiver: Receiver
    delivery: Delivery
    settlement: Settlement


TransactedWork = TransactedSend | TransactedSettlement


def sends_in(work: Sequence[TransactedWork]) -> list[TransactedSend]:
    """The sends of a transaction, in their order."""
    return [each for each in work if isinstance(each, TransactedSend)]


@capability(Receiver, "this namespace has no transactions")
class Enlists(Protocol):
    """A receiver, of a queue or of a session, of a namespace with transactions (`Transacts`)."""

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """
        Return a settlement for `Transacts.commit`. Nothing is done until then: the message stays
        locked, and its lock may expire. Never waits.

        Raises:
            LockLost: the delivery is known not to be locked any more.
            NotSupported: the delivery can't be settled in a transaction.
            InvalidRequest: the settlement carries values that the namespace refuses.
        """
        ...


@capability(Broker, "this namespace has no transactions")
class Transacts(Protocol):
    """A namespace that does several sends and settlements, of any of its entities, atomically."""

    async def check_transactions(self) -> None:
        """
        Return if transactions can be committed now, as far as the namespace tells. Changes nothing.

        Raises:
            NotSupported: this namespace has no transactions after all.
            Unavailable: it can't be reached now, or only a backlog would accept the sends: a
                transaction is never diverted.
        """
        ...

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        Return once all of the work is done, in this order and durably: the messages can be
        received, and the deliveries are settled.

        With an error whose outcome is "not sent", nothing of the work was done, nor will be: no
        receiver sees a message, and each delivery stays locked until its lock expires. With
        `OutcomeUnknown`, or after a cancellation, either all of the work is done or nothing.

        Raises:
            BrokerError: as `Broker.send` and `Receiver.settle`, for any of the work.
            TransactionRolledBack: the namespace has rolled the transaction back.
        """
        ...


@capability(Receiver, "this receiver doesn't keep locked messages")
class KeepsMessages(Protocol):
    """
    A receiver that keeps each locked message until it is settled, and receives no more when the
    kept messages are too many or too large.
    """

    def forget_message(self, delivery: Delivery) -> None:
        """
        Drop what is kept of the message; its lock stays. From then on the delivery can only be
        completed, or abandoned unchanged: any other settlement raises `NotSupported`. Has no effect
        on a delivery that isn't kept. Never waits.
        """
        ...


@capability(Receiver, "this namespace can't change the text of a message")
class ChangesBody(Protocol):
    """A receiver that can replace the body of a locked message."""

    async def change_body(self, delivery: Delivery, body: bytes) -> datetime:
        """
        Return when the message has that body durably, and is locked again as by `Receiver.renew`;
        the result is the end of the lock. A cancellation leaves the outcome unknown.

        Raises:
            LockLost: the message isn't locked by this receiver any more; it is as it was.
            MessageTooLarge: the body is too large; the message is as it was.
        """
        ...


@capability(Receiver, "this namespace isn't polled")
class Polls(Protocol):
    """
    A receiver of a namespace that must be polled, where each request is billed, also one that
    finds nothing. `receive` repeats the request; a caller that counts requests uses `poll`.
    """

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """
        Make one request; return at most `limit` deliveries, none if the queue has none available.
        `lock` is the lock duration, where the receiver chooses it (Storage Queue: the visibility
        timeout); None: the namespace's default.

        Errors and cancellation are as in `Receiver.receive`.
        """
        ...


@capability(Receiver, "this namespace counts every delivery")
class TakesBack(Protocol):
    """A receiver that knows whether an unprocessed delivery can be returned without counting."""

    @property
    def takes_back_uncounted(self) -> bool:
        """True if `Abandon(delivered=False)` restores the delivery count that was before."""
        ...


@capability(Broker, "this namespace can't take several batches at once")
class SendsMany(Protocol):
    """
    A namespace that has several batches in flight, with a verdict for each batch: it stores them in
    one step, or its protocol has a pipeline. `send_each` sends to any namespace.
    """

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `Broker.send` for each batch; return a verdict for each: None, or the error that `send`
        would have raised. Never raises a `BrokerError`: what fails all batches is the verdict of
        each. With `fails_fast` as `FailsFast.try_send`, where the namespace needs a connection.

        The order is kept, and so is that of concurrent calls: a call has its place before its first
        checkpoint. Batches behind one that isn't accepted keep their places; a pair sends that one
        again later, or to its backlog.

        A cancellation leaves the outcome of all batches unknown.
        """
        ...


@capability(Broker, "this namespace takes one batch at a time")
class SendsTogether(Protocol):
    """
    A namespace without `SendsMany`, which may all the same accept the messages of several batches
    in one request.
    """

    def sends_together(self) -> bool:
        """Return whether it does now."""
        ...


async def send_each(
    broker: Broker, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
) -> Sequence[BrokerError | None]:
    """
    Send the batches in their order; return a verdict for each, as `SendsMany.send_many` does.

    A namespace without `SendsMany` gets all messages as one batch. If it refuses that for the fault
    of one message, it gets each batch by itself, one after the other, until an error says that it
    is in trouble: what follows isn't sent. The order is kept within one call, so a caller that
    keeps it across calls makes one call at a time.

    `fails_fast` is as in `SendsMany.send_many`. A cancellation leaves all outcomes unknown.
    """
    many = offered(broker, SendsMany)
    if many is not None:
        return await many.send_many(entity, batches, fails_fast=fails_fast)
    send = broker.send
    if fails_fast and (trying := offered(broker, FailsFast)) is not None:
        send = trying.try_send
    error = await outcome_of(send, entity, [message for batch in batches for message in batch])
    if len(batches) == 1 or not isinstance(error, FAULTS_OF_ONE):
        return [error] * len(batches)
    verdicts: list[BrokerError | None] = []
    trouble: BrokerError | None = None
    for batch in batches:
        if trouble is not None:
            verdicts.append(Unavailable(f"not sent after an earlier failure: {trouble}"))
            continue
        verdicts.append(await outcome_of(send, entity, batch))
        if (error := verdicts[-1]) is not None and error.counts_as_outage:
            trouble = error
    return verdicts


async def outcome_of(
    send: Send[None], entity: EntityPath, messages: Sequence[Message]
) -> BrokerError | None:
    """Send one batch in that way; return its verdict, as `send_each` does."""
    try:
        await send(entity, messages)
    except BrokerError as error:
        return error
    return None


@capability(Receiver, "this namespace can't defer messages")
class ReceivesDeferred(Protocol):
    """A receiver, of a queue or of a session, in a namespace where messages can be deferred."""

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        Return the deferred messages with these sequence numbers, in that order, locked as by
        `Receiver.receive` (Service Bus: message deferral).

        A delivery that is abandoned, or settled with `Defer`, is deferred again. An expired
        deferred message is removed only when it is asked for. Cancellation is as in
        `Receiver.receive`.

        Raises:
            MessageNotFound: a message doesn't exist, has expired or is locked; none was locked.
            BrokerError: as `Receiver.receive`.
        """
        ...


class SessionReceiver(Receiver, Protocol):
    """
    A receiver that holds the lock of one session. Leaving its scope releases the session.

    After the session's lock has expired every method raises `SessionLockLost`, also a `receive`
    that is waiting.
    """

    @property
    def session_id(self) -> str:
        """The id of the locked session."""
        ...

    @property
    def locked_until(self) -> datetime:
        """The date (UTC) at which the lock expires, as the namespace said last."""
        ...

    async def renew_session(self) -> datetime:
        """
        Extend the lock by the queue's lock duration, from now on; return the date (UTC) at which
        the lock expires. A cancelled renewal may or may not have extended the lock.

        Raises:
            SessionLockLost: the lock had expired.
        """
        ...

    async def get_state(self) -> bytes | None:
        """
        Return the state that any receiver of this session stored last; None if there is none.

        Raises:
            SessionLockLost: the lock has expired.
            StateDamaged: the stored state can't be read any more.
        """
        ...

    async def set_state(self, state: bytes | None) -> None:
        """
        Return once the state is stored durably; None removes it. The outcome of a cancelled call
        is unknown.

        Raises:
            SessionLockLost: the lock has expired; the state is unchanged.
            InvalidRequest: the state is too large.
        """
        ...


@capability(Broker, "this namespace doesn't support sessions")
class Sessions(Protocol):
    """A namespace whose queues may require sessions."""

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """
        Open a receiver that locks the session `session_id`, with or without messages in it.

        With None, entering the scope waits for a session that has messages and isn't locked; the
        session with the oldest message comes first. Cancelled while entering, no session is locked.
        Unlike `Broker.open_receiver`, entering always checks the queue.

        Raises (when entered):
            SessionNotAvailable: another receiver has locked that session.
            InvalidRequest: the queue doesn't require sessions.
            EntityNotFound: there is no such queue.
            EntityDisabled: the queue can't be received from.
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
        Return one page (as in `Broker.list_queues`) of the ids of sessions that have messages,
        sorted; with `updated_since` (UTC), of the sessions whose state was set after that date,
        sorted by that date.

        Raises:
            EntityNotFound: there is no such queue.
            InvalidRequest: the queue doesn't require sessions.
        """
        ...


@capability(Broker, "this namespace gives scheduled messages no sequence number")
class Schedules(Protocol):
    """A namespace that returns the sequence numbers of scheduled messages, to cancel them."""

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Broker.send`, for messages that each have `scheduled`; return a sequence number for
        each, in their order. A message gets another sequence number when it becomes due.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """
        Return once the scheduled messages with these sequence numbers are removed, durably. The
        outcome of a cancelled call is unknown.

        Raises:
            MessageNotFound: a message doesn't exist or has become due; none was removed.
            EntityNotFound: there is no such entity.
        """
        ...


@capability(Broker, "this namespace can't delete messages without receiving them")
class DeletesMessages(Protocol):
    """A namespace that deletes the oldest messages of a queue on request."""

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """
        Return how many messages were deleted, durably: at most `limit` (1 to 4000), the oldest
        first, that can be received now; with `before` (UTC), only those enqueued earlier. Locked,
        scheduled and deferred messages stay. With `session_id` they are those of that session,
        whose lock the caller must hold. The outcome of a cancelled call is unknown.

        Raises:
            EntityNotFound: there is no such queue, subscription or sub-queue.
            EntityDisabled: the queue can't be received from.
            SessionRequired: the queue requires sessions, and no session is named.
            SessionLockLost: the session isn't locked.
            InvalidRequest: `limit` is out of range; or the queue has no sessions, or forwards its
                messages.
        """
        ...


class Visibility(Protocol):
    """
    The queues of a namespace with Azure Storage Queue's semantics: a message that is taken is
    invisible for a time that the taker chooses; its pop receipt changes or removes it until the
    message is taken again. (A port of its own, made for a namespace by the app; `offered` doesn't
    know it.)

    No method waits for messages. Errors are as in `Broker`; every method raises `EntityNotFound` if
    there is no such queue. Times are durations from now on.
    """

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> TakenMessage:
        """As `Broker.send`, for one message that is invisible for the duration `hidden`."""
        ...

    async def sent(self, entity: EntityPath, message_id: str) -> PopReceipt | None:
        """
        Return a pop receipt for a message that was recently sent with that id; None if there is
        none that is known.
        """
        ...

    async def take(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """
        Take up to `limit` visible messages, each invisible for as long as its terms say; none if
        the queue has none.

        A message that was taken too often, by its terms, is moved to the poison queue
        (`domain/storage_queue/poison.py`), which is created if it is missing. If the outcome of a
        move is unknown, the message may be in both queues; if the move is refused, the message is
        returned as any other. After a cancellation, taken messages become visible again after their
        time.
        """
        ...

    async def peek(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """Return the first `limit` visible messages (Peek Messages). Nothing is changed."""
        ...

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None = None
    ) -> TakenMessage:
        """
        Return once the message is invisible for the duration `hidden`, durably, and has the new
        body if one is given. The returned pop receipt replaces `receipt`.

        Raises:
            MessageNotFound: the message doesn't exist, or has expired.
            LockLost: the message was taken or changed since `receipt` was returned.
            NotSupported: the namespace can't do that, or not with that body.
        """
        ...

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        """
        Return once the message is removed, durably.

        Raises:
            MessageNotFound, LockLost: as `change`.
        """
        ...

    async def clear(self, entity: EntityPath) -> None:
        """Remove all messages that nobody has locked. If cancelled, some are removed."""
        ...
