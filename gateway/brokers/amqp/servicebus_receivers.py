"""Receivers of Service Bus: with expiring locks, deferred messages, and sessions."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

import attrs
import trio

from gateway.brokers.amqp.management import PartOf, deliveries_of, manage
from gateway.brokers.amqp.peer import NamespaceConnection
from gateway.brokers.amqp.receiver import DrainingReceiver, WrittenOutcome
from gateway.brokers.amqp.senders import within
from gateway.capabilities import TransactedSettlement, TransactedState
from gateway.domain.bounded import Bounded
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.clocks.times import moved
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    LockLost,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    SessionLockLost,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Delivery,
    ReceiveMode,
    Settlement,
    Typed,
    derive_delivery,
)
from gateway.domain.texts import check_session_id
from gateway.net.amqp.links import InFlight, LinkVoid, ReceivingLink
from gateway.wire.amqp.events import (
    RELEASED,
    DeliveryId,
    NewLink,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.performatives import uint
from gateway.wire.amqp.servicebus.links import (
    FILTER,
    LOCKED_UNTIL,
    TIMEOUT,
    bare,
    moment_of,
)
from gateway.wire.amqp.servicebus.settlements import disposition_of, outcome_of, size_of

_WAIT: Final = 60.0  # seconds per request that the namespace waits for a session
_MAX_OUTCOME: Final = 48 * 1024  # bytes; an outcome must fit in one frame, of 64 KiB mostly
_MAX_DEFERRED: Final = 1000  # locks that are released at the end
_NONE_IN_TIME: Final = "(com.microsoft:timeout)"
# Seconds; a namespace that doesn't answer a drain may deliver later messages first.
_DRAIN_TIMEOUT: Final = 5.0
_SHORT_WAIT: Final = 1.0  # seconds; after an earlier "none", the next request is delayed


Locks = dict[str, timedelta]
"""The lock durations of the queues that were listed, by the queue's key."""


@attrs.define(eq=False)
class ServiceBusReceiver(DrainingReceiver):
    """Settles a delivery over $management if its link has ended: a lock outlives its link."""

    _locks: Locks = attrs.field(factory=dict, kw_only=True)
    # Tokens of locked deferred messages.
    _deferred: Bounded[str, None] = attrs.field(factory=lambda: Bounded(_MAX_DEFERRED), init=False)

    def _write(self, delivery: Delivery, settlement: Settlement) -> WrittenOutcome | None:
        """
        A settlement too large for a frame goes over $management, and so does one whose connection
        was replaced.
        """
        link, _ = self._held.get(_token_of(delivery), (None, None))
        if size_of(settlement) > _MAX_OUTCOME or self._has_left(link):
            return None
        return super()._write(delivery, settlement)

    def _has_left(self, link: ReceivingLink | None) -> bool:
        """True if the link's connection was replaced; a lock outlives it."""
        return link is not None and (link is not self._link or self._peer.is_replaced)

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        """As `Enlists.enlist`; a deferred delivery is settled by a request at the commit."""
        if _token_of(delivery) in self._deferred:
            return TransactedSettlement(self, delivery, settlement)
        self.place_of(delivery)
        if size_of(settlement) > _MAX_OUTCOME:
            raise NotSupported("its properties don't fit into a settlement of a transaction")
        outcome_of(settlement)
        return TransactedSettlement(self, delivery, settlement)

    def request_for(self, delivery: Delivery, settlement: Settlement) -> ops.Operation | None:
        """The request that settles a deferred delivery; None: its link settles it."""
        token = _token_of(delivery)
        if token not in self._deferred:
            return None
        return disposition_of(settlement, token, self._session_name)

    def place_of(self, delivery: Delivery) -> tuple[NamespaceConnection, ReceivingLink, DeliveryId]:
        """
        The connection and the link on which a delivery arrived, and its id there.

        Raises:
            LockLost: the link has ended.
        """
        link, id_ = self._held.get(_token_of(delivery), (None, None))
        peer = self._peer
        if link is None or id_ is None or not link.holds(id_) or link.client is not peer.client:
            raise LockLost("the link of this delivery has ended: no transaction can settle it")
        return peer, link, id_

    def forget(self, delivery: Delivery) -> None:
        """Note that a delivery was settled in a transaction."""
        self._held.pop(_token_of(delivery), None)
        self._deferred.pop(_token_of(delivery), None)

    @property
    def peer(self) -> NamespaceConnection:
        """The connection of its link."""
        return self._peer

    async def ask_in(self, txn_id: bytes, operation: ops.Operation) -> None:
        """
        Return once the namespace has done the operation provisionally, in a transaction that was
        declared on the receiver's connection.

        Raises:
            BrokerError: it wasn't done, or that is unknown.
        """
        part_of = PartOf(link=self._link.name, txn_id=txn_id)
        meter = self._dependencies.meter
        await manage(self._peer, meter, self._entity, operation, ops.Done, part_of)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        token = _token_of(delivery)
        question = ops.RenewLocks(tokens=(token,))
        with self._doubts.using(token):
            answer: ops.LocksRenewed = await self._manage(question, ops.LocksRenewed)
        if len(answer.until) != 1:
            raise OutcomeUnknown("the answer lacks the new end of the lock")
        return answer.until[0]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        question = ops.ReceiveDeferred(
            sequence_numbers=tuple(sequence_numbers), mode=self._mode, session_id=self._session_name
        )
        taken = deliveries_of(await self._manage(question, ops.Messages))
        order = {number: place for place, number in enumerate(dict.fromkeys(sequence_numbers))}
        taken.sort(key=lambda each: order.get(each.sequence_number, len(order)))
        if self._mode is ReceiveMode.PEEK_LOCK:
            self._deferred.update((each.lock_token, None) for each in taken if each.lock_token)
        if [each.sequence_number for each in taken] != list(order):
            raise OutcomeUnknown("the answer has other messages than those that were asked for")
        return taken

    async def give_back(self) -> None:
        """As `AmqpReceiver.give_back`; releases deferred messages, too."""
        await super().give_back()
        for token in list(self._deferred):
            with suppress(BrokerError):  # the message's lock expires instead
                await self._manage(disposition_of(Abandon(), token, self._session_name), ops.Done)

    async def _settle_elsewhere(self, delivery: Delivery, settlement: Settlement) -> None:
        token = _token_of(delivery)
        await self._manage(disposition_of(settlement, token, self._session_name), ops.Done)
        self._deferred.pop(token, None)
        link, id_ = self._held.pop(token, (None, None))
        if link is not None and id_ is not None:
            link.forget(id_)

    def _read(self, event: TransferReceived) -> Delivery | None:
        """
        Set `received`: the end of the lock, less the lock duration, is a date of the namespace's
        clock.
        """
        delivery, lock = super()._read(event), self._locks.get(self._entity.key)
        if delivery is None or delivery.locked_until is None or lock is None:
            return delivery
        return derive_delivery(delivery, received=moved(delivery.locked_until, -lock))

    @property
    def _session_name(self) -> str | None:
        return None

    async def _manage(self, operation: ops.Operation, kind: Any) -> Any:
        peer = self._peer
        if peer.over or peer.is_replaced:
            peer = await self._dependencies.take()
        with peer.judged():
            return await manage(
                peer, self._dependencies.meter, self._entity, operation, kind, self._as_its
            )

    @property
    def _as_its(self) -> PartOf:
        return PartOf(link=self._link.name)


