"""Sends, schedules, settlements and states of sessions that are done together, or not at all."""

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message, Settlement
from gateway.domain.values import value
from gateway.offering import capability
from gateway.ports import Broker, Receiver


@value
class ReservedNumbers:
    """
    The sequence numbers that a namespace keeps for messages which a transaction schedules.
    `places` is for the namespace alone.
    """

    numbers: Sequence[int]
    places: Any


@value
class TransactedSend:
    """
    A batch that is sent when its transaction is committed. Only `EnlistsSchedules.enlist_schedule`
    makes one with a reservation.
    """

    entity: EntityPath
    messages: Sequence[Message]
    reservation: ReservedNumbers | None = None


@value
class TransactedCancellation:
    """Scheduled messages that are cancelled when their transaction is committed."""

    entity: EntityPath
    sequence_numbers: Sequence[int]


@value
class TransactedSettlement:
    """
    A settlement that is done when its transaction is committed. Made by `Enlists.enlist`;
    `receiver` is the one that the namespace itself made, without the wrappers around it.
    """

    receiver: Receiver
    delivery: Delivery
    settlement: Settlement


@value
class TransactedState:
    """
    The state of a session that is set when its transaction is committed. Made by
    `EnlistsState.enlist_state`; `receiver` is as in `TransactedSettlement`.
    """

    receiver: Receiver
    state: bytes | None


TransactedWork = TransactedSend | TransactedCancellation | TransactedSettlement | TransactedState


def sends_in(work: Sequence[TransactedWork]) -> list[TransactedSend]:
    """The sends of a transaction, in their order."""
    return [each for each in work if isinstance(each, TransactedSend)]


def messages_in(work: Sequence[TransactedWork]) -> int:
    """The number of messages that a transaction sends."""
    return sum(len(each.messages) for each in sends_in(work))


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


@capability(Receiver, "the state of a session can't be set in a transaction here")
class EnlistsState(Protocol):
    """A session's receiver of a namespace with transactions (`Transacts`)."""

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """
        Return a state of the session for `Transacts.commit`; until then the session keeps the
        state that it has. None removes it. Never waits.

        Raises:
            SessionLockLost: the session is known not to be locked any more.
            NotSupported: the state can't be set in a transaction.
        """
        ...


@capability(Broker, "messages can't be scheduled or cancelled in a transaction here")
class EnlistsSchedules(Protocol):
    """A namespace with transactions (`Transacts`) that schedules messages in them."""

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """
        Reserve a sequence number for each message, durably; return a send for `Transacts.commit`.
        Nothing is scheduled until then. A number whose transaction isn't committed is never used,
        so an error or a cancellation leaves nothing to be undone.

        Raises:
            BrokerError: as `Schedules.schedule`.
            NotSupported: messages of that entity can't be scheduled in a transaction.
        """
        ...

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """
        Return a cancellation for `Transacts.commit`, which fails with `MessageNotFound` if one of
        the messages isn't scheduled then. Never waits.

        Raises:
            NotSupported: messages of that entity can't be cancelled in a transaction.
        """
        ...


@capability(Broker, "this namespace has no transactions")
class Transacts(Protocol):
    """
    A namespace that does several sends and settlements, of any of its entities, atomically. So it
    sets states of its sessions.
    """

    async def check_transactions(self) -> None:
        """
        Return if transactions can be committed now, as far as the namespace tells. Changes nothing.

        Raises:
            NotSupported: this namespace turns out to have no transactions.
            Unavailable: it can't be reached now, or only a backlog would accept the sends: a
                transaction is never diverted.
        """
        ...

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        Return once all of the work is done, in this order and durably: the messages can be
        received, the deliveries are settled, and the states of sessions are set.

        With an error whose outcome is "not sent", nothing of the work was done, nor will be: no
        receiver sees a message, each delivery stays locked until its lock expires, and each session
        keeps its state. With
        `OutcomeUnknown`, or after a cancellation, either all of the work is done or nothing.

        Raises:
            BrokerError: as `Broker.send`, `Receiver.settle` and `SessionReceiver.set_state`, for
                any of the work.
            TransactionRolledBack: the namespace has rolled the transaction back.
        """
        ...
