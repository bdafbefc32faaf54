"""
Links on which clients receive: as many deliveries as they give credit for.

Messages are always received with a lock. For receive-and-delete they are completed before they are
sent: a receiver that deletes by itself could lose a message when the client takes its credit back.

The detach of a session's link is answered when the session is released, so that the client may
accept that session again at once, on any connection.

A link outlives an outage of the namespace, and delivers nothing meanwhile, if `context.outages` is
there. A session doesn't: its link ends when the namespace is back, so that the client accepts a
session again, or at the end of the session's lock.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, TypeVarTuple, Unpack

import attrs
import trio

from gateway.capabilities import Enlists, ReceivesAvailable, SessionReceiver
from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.backlog import is_backlog
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    LockLost,
    MessageError,
    NotSupported,
    SessionLockLost,
    Unavailable,
)
from gateway.domain.message import Abandon, DeadLetter, Delivery, Settlement, Value
from gateway.frontends.amqp.context import (
    Context,
    Need,
    amqp_error,
    link_error,
    need_to_receive,
)
from gateway.frontends.amqp.disposition_handler import (
    DispositionHandler,
    confirmation_of,
    returns,
    settlement_of,
)
from gateway.frontends.amqp.receivers import (
    LeasedReceiver,
    complete_all,
)
from gateway.frontends.amqp.sessions import filters_of, properties_of
from gateway.frontends.amqp.transactions import Enlisted
from gateway.frontends.amqp.unsettled import Unsettled
from gateway.net.turns import Waiters
from gateway.net.visits import acquire_turn_to_await
from gateway.offering import offered, required
from gateway.wire.amqp.events import (
    RELEASED,
    AmqpError,
    DeliveryId,
    DispositionReceived,
    LinkAttached,
    LinkFlow,
    LinkId,
    OtherState,
    Rejected,
    SenderSettles,
    SessionId,
    TransactionalState,
)
from gateway.wire.amqp.servicebus.deliveries import encode_delivery, tag_of
from gateway.wire.amqp.servicebus.links import FILTER
from gateway.wire.amqp.servicebus.settlements import outcome_of

_TIMEOUT: Final = AmqpError(
    condition="com.microsoft:timeout",
    description="The operation did not complete within the allotted time.",
)
_UNREADABLE: Final = "MessageNotReadable"
_UNSEEN: Final = Abandon(delivered=False)  # of a message that its client hasn't seen
# Seconds from an attach to its refusal in an outage: some clients attach again at once, for ever.
_BETWEEN_REFUSALS: Final = 1.0
_Receiver = LeasedReceiver | SessionReceiver
_Open = Callable[[], AbstractAsyncContextManager[_Receiver]]
Ts = TypeVarTuple("Ts")


@attrs.frozen(eq=False)
class _Entered(AbstractAsyncContextManager[None]):
    """Leaves a scope that was entered before."""

    _scope: AbstractAsyncContextManager[_Receiver]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """As that of the scope."""
        return await self._scope.__aexit__(kind, error, traceback)  # noqa: ASYNC102 the scope's


@attrs.define(eq=False, kw_only=True)
class OutgoingLink:
    """Delivers the messages of one receiver, and settles them as the client asks."""

    _context: Context
    id: LinkId
    session: SessionId
    name: str
    _settled: bool  # the client wants to receive and delete
    _filter: Value  # the session filter that it has asked with
    entity: EntityPath
    _open: _Open
    _open_timeout: float
    receiver: _Receiver | None = attrs.field(default=None, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _session_until: datetime | None = attrs.field(default=None, init=False)  # as last known
    _released: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _settling: trio.Nursery = attrs.field(init=False)
    _outcomes: DispositionHandler = attrs.field(init=False)
    unsettled: Unsettled = attrs.field(init=False)
    _changed: Waiters = attrs.field(factory=Waiters, init=False)
    _draining: bool = attrs.field(default=False, init=False)
    _going_back: int = attrs.field(default=0, init=False)  # deliveries that aren't back yet
    _interruptions: int = attrs.field(default=0, init=False)  # of receives, by what goes back
    # The receive that is in progress: its limit and its start.
    _asked: int = attrs.field(default=0, init=False)
    _asked_at: float = attrs.field(default=0.0, init=False)
    _asking: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.unsettled = Unsettled(self._context.options.max_unsettled)

    @classmethod
    def of(
        cls,
        context: Context,
        attached: LinkAttached,
        entity: EntityPath,
        open: _Open,  # noqa: A002 as of files
        open_timeout: float,
    ) -> "OutgoingLink":
        """
        The link that the client has attached; `run` opens its receiver, within `open_timeout`
        seconds.
        """
        return cls(
            context=context,
            id=attached.link,
            session=attached.session,
            name=attached.name,
            settled=attached.sender_settles is SenderSettles.SETTLED,
            filter=None if attached.source is None else attached.source.filters.get(FILTER),
            entity=entity,
            open=open,
            open_timeout=open_timeout,
        )

    @property
    def need(self) -> Need:
        return need_to_receive(self.entity)

    @property
    def _available(self) -> ReceivesAvailable | None:
        """Not remembered: a link that was attached in an outage learns it after its return."""
        return None if self.receiver is None else offered(self.receiver, ReceivesAvailable)

    async def run(self) -> None:
        """Answer the attach, and serve the link until it is void."""
        began = trio.current_time()
        try:
            self._scope.deadline = began + self._open_timeout
            # The scope stays open: the receiver, which may have tasks, is opened within it.
            with self._scope as opening:
                async with _Entered(await self._opened()):
                    if opening.cancel_called:  # it took too long, or the client has gone
                        self.receiver = None
                    else:
                        opening.deadline = math.inf
                        await self._serve_opened()
            if self.receiver is None:
                self._context.refuse(self.id, _TIMEOUT)
        except BrokerError as error:
            if self.receiver is None and error.counts_as_outage:
                with self._new_scope():
                    await trio.sleep_until(began + _BETWEEN_REFUSALS)
            self._fail(error)
        finally:
            self._released = True
            self._changed.wake()

    async def _serve_opened(self) -> None:
        assert self.receiver is not None, "it has been opened"
        self._accept(self.receiver)
        await self._serve(self.receiver)
        await self._unlock_backlog(self.receiver)

    async def _opened(self) -> AbstractAsyncContextManager[_Receiver]:
        """Open the receiver: if an outage prevents it, as soon as that is over."""

        async def enter() -> AbstractAsyncContextManager[_Receiver]:
            opener = self._open()
            self.receiver = await opener.__aenter__()
            return opener

        outages = self._context.outages
        return await (enter() if outages is None else outages.outlast(self.entity, enter))

    def _new_scope(self) -> trio.CancelScope:
        """The scope of what `stop` ends from now on; it may have been called already."""
        self._scope = trio.CancelScope()
        if self._ended:
            self._scope.cancel()
        return self._scope

    def flow(self, event: LinkFlow) -> None:
        begins = event.drain and not self._draining
        self._draining = event.drain
        if event.credit < self._asked:
            self._asking.cancel()
        elif begins:
            wait = self._context.options.drain_wait if self._available is None else 0.0
            self._asking.deadline = self._asked_at + wait
        self._changed.wake()

    def disposition(self, event: DispositionReceived) -> None:
        if isinstance(event.state, TransactionalState):
            self._enlist(event, event.state)
            return
        if not event.settled and (event.state is None or isinstance(event.state, OtherState)):
            return  # not an outcome yet (part 3, 3.4.1)
        was_full = self.unsettled.room <= 0
        delivery = self.unsettled.pop(event.delivery)
        if delivery is not None:
            self._outcomes.settle(event, delivery)
            self._interrupt_if_returning()
            if was_full:
                self._changed.wake()

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        """A scope in which messages of this link become available again."""
        self._going_back += 1
        self._interrupt_if_returning()
        try:
            yield
        finally:
            self._going_back -= 1
            self._changed.wake()

    def _interrupt_if_returning(self) -> None:
        """
        In a session, stop a receive before messages that come again: what it takes now are later
        ones.
        """
        if self._returning:
            self._interruptions += 1
            self._asking.cancel()

    @property
    def _returning(self) -> bool:
        """
        True while messages go back that this link must deliver before all others: those that the
        client didn't take, and in a session those that it gives back.
        """
        of_session = not isinstance(self.receiver, LeasedReceiver)
        return self._going_back > 0 or (of_session and self._outcomes.returning > 0)

    def _enlist(self, event: DispositionReceived, state: TransactionalState) -> None:
        """
        Add the settlement of the delivery to a transaction. Until that is committed, and after a
        rollback, the client has the delivery with its lock. One that has settled its own side gets
        the message again after a rollback.
        """
        if state.outcome is None and not event.settled:
            return  # not an outcome yet
        transactions, engine = self._context.transactions, self._context.engine
        confirmation = attrs.evolve(state, outcome=confirmation_of(state.outcome))
        delivery = self.unsettled.get(event.delivery)
        try:
            if delivery is None or delivery.lock_token is None or self.receiver is None:
                raise LockLost("the delivery isn't locked on this link any more")
            transaction = transactions.find(state.txn_id)
            settlement = settlement_of(state.outcome)
            enlisted = Enlisted(
                lock_token=delivery.lock_token,
                work=required(self.receiver, Enlists).enlist(delivery, settlement),
                settled=partial(
                    self._settled_in_transaction, event.delivery, delivery, confirmation
                ),
                undone=partial(self._undo, event.delivery) if event.settled else None,
                going_back=self.giving_back if returns(settlement) else nullcontext,
            )
            transactions.add_settlement(transaction, enlisted)
        except BrokerError as error:
            transactions.fail_if_open(state.txn_id, error)
            engine.update(event.delivery, Rejected(error=amqp_error(error)))
            if event.settled and not transactions.holds(delivery):
                self._undo(event.delivery)
            return
        engine.update(event.delivery, confirmation)

    def _settled_in_transaction(
        self, id_: DeliveryId, delivery: Delivery, confirmation: TransactionalState
    ) -> None:
        """
        Settle the delivery with the state that its client has asked for. Java's SDK compares the
        two, and takes another one for a refusal, whose error it reads.
        """
        self.unsettled.pop(id_)
        # The delivery's lease may have outlived this link.
        if isinstance(self.receiver, LeasedReceiver):
            self.receiver.forget(delivery)
        self._context.engine.settle(id_, confirmation)
        self._changed.wake()

    def _undo(self, id_: DeliveryId) -> None:
        """
        Abandon a delivery that its client has settled in a transaction that is rolled back: it
        can't settle it again. JMS's clients do so, and expect the message before all others. On a
        link that has ended it stays locked.
        """
        delivery = self.unsettled.pop(id_)
        if delivery is not None and self.receiver is not None and not self._ended:
            self._context.engine.settle(id_, RELEASED)
            self._give_back(self.receiver, delivery, Abandon())
            self._interrupt_if_returning()
            self._changed.wake()

    def settled_by_request(self, lock_token: str, settlement: Settlement) -> None:
        """
        Note that a management request has settled a delivery of this link, or a deferred message.
        """
        self.unsettled.drop_deferred(lock_token)
        id_ = self.unsettled.pop_by_token(lock_token)
        if id_ is not None:
            self._context.engine.settle(id_, confirmation_of(outcome_of(settlement)))
            self._changed.wake()

    def stop(self) -> None:
        self._ended = True
        self._scope.cancel()
        if self.receiver is not None and not isinstance(self.receiver, LeasedReceiver):
            self._context.nursery.start_soon(self._answer_detach)

    async def _answer_detach(self) -> None:
        """Answer the client's detach, if there is one, when the session is released."""
        with trio.move_on_after(self._answer_timeout):  # so that no client waits for ever
            while not self._released:
                await self._changed.wait()
        self._context.engine.answer_detach(self.id)

    def _accept(self, receiver: _Receiver) -> None:
        # Only the session filter is supported; a filter that isn't in the answer isn't applied
        # (3.5.3).
        engine, link = self._context.engine, self.id
        if isinstance(receiver, LeasedReceiver):
            engine.accept(link, filters={})
        else:
            filters, properties = filters_of(receiver, self._filter), properties_of(receiver)
            engine.accept(link, filters=filters, properties=properties, lingers=True)

    async def _serve(self, receiver: _Receiver) -> None:
        """
        Return when the link is void and everything that the client had settled by then is done.
        """
        scope = self._new_scope()
        async with trio.open_nursery() as self._settling:
            self._outcomes = DispositionHandler(
                self._context, receiver, self._settling, self._changed.wake
            )
            with scope:
                if isinstance(receiver, LeasedReceiver):
                    await self._ending_link(self._pump, receiver)
                else:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._ending_link, receiver.wait_lost)
                        await self._ending_link(self._pump, receiver)

    async def _unlock_backlog(self, receiver: _Receiver) -> None:
        """
        Abandon the deliveries that a syphon's link has left: its gateway may have been killed, and
        they should not wait until their locks expire. Any other client may still settle on another
        link, so its locks stay.
        """
        if is_backlog(self.entity):
            left = [(delivery, Abandon()) for delivery in self.unsettled.pop_all()]
            if left:
                await settle_all(receiver, left, self._answer_timeout)

    async def _ending_link(
        self, work: Callable[[Unpack[Ts]], Awaitable[None]], *arguments: *Ts
    ) -> None:
        try:
            await work(*arguments)
        except BrokerError as error:
            self._fail(await self._error_of_end(error))

    async def _error_of_end(self, error: BrokerError) -> BrokerError:
        """
        The error with which the link ends. A session that an outage has ended is told so when the
        namespace is back, or at the end of its lock: a client that accepts a session any earlier
        would only wait for one.
        """
        outages, until = self._context.outages, self._session_until
        if outages is None or until is None:
            return error
        ended_by_outage = error.counts_as_outage or isinstance(error, SessionLockLost)
        if not ended_by_outage or not await outages.is_away(self.entity):
            return error
        ends = LockEnds.of(until, self._context.wall_clock(), trio.current_time())
        with trio.move_on_at(ends.latest):
            await outages.wait_answer(self.entity)
        return Unavailable(f"the namespace couldn't be reached: {error}")

    def _fail(self, error: BrokerError) -> None:
        if self.receiver is None:
            self._context.refuse(self.id, link_error(error))
        else:
            self._context.detach(self.id, link_error(error))
        self.stop()

    # ------------------------------------------------------------------ delivering

    async def _pump(self, receiver: _Receiver) -> None:
        """
        Receive and deliver until the connection closes, then wait until the link is void. A
        disposition that waits asks for a receive of its own, because a receive serves other links
        too.
        """
        share = 1
        while not self._context.pending.closing:
            await self._context.connection.wait_for_room()
            while self._returning:  # otherwise the messages behind them would overtake them
                self._give_credit_back()
                await self._changed.wait()
            if self._room <= 0:
                await self._wait()
                continue
            turn = await acquire_turn_to_await()
            try:
                if self._returning or (room := self._room) <= 0:
                    continue  # since it waits for its turn
                received = await self._receive_and_hand_out(receiver, min(room, share))
                if not self._asking.cancelled_caught:  # that says nothing of what is there
                    share = min(max(2 * received, 1), self._context.options.max_taken)
            finally:
                if turn is not None:
                    turn.release()
        await trio.sleep_forever()  # the client may still settle its deliveries

    async def _receive_and_hand_out(self, receiver: _Receiver, asked: int) -> int:
        """Return how many messages were handed out, of at most as many as asked for."""
        draining, interruptions = self._draining, self._interruptions
        deliveries = await self._receive(receiver, asked)
        if self._context.pending.closing:
            return 0  # a message that can't be written any more isn't completed
        if self._interruptions != interruptions:
            for each in deliveries:
                self._give_back(receiver, each)
            return 0
        await self._hand_out(receiver, deliveries)
        is_short = len(deliveries) < asked
        if is_short and (self._available is None or (draining and not deliveries)):
            self._give_credit_back()
        return len(deliveries)

    @property
    def _room(self) -> int:
        """The deliveries that the client may get now."""
        return min(self._context.engine.credit(self.id), self.unsettled.room)

    async def _wait(self) -> None:
        """Wait for credit, or for the client to settle a delivery."""
        credit = self._context.engine.credit(self.id)
        self._give_credit_back()
        with trio.move_on_at(self._drop_lost() if credit > 0 else math.inf):
            await self._changed.wait()

    def _drop_lost(self) -> float:
        """Forget deliveries whose locks have expired; return when the next lock may expire."""
        if not isinstance(self.receiver, LeasedReceiver):
            return math.inf  # the locks of these deliveries are the session's
        now = trio.current_time()
        lost, first = self.unsettled.pop_expired(self.receiver.lock_end_of, now)
        for id_ in lost:
            self._context.engine.settle(id_, RELEASED)
        return now if lost else first

    async def _receive(self, receiver: _Receiver, limit: int) -> Sequence[Delivery]:
        """
        Receive; empty if the client has taken its credit back, or drains and nothing is available.
        """
        self._asked, self._asked_at = limit, trio.current_time()
        if not isinstance(receiver, LeasedReceiver):
            self._session_until = receiver.locked_until
        wait = self._context.options.drain_wait if self._draining else math.inf
        receive, available = receiver.receive, self._available
        if self._draining and available is not None:
            receive = available.receive_available
        with trio.move_on_after(wait) as self._asking:
            try:
                return await receive(limit)
            finally:
                self._asked = 0
        return ()

    def _give_credit_back(self) -> None:
        if self._draining:
            self._draining = False
            self._context.engine.drained(self.id)

    async def _hand_out(self, receiver: _Receiver, deliveries: Sequence[Delivery]) -> None:
        credit = max(0, self._context.engine.credit(self.id))
        for surplus in deliveries[credit:]:
            self._give_back(receiver, surplus)
        ready = {
            each.lock_token: made
            for each in deliveries[:credit]
            if (made := self._encoded(receiver, each)) is not None
        }
        sure: Sequence[Delivery] = [each for each in deliveries if each.lock_token in ready]
        # a drain of the connection waits until the completed message is sent
        self._context.pending.add()
        try:
            if self._settled:
                sure = await complete_all(receiver, sure, self._answer_timeout)
            for delivery in sure:
                self._send(receiver, delivery, ready[delivery.lock_token])
        finally:
            self._context.pending.drop()

    def _encoded(self, receiver: _Receiver, delivery: Delivery) -> tuple[bytes, bytes] | None:
        """
        Tag and payload of the delivery. A message that AMQP can't express is dead-lettered, and the
        result is None.
        """
        assert delivery.lock_token is not None, "it was received with a lock"
        try:
            tag = tag_of(delivery.lock_token)
        except MessageError as error:  # the error isn't the message's fault
            self._give_back(receiver, delivery)
            self._fail(NotSupported(f"AMQP can't express this namespace's deliveries: {error}"))
            return None
        shown = delivery
        if self._settled:
            shown = attrs.evolve(delivery, lock_token=None, locked_until=None)
        try:
            return tag, encode_delivery(shown)
        except MessageError as error:
            why = DeadLetter(reason=_UNREADABLE, description=str(error))
            self._settling.start_soon(self._put_back, receiver, delivery, why)
            return None

    def _send(self, receiver: _Receiver, delivery: Delivery, encoded: tuple[bytes, bytes]) -> None:
        engine, link = self._context.engine, self.id
        id_ = engine.send(link, *encoded, settled=self._settled)
        if id_ is None:
            self._give_back(receiver, delivery)
        elif not self._settled:
            self.unsettled.add(id_, delivery)

    def _give_back(self, receiver: _Receiver, delivery: Delivery, how: Abandon = _UNSEEN) -> None:
        self._going_back += 1
        self._settling.start_soon(self._abandon, receiver, delivery, how)

    async def _abandon(self, receiver: _Receiver, delivery: Delivery, how: Abandon) -> None:
        try:
            await self._put_back(receiver, delivery, how)
        finally:
            self._going_back -= 1
            self._changed.wake()

    async def _put_back(
        self, receiver: _Receiver, delivery: Delivery, settlement: Settlement
    ) -> None:
        """Settle a delivery that the client can't settle; if that fails, its lock expires."""
        await settle_one(receiver, delivery, settlement, self._answer_timeout)

    @property
    def _answer_timeout(self) -> float:
        return self._context.options.answer_timeout
