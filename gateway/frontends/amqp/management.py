"""Requests to an entity's `$management`: which of them is which call of the broker."""

from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks, Schedules, Sessions, Topology
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError, NotSupported, OutcomeUnknown
from gateway.frontends.amqp.context import Context, Need
from gateway.frontends.amqp.locked import answer_locked
from gateway.wire.amqp import management_operations as ops
from gateway.wire.amqp.deliveries import encode_delivery
from gateway.wire.amqp.exchange import Reply, Request
from gateway.wire.amqp.management import operation_of, refusal_of, reply_of, timeout_of

_SENDING: Final = (ops.Schedule, ops.CancelScheduled)
_MOST: Final = 1000  # names of one reply
_MOST_BYTES: Final = 1024 * 1024  # of the messages of one reply
_PAGE: Final = 32  # messages that are looked at in one step


@attrs.frozen(eq=False)
class Management:
    """Answers what one client asks about one entity."""

    _context: Context
    _entity: EntityPath

    async def answer(self, request: Request, since: float) -> Reply:
        """Every error has become a reply. The time that the client waits begins at `since`."""
        await trio.lowlevel.checkpoint()
        try:
            operation = operation_of(request)
            self._check(operation)
            with trio.move_on_at(since + self._seconds(request)) as asking:
                return reply_of(request, operation, await self._do(operation, asking))
            raise OutcomeUnknown(f"no answer from {self._entity} in time")
        except GatewayError as error:
            return refusal_of(request, error)

    def _check(self, operation: ops.Operation) -> None:
        """
        Rules of subscriptions are a listener's matter here, as in Service Bus; on HTTP they need
        the right to manage.
        """
        right = Right.SEND if isinstance(operation, _SENDING) else Right.LISTEN
        self._context.check(Need(rights=(right,), entity=self._entity, management=True))

    def _seconds(self, request: Request) -> float:
        options = self._context.options
        wanted = timeout_of(request)
        return options.answer_timeout if wanted is None else min(wanted, options.longest_wait)

    async def _do(  # noqa: ASYNC910 all wait
        self, operation: ops.Operation, asking: trio.CancelScope
    ) -> ops.Answer:
        match operation:
            case ops.Schedule() | ops.CancelScheduled():
                return await self._schedule(operation)
            case ops.Peek():
                return await self._peek(operation)
            case ops.ListSessions():
                return await self._list_sessions(operation)
            case ops.AddRule() | ops.RemoveRule() | ops.ListRules():
                return await self._rules(operation)
            case _:
                return await answer_locked(self._context, self._entity, operation, asking)

    async def _schedule(self, operation: ops.Schedule | ops.CancelScheduled) -> ops.Answer:
        await trio.lowlevel.checkpoint()
        broker = self._context.broker
        if not isinstance(broker, Schedules):
            raise NotSupported("this namespace doesn't number what is scheduled")
        if isinstance(operation, ops.CancelScheduled):
            await broker.cancel_scheduled(self._entity, operation.sequence_numbers)
            return ops.Done()
        messages = list(map(self._context.with_id, operation.messages))
        numbers = await broker.schedule(self._entity, messages)
        return ops.Scheduled(sequence_numbers=tuple(numbers))

    async def _peek(self, operation: ops.Peek) -> ops.Answer:
        """
        As many as go in one reply; one at least, if there is any.

        For one session, all messages are looked through, as long as the client waits.
        """
        await trio.lowlevel.checkpoint()
        broker = self._context.broker
        if not isinstance(broker, Peeks):
            raise NotSupported("this namespace can't show messages without taking them")
        wanted, first, shown = (
            operation.session_id,
            operation.from_sequence,
            _Shown(operation.limit),
        )
        size = min(_PAGE, operation.limit) if wanted is None else _PAGE
        while not shown.full:
            page = await broker.peek(self._entity, from_sequence=first, limit=size)
            for delivery in page:
                if wanted in {None, delivery.message.session_id}:
                    shown.add(encode_delivery(delivery, peeked=True))
            if len(page) < size:
                break
            first = page[-1].sequence_number + 1
        return ops.Messages(messages=tuple(shown.handed))

    async def _list_sessions(self, operation: ops.ListSessions) -> ops.Answer:
        await trio.lowlevel.checkpoint()
        broker = self._context.broker
        if not isinstance(broker, Sessions):
            raise NotSupported("this namespace has no sessions")
        names = await broker.list_sessions(
            self._entity,
            updated_since=operation.updated_since,
            skip=operation.skip,
            top=min(operation.top, _MOST),
        )
        return ops.SessionNames(names=tuple(names), skip=operation.skip)

    async def _rules(self, operation: ops.AddRule | ops.RemoveRule | ops.ListRules) -> ops.Answer:
        await trio.lowlevel.checkpoint()
        broker = self._context.broker
        if not isinstance(broker, Topology) or not self._entity.is_subscription:
            raise NotSupported(f"{self._entity} has no rules")
        topic, name = self._entity.topic, self._entity.subscription
        match operation:
            case ops.AddRule(rule=rule):
                await broker.create_rule(topic, name, rule)
            case ops.RemoveRule(name=rule_name):
                await broker.delete_rule(topic, name, rule_name)
            case ops.ListRules(skip=skip, top=top):
                rules = await broker.list_rules(topic, name, skip=skip, top=min(top, _MOST))
                return ops.Rules(rules=tuple(rules))
        return ops.Done()


@attrs.define(eq=False)
class _Shown:
    """Messages of one reply: up to a number, and up to a size, but one at least."""

    _limit: int
    handed: list[ops.Handed] = attrs.field(factory=list, init=False)
    _left: int = attrs.field(default=_MOST_BYTES, init=False)

    @property
    def full(self) -> bool:
        return len(self.handed) >= self._limit or self._left <= 0

    def add(self, payload: bytes) -> None:
        """Nothing more is shown after one that doesn't fit."""
        fits = len(payload) <= self._left or not self.handed
        if fits and not self.full:
            self.handed.append(ops.Handed(payload=payload))
        self._left -= len(payload)
