"""Operations on messages and sessions beyond those of a `Receiver`: peeking, deferral, deletion."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Final, NoReturn, Protocol

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.domain.message import Delivery, Message, ReceiveMode, Settlement
from gateway.domain.storage_queue import PopReceipt, TakenMessage, TermsOf
from gateway.offering import capability
from gateway.ports import Broker, Receiver

MOST_DELETED: Final = 4000  # messages of one call, as in Service Bus's Premium tier
LONGEST_TOKEN: Final = 512  # bytes of a token that a receiver hands out


def check_delete_limit(limit: int) -> None:
    """
    Check the number of messages that one call may delete.

    Raises:
        InvalidRequest: the limit is out of range.
    """
    if not 1 <= limit <= MOST_DELETED:
        raise InvalidRequest(
            f"message-count: a number from 1 to {MOST_DELETED} expected, got {limit}"
        )


@capability(Broker, "this namespace can't peek messages")
class Peeks(Protocol):
    """A namespace that can show messages without locking them (Service Bus: message browsing)."""

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        Return at most `limit` messages whose sequence number is `from_sequence` or higher, in order
        of their sequence numbers; locked, scheduled and deferred ones too. Only an empty result
        means that there are no more: large messages may be shown in several steps. The deliveries
        have no lock token. Nothing is changed, so cancellation has no effect.

        Raises:
            EntityNotFound: there is no such queue, subscription or sub-queue.
            NotSupported: this namespace can't peek into this entity.
        """
        ...


@capability(Broker, "this namespace has no streams")
class Streams(Protocol):
    """
    A namespace that shows no messages of its queues, but has streams: reading one takes nothing
    from it, and needs the right to receive (RabbitMQ).
    """

    async def create_stream(self, stream: EntityPath, *, keeps: timedelta, most: int) -> None:
        """
        Return when the stream is there. It drops messages that are older than `keeps`, and its
        oldest when it has more than `most` bytes, both now and then.

        Raises:
            EntityExists: there is a queue of that name.
            NotSupported: this namespace has no streams.
            NotAuthorized: the right to make queues is missing.
        """
        ...

    async def read_stream(
        self, stream: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        Return what the stream has now, as `Peeks.peek`: also messages whose time to live has ended.

        Raises:
            EntityNotFound: there is no such stream.
            NotAuthorized: the right to receive from it is missing.
            NotSupported: the queue of that name is no stream, or can't be read here.
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


@capability(Receiver, "this receiver doesn't keep locked messages")
class KeepsMessages(Protocol):
    """
    A receiver that keeps each locked message until it is settled, and receives no more when the
    kept messages are too many or too large.
    """

    def forget_message(self, delivery: Delivery) -> None:
        """
        Drop the kept message; its lock stays. From then on the delivery can only be completed, or
        abandoned unchanged: any other settlement raises `NotSupported`. Has no effect on a delivery
        that isn't kept. Never waits.
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


@capability(Receiver, "the locks of this namespace last as long as the queue says")
class HidesMessages(Protocol):
    """
    A receiver that chooses how long a message stays locked (Storage Queue: the visibility timeout).
    """

    async def hide(
        self, delivery: Delivery, duration: timedelta, body: bytes | None = None
    ) -> datetime:
        """
        Return when the message is locked for that duration from now on, durably, and has the new
        body if one is given; the result is the end of the lock. With a duration of 0 others can
        receive it at once. A cancellation leaves the outcome unknown.

        Raises:
            LockLost: the message isn't locked by this receiver any more; it is as it was.
            MessageTooLarge: the body is too large; the message is as it was.
        """
        ...


@capability(Receiver, "a lock of this namespace belongs to the receiver that has it")
class SettlesByToken(Protocol):
    """
    A receiver of a queue whose namespace has tokens that any process can settle with. The receiver
    hands out the token of a delivery; any receiver of this queue, of this process or of another
    one, adopts it.
    """

    @property
    def renews_in_place(self) -> bool:
        """
        True if a token is valid after a renewal too (Service Bus). Otherwise the delivery has
        another token then (Storage Queue).
        """
        ...

    def hand_out(self, delivery: Delivery) -> bytes | None:
        """
        Return the delivery's token, of at most `LONGEST_TOKEN` bytes. From then on this receiver
        doesn't hold the delivery: the end of its scope doesn't release the message. None: only this
        receiver can settle the delivery, and it still holds it. Never waits.

        Raises:
            LockLost: this receiver doesn't hold the delivery any more.
        """
        ...

    def adopt(self, token: bytes) -> AbstractContextManager[Delivery]:
        """
        A scope in which this receiver settles and renews the delivery of that token, which has no
        message here, as its own. `hand_out` returns the present token. The end of the scope doesn't
        release the message. The namespace isn't asked before a settlement or a renewal.

        Raises:
            LockLost: the token isn't one of such a namespace.
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


@capability(Receiver, "this namespace doesn't tell that it has no messages now")
class ReceivesAvailable(Protocol):
    """A receiver, of a queue or of a session, that knows when nothing is available."""

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`, but return what is available now, also nothing (AMQP 1.0, section
        2.6.7: drain).
        """
        ...


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
            QuotaExceeded: they are too large to be received at once; all are deferred as before.
            BrokerError: as `Receiver.receive`.
        """
        ...


class SessionReceiver(Receiver, Protocol):
    """
    A receiver that holds the lock of one session. Leaving its scope releases the session, which
    doesn't count the deliveries that weren't settled (Service Bus: message sessions).

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

    async def wait_lost(self) -> NoReturn:
        """
        Wait until the session's lock is lost; never return.

        Raises:
            SessionLockLost: the lock has expired, as soon as that is known.
            BrokerError: the session has ended for another reason.
        """
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
            QuotaExceeded: the states of the queue's sessions are too large.
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


@capability(Broker, "this namespace shows a session's state to its holder alone")
class PeeksState(Protocol):
    """A namespace that shows the state of a session that its reader doesn't hold."""

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """
        Return the state that a receiver of this session stored last; None if there is none. No lock
        is needed, and none is taken.

        Raises:
            EntityNotFound: there is no such queue.
            InvalidRequest: the queue doesn't require sessions.
            StateDamaged: the stored state can't be read any more.
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


@capability(Broker, "this namespace can't clear a queue")
class Clears(Protocol):
    """A namespace that deletes all messages of a queue in one step (Azure: Clear Messages)."""

    async def clear_queue(self, entity: EntityPath) -> None:
        """
        Return once all messages of the queue are deleted, durably: locked and scheduled ones, too;
        its dead letters stay. The outcome of a cancelled call is unknown.

        Raises:
            EntityNotFound: there is no such queue.
            OutcomeUnknown: some messages may be left, because there are too many; call it again.
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

    async def dequeue(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """
        Take up to `limit` visible messages, each invisible for as long as its terms say; none if
        the queue has none.

        A message that was taken too often, by its terms, is moved to the poison queue
        (`domain/storage_queue.py`), which is created if it is missing. If the outcome of a
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
        """
        Remove all messages; those that a receiver has locked may be left. If cancelled, some are
        removed.

        Raises:
            OutcomeUnknown: messages are left that can't be received now; call it again.
        """
        ...
