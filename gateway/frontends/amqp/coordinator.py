"""
Links on which a client controls transactions: declare, and discharge (AMQP 1.0, part 4).

    the commit of the namespace    the client gets, to its discharge
    done                           accepted; its deliveries are settled
    not done                       rejected, amqp:transaction:rollback: certainly nothing was done
    unknown                        no answer: the connection ends. The end of the link alone would
                                   say that the transaction is rolled back (4.3)

The link and a declare need no token: .NET's SDK declares before it opens the link that brings one.
The links of the work have needs of their own, and the namespace isn't asked for a stranger.
"""

from contextlib import ExitStack
from typing import Final

import attrs

from gateway.capabilities import Transacts
from gateway.deadlines import answered_within
from gateway.domain.errors import (
    BrokerError,
    Busy,
    MessageError,
    NotSupported,
    Outcome,
    TransactionRolledBack,
    TransactionTimeout,
    Unavailable,
)
from gateway.frontends.amqp.context import Context, amqp_error, unreadable
from gateway.frontends.amqp.transactions import Transaction
from gateway.offering import required
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    Declared,
    DeliveryState,
    LinkId,
    Rejected,
    SessionId,
    TransferReceived,
)
from gateway.wire.amqp.transactions import CAPABILITIES, Declare, Discharge, parse_control

_CREDIT: Final = 100  # as `requests._CREDIT`
_MOST_BYTES: Final = 4096  # of a declare or a discharge


@attrs.define(eq=False)
class CoordinatorLink:
    """A link to the coordinator. Transactions that are open when it ends are rolled back."""

    _context: Context
    id: LinkId
    session: SessionId
    need: None = attrs.field(default=None, init=False)
    _under_way: int = attrs.field(default=0, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    async def open(self) -> None:
        """
        Answer the attach, with a refusal if the namespace reports that it has no transactions. If
        it doesn't answer in time, each declare gets its own answer.
        """
        engine = self._context.engine
        try:
            await self._check(self._context.options.probe_timeout)
        except NotSupported as error:
            self._context.refuse(self.id, amqp_error(error))
            return
        except BrokerError:
            pass  # each declare asks again
        engine.accept_coordinator(self.id, CAPABILITIES, _MOST_BYTES)
        engine.grant(self.id, _CREDIT)

    def transfer(self, event: TransferReceived) -> None:
        if self._context.closed and not event.settled:
            return  # the client gets no answer: nothing is committed without one
        try:
            self._context.pending.begin(len(event.payload))
        except Busy as error:
            self._context.engine.settle(event.delivery, Rejected(error=amqp_error(error)))
            self._top_up()
            return
        self._under_way += 1
        try:
            control = parse_control(event.payload)
        except MessageError as error:
            self._answer(event, Rejected(error=unreadable(error)))
            return
        except NotSupported as error:
            self._answer(event, Rejected(error=amqp_error(error)))
            return
        match control:
            case Declare():
                self._context.nursery.start_soon(self._declare, event)
            case Discharge():
                self._discharge(event, control)

    def stop(self) -> None:
        """
        End the link: its open transactions are rolled back. A commit that has begun continues.
        """
        self._ended = True
        self._context.transactions.roll_back_all(self.id)

    async def _check(self, seconds: float) -> None:
        """Ask the namespace for its transactions, unless the client is a stranger."""
        if not self._context.tokens.has_any:
            return
        with answered_within(seconds, error=Unavailable):
            await required(self._context.broker, Transacts).check_transactions()

    async def _declare(self, event: TransferReceived) -> None:
        state: DeliveryState
        try:
            await self._check(self._context.options.answer_timeout)
            if self._ended or event.settled:  # no client learns its id
                self._answer(event, ACCEPTED)
                return
            state = Declared(txn_id=self._context.transactions.declare(self.id).id)
        except BrokerError as error:
            state = Rejected(error=amqp_error(error))
        self._answer(event, state)

    def _discharge(self, event: TransferReceived, control: Discharge) -> None:
        """
        Roll back at once, or begin to commit: work that the client sends later is of no
        transaction.
        """
        try:
            transaction = self._context.transactions.discharge(control.txn_id, self.id)
        except TransactionTimeout as error:
            undone = ACCEPTED if control.fail else Rejected(error=amqp_error(error))
            self._answer(event, undone)
        except TransactionRolledBack as error:
            self._answer(event, Rejected(error=amqp_error(error)))
        else:
            if control.fail:
                self._context.transactions.release(transaction)
                self._context.transactions.undo(transaction)
                self._answer(event, ACCEPTED)
            else:
                # From now on: a client may give credit in the same write.
                going_back = ExitStack()
                for each in transaction.enlisted:
                    going_back.enter_context(each.going_back())
                self._context.nursery.start_soon(self._commit, event, transaction, going_back)

    async def _commit(
        self, event: TransferReceived, transaction: Transaction, going_back: ExitStack
    ) -> None:
        try:
            with going_back:
                await self._commit_work(transaction)
        except BrokerError as error:
            if error.outcome is Outcome.UNKNOWN:
                self._done(event)
                await self._close_connection(error)
            else:
                self._context.transactions.undo(transaction)
                self._answer(event, Rejected(error=_rolled_back(error)))
            return
        for each in transaction.enlisted:
            each.settled()
        self._answer(event, ACCEPTED)

    async def _commit_work(self, transaction: Transaction) -> None:
        """
        Return once the namespace has done all of the work, including requests that came before the
        discharge and aren't answered yet.

        Raises:
            BrokerError: nothing was done, or that is unknown.
        """
        transactions, seconds = self._context.transactions, self._context.options.send_timeout
        try:
            await transactions.wait_for_requests(transaction)
            if transaction.failure:
                raise TransactionRolledBack(f"a part of it was refused: {transaction.failure}")
            if not transaction.work:
                return
            with answered_within(seconds, "to the commit of a transaction"):
                await required(self._context.broker, Transacts).commit(transaction.work)
        finally:
            transactions.release(transaction)

    def _answer(self, event: TransferReceived, state: DeliveryState) -> None:
        self._context.engine.settle(event.delivery, state)
        self._done(event)
        if event.settled and isinstance(state, Rejected) and state.error is not None:
            self._context.detach(self.id, state.error)
        else:
            self._top_up()

    def _done(self, event: TransferReceived) -> None:
        self._under_way -= 1
        self._context.pending.finish(len(event.payload))

    async def _close_connection(self, error: BrokerError) -> None:
        self._context.closed = True
        told = amqp_error(error)
        text = f"Whether the transaction was committed is unknown: {told.description}"
        await self._context.connection.close(attrs.evolve(told, description=text))

    def _top_up(self) -> None:
        engine = self._context.engine
        free = _CREDIT - self._under_way - engine.credit(self.id)
        if free * 2 >= _CREDIT:
            engine.grant(self.id, free)


def _rolled_back(error: BrokerError) -> AmqpError:
    told = amqp_error(error)
    if isinstance(error, TransactionRolledBack):
        return told
    text = f"Rolled back: {told.description} ({told.condition})"
    return attrs.evolve(amqp_error(TransactionRolledBack(text)), description=text)