@attrs.define(eq=False)
class ServiceBusSession(ServiceBusReceiver):
    """
    Holds the lock of one session as long as its link: the end of the link releases the session.
    """

    _asked: str | None = attrs.field(kw_only=True)  # None: the next session with messages
    _until: datetime | None = attrs.field(default=None, init=False)
    session_id: str = attrs.field(default="", init=False)
    _returning: int = attrs.field(default=0, init=False)  # messages that aren't back yet
    # A transaction may have made messages available again, before those that have arrived.
    _may_be_late: bool = attrs.field(default=False, init=False)

    @property
    def locked_until(self) -> datetime:
        """The last known end of the session's lock."""
        assert self._until is not None, "the link is attached"
        return self._until

    async def open(self) -> None:
        """
        Attach the link; without a session name, wait until a session has messages.

        Raises:
            SessionNotAvailable: another receiver has locked the session.
            InvalidRequest: the queue doesn't require sessions, or the name is invalid.
            Unavailable: the namespace locked another session.
        """
        if self._asked is not None:
            check_session_id(self._asked)
            await within(
                self._dependencies.options.connect_timeout, str(self._entity), self._attach
            )
        else:
            while not await self._attach_next():
                pass
        self._read_answer()

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`."""
        try:
            return await super().receive(limit)
        except SessionLockLost:
            self._until = self._dependencies.clock()
            raise

    async def _settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        A message that goes back comes before all later ones: no receive gets
        one until all messages that have arrived are back, too.
        """
        self._check_link()
        if not self._takes_steps(settlement):
            await super()._settle(delivery, settlement)
            return
        self._returning += 1
        try:
            await self._give_back_later_ones()
            await super()._settle(delivery, settlement)
        finally:
            self._returning -= 1
            self._link.wake()

    def _takes_steps(self, settlement: Settlement) -> bool:
        return isinstance(settlement, Abandon)

    def _write(self, delivery: Delivery, settlement: Settlement) -> WrittenOutcome | None:
        self._check_link()
        return super()._write(delivery, settlement)

    def forget(self, delivery: Delivery) -> None:
        """As `ServiceBusReceiver.forget`."""
        super().forget(delivery)
        self._may_be_late = True

    async def _give_back_later_ones(self) -> None:
        link = self._link
        with trio.move_on_after(_DRAIN_TIMEOUT):
            await link.drain()
        released: list[InFlight] = []
        for each in link.arrived:
            with suppress(LinkVoid):  # the link has ended, and so has the session
                released.append(link.send_outcome(each.delivery, RELEASED))
        link.arrived.clear()
        for outcome in released:
            with suppress(OutcomeUnknown):
                await outcome.outcome()

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`: a message is locked as long as its session."""
        _token_of(delivery)
        return await self.renew_session()

    async def wait_lost(self) -> NoReturn:
        """
        As `SessionReceiver.wait_lost`: the namespace detaches the link. If it says nothing, the
        lock is lost by its date, which may be noticed late by one usual lock duration.
        """
        while True:
            until = self.locked_until
            ends = LockEnds.of(until, self._dependencies.clock(), trio.current_time())
            with trio.move_on_at(ends.latest):
                while self._link.why is None:
                    await self._link.wait_news()
            self._check_link()
            if self.locked_until == until:
                raise SessionLockLost(f"the lock of session {self.session_id!r} expired")

    async def renew_session(self) -> datetime:
        """As `SessionReceiver.renew_session`."""
        question = ops.RenewSession(session_id=self.session_id)
        answer = await self._manage(question, ops.SessionRenewed)
        self._until = answer.until
        return self.locked_until

    async def get_state(self) -> bytes | None:
        """As `SessionReceiver.get_state`."""
        question = ops.GetSessionState(session_id=self.session_id)
        answer: ops.SessionState = await self._manage(question, ops.SessionState)
        return answer.state

    async def set_state(self, state: bytes | None) -> None:
        """As `SessionReceiver.set_state`."""
        await self._manage(self.request_for_state(state), ops.Done)

    def enlist_state(self, state: bytes | None) -> TransactedState:
        """As `EnlistsState.enlist_state`; the state is set by a request at the commit."""
        self._check_link()
        return TransactedState(self, state)

    def request_for_state(self, state: bytes | None) -> ops.Operation:
        """The request that sets the state."""
        return ops.SetSessionState(session_id=self.session_id, state=state)

    async def delete_messages(self, operation: ops.DeleteMessages) -> ops.Deleted:
        """As `DeletesMessages.delete_messages`, for the messages of this session."""
        answer: ops.Deleted = await self._manage(operation, ops.Deleted)
        return answer

    async def give_back(self) -> None:
        """
        Detach, which releases the session, and wait for the answer: until then the session would
        still be locked for the next receiver.
        """
        await self._link.detach()

    @property
    def _session_name(self) -> str | None:
        return self.session_id

    async def _manage(self, operation: ops.Operation, kind: Any) -> Any:
        self._check_link()
        with self._peer.judged():
            return await manage(
                self._peer, self._dependencies.meter, self._entity, operation, kind, self._as_its
            )

    def _has_left(self, link: ReceivingLink | None) -> bool:
        """Never: the lock of a session ends with its link."""
        return False

    def _judged_attach(self, peer: NamespaceConnection) -> AbstractContextManager[None]:
        """A namespace answers only once a session has messages, if none is named."""
        return nullcontext() if self._asked is None else super()._judged_attach(peer)

    async def _wait_for_link(self) -> None:
        self._check_link()
        while self._returning:
            await self._link.wait_news()
            self._check_link()
        if self._may_be_late:
            self._may_be_late = False
            await self._give_back_later_ones()

    def _check_link(self) -> None:
        """
        Check that the session's link is attached.

        Raises:
            BrokerError: the link has ended, and with it the lock of the session.
        """
        if self._link.why is None:
            return
        error = self._link.failure()
        if error.outcome is Outcome.UNKNOWN:
            raise SessionLockLost(f"session {self.session_id!r}: {error}")
        raise error

    def _new_link(self, peer: NamespaceConnection, address: str) -> NewLink:
        new = super()._new_link(peer, address)
        properties = {}
        if self._asked is None:
            properties[TIMEOUT] = uint(int(_WAIT * 1000))
        return attrs.evolve(
            new,
            source=Terminus(address=address, filters={FILTER: self._asked}),
            properties=properties,
        )

    async def _attach_next(self) -> bool:
        """Attach; return False if no session had messages in time."""
        began = trio.current_time()
        try:
            await self._attach()
        except BrokerError as error:
            if _NONE_IN_TIME not in str(error):
                raise
            await trio.sleep_until(began + _SHORT_WAIT)
            return False
        return True

    def _read_answer(self) -> None:
        answer = self._link.answer
        assert answer is not None, "it is attached"
        name = bare(answer.source.filters.get(FILTER)) if answer.source is not None else None
        until = answer.properties.get(LOCKED_UNTIL)
        if isinstance(until, Typed):
            until = until.value
        self._until = moment_of(until) or self._dependencies.clock()
        if isinstance(name, str) and self._asked not in {None, name}:
            self._link.close()
            raise Unavailable(f"{self._entity}: the namespace locked another session than asked")
        if not isinstance(name, str):
            self._link.close()
            raise InvalidRequest(
                f"{self._entity}: the namespace locked no session: the queue may not require"
                " sessions"
            )
        self.session_id = name


def _token_of(delivery: Delivery) -> str:
    if delivery.lock_token is None:
        raise LockLost("this delivery was never locked")
    return delivery.lock_token
