"""Requests to an entity's `$management` become calls of the broker."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import (
    DeletesMessages,
    EnlistsSchedules,
    Peeks,
    Schedules,
    Sessions,
    Topology,
)
from gateway.deadlines import answered_within
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    GatewayError,
    InvalidRequest,
    NotSupported,
    TransactionRolledBack,
    drop_tracebacks,
)
from gateway.domain.message import Message
from gateway.frontends.amqp.context import Context, Need
from gateway.frontends.amqp.locked import answer_locked, enlist, enlist_state, holder
from gateway.frontends.amqp.transactions import Transaction
from gateway.net.visits import answering
from gateway.offering import offered, required
from gateway.wire.amqp.exchange import NodeRequest, Reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import operation_of, refusal_of, reply_of, timeout_of
from gateway.wire.amqp.messages.sections import without_body
from gateway.wire.amqp.servicebus.deliveries import encode_delivery

_SENDING: Final = (ops.Schedule, ops.CancelScheduled)
_HARMLESS: Final = (
    ops.Peek,
    ops.ListSessions,
    ops.ListRules,
    ops.RenewLocks,
    ops.RenewSession,
    ops.GetSessionState,
)
_MOST: Final = 1000  # sessions or rules of one reply
_MOST_BYTES: Final = 1024 * 1024  # total size of the messages of one reply
_PAGE: Final = 32  # messages that are peeked in one step


@attrs.frozen(eq=False)
class Management:
    """Answers one client's requests to the `$management` of one entity."""

    _context: Context
    _entity: EntityPath

    async def answer(self, request: NodeRequest, since: float) -> Reply:
        """
        Answer the request; every error has become a reply. The client has been waiting since
        `since` (by Trio's clock).
        """
        try:
            operation = operation_of(request)
            self._check(operation)
            seconds = self._seconds(request)
            with answered_within(seconds, f"from {self._entity}", since=since) as asking:
                if request.txn_id is None:
                    answer = await self._do(operation, asking)
                else:
                    answer = await self._do_in_transaction(request.txn_id, operation, asking)
                return reply_of(request, operation, answer)
        except GatewayError as error:
            if request.txn_id is not None:
                self._fail(request.txn_id, error)
            drop_tracebacks(error)
            return refusal_of(request, error)

    def _fail(self, txn_id: bytes, error: GatewayError) -> None:
        """Note that a request was refused: its transaction can only be rolled back."""
        why = error if isinstance(error, BrokerError) else InvalidRequest(str(error))
        with suppress(TransactionRolledBack):  # the transaction was rolled back meanwhile
            self._context.transactions.fail(self._context.transactions.find_joined(txn_id), why)

    def _check(self, operation: ops.Operation) -> None:
        """
        Check the client's right. Rules of a subscription need the right to listen here, as in
        Service Bus; over HTTP they need the right to manage.
        """
        right = Right.SEND if isinstance(operation, _SENDING) else Right.LISTEN
        self._context.check(Need(rights=(right,), entity=self._entity, management=True))

    def _seconds(self, request: NodeRequest) -> float:
        options = self._context.options
        wanted = timeout_of(request)
        return options.answer_timeout if wanted is None else min(wanted, options.longest_wait)

    async def _do(self, operation: ops.Operation, asking: trio.CancelScope) -> ops.Answer:
        match operation:
            case ops.Schedule() | ops.CancelScheduled():
                return await self._schedule(operation)
            case ops.Peek():
                return await self._peek(operation)
            case ops.ListSessions():
                return await self._list_sessions(operation)
            case ops.DeleteMessages():
                return await self._delete(operation)
            case ops.AddRule() | ops.RemoveRule() | ops.ListRules():
                return await self._rules(operation)
            case _:
                return await answer_locked(self._context, self._entity, operation, asking)

    async def _do_in_transaction(
        self, txn_id: bytes, operation: ops.Operation, asking: trio.CancelScope
    ) -> ops.Answer:
        """
        Do the operation in a transaction: a schedule, a settlement and a session's state wait for
        the commit. An operation that changes no message is done at once, and isn't undone by a
        rollback.
        """
        transaction = self._context.transactions.find_joined(txn_id)
        if isinstance(operation, _SENDING):
            return await self._enlist(operation, transaction)
        if isinstance(operation, ops.UpdateDisposition):
            return enlist(self._context, self._entity, operation, transaction)
        if isinstance(operation, ops.SetSessionState):
            return enlist_state(self._context, self._entity, operation, transaction)
        if isinstance(operation, _HARMLESS):
            return await self._do(operation, asking)
        raise NotSupported("this request can't be part of a transaction")

    async def _schedule(self, operation: ops.Schedule | ops.CancelScheduled) -> ops.Answer:
        schedules = required(self._context.broker, Schedules)
        if isinstance(operation, ops.CancelScheduled):
            await schedules.cancel_scheduled(self._entity, operation.sequence_numbers)
            return ops.Done()
        numbers = await schedules.schedule(self._entity, self._with_ids(operation))
        return ops.Scheduled(sequence_numbers=tuple(numbers))

    async def _enlist(
        self, operation: ops.Schedule | ops.CancelScheduled, to: Transaction
    ) -> ops.Answer:
        """Add scheduled messages, whose sequence numbers are reserved, or their cancellation."""
        enlists = required(self._context.broker, EnlistsSchedules)
        if isinstance(operation, ops.CancelScheduled):
            cancelled = enlists.enlist_cancellation(self._entity, operation.sequence_numbers)
            self._context.transactions.add_cancellation(to, cancelled)
            return ops.Done()
        work = await enlists.enlist_schedule(self._entity, self._with_ids(operation))
        self._context.transactions.add_schedule(to, work)
        assert work.reservation is not None, "a schedule in a transaction has its numbers"
        return ops.Scheduled(sequence_numbers=tuple(work.reservation.numbers))

    def _with_ids(self, operation: ops.Schedule) -> Sequence[Message]:
        return list(map(self._context.with_id, operation.messages))

    async def _peek(self, operation: ops.Peek) -> ops.Answer:
        """
        Return as many messages as fit into one reply, but at least one if there is any.

        To peek one session, all messages of the queue are examined, for as long as the client
        waits.
        """
        peeks = required(self._context.broker, Peeks)
        wanted, first, answer = (
            operation.session_id,
            operation.from_sequence,
            _PeekReply(operation.limit),
        )
        size = min(_PAGE, operation.limit) if wanted is None else _PAGE
        while not answer.full:
            page = await peeks.peek(self._entity, from_sequence=first, limit=size)
            async with answering(is_large=True):
                for delivery in page:
                    if wanted in {None, delivery.message.session_id}:
                        payload = encode_delivery(delivery, peeked=True)
                        answer.add(without_body(payload) if operation.omit_body else payload)
            # A namespace may show fewer if they are large, so that others of a session may follow.
            if not page or (wanted is None and len(page) < size):
                break
            first = page[-1].sequence_number + 1
        return ops.Messages(messages=tuple(answer.handed))

    async def _list_sessions(self, operation: ops.ListSessions) -> ops.Answer:
        sessions = required(self._context.broker, Sessions)
        names = await sessions.list_sessions(
            self._entity,
            updated_since=operation.updated_since,
            skip=operation.skip,
            top=min(operation.top, _MOST),
        )
        return ops.SessionNames(names=tuple(names), skip=operation.skip + len(names))

    async def _delete(self, operation: ops.DeleteMessages) -> ops.Answer:
        holder(self._context, self._entity, operation.session_id)  # a link must hold the session
        count = await required(self._context.broker, DeletesMessages).delete_messages(
            self._entity,
            operation.limit,
            before=operation.before,
            session_id=operation.session_id,
        )
        return ops.Deleted(count=count)

    async def _rules(self, operation: ops.AddRule | ops.RemoveRule | ops.ListRules) -> ops.Answer:
        topology = offered(self._context.broker, Topology)
        if topology is None or not self._entity.is_subscription:
            raise NotSupported(f"{self._entity} isn't a subscription and has no rules")
        topic, name = self._entity.topic, self._entity.subscription
        match operation:
            case ops.AddRule(rule=rule):
                await topology.create_rule(topic, name, rule)
            case ops.RemoveRule(name=rule_name):
                await topology.delete_rule(topic, name, rule_name)
            case ops.ListRules(skip=skip, top=top):
                rules = await topology.list_rules(topic, name, skip=skip, top=min(top, _MOST))
                return ops.Rules(rules=tuple(rules))
        return ops.Done()


@attrs.define(eq=False)
class _PeekReply:
    """The peeked messages of one reply: limited in number and size, but at least one."""

    _limit: int
    handed: list[ops.Handed] = attrs.field(factory=list, init=False)
    _left: int = attrs.field(default=_MOST_BYTES, init=False)

    @property
    def full(self) -> bool:
        return len(self.handed) >= self._limit or self._left <= 0

    def add(self, payload: bytes) -> None:
        """Add a message; after the first that doesn't fit, none is added any more."""
        fits = len(payload) <= self._left or not self.handed
        if fits and not self.full:
            self.handed.append(ops.Handed(payload=payload))
        self._left -= len(payload)
