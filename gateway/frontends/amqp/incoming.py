"""
Links on which clients send: each message is answered when the broker has answered.

    the broker says          the client gets
    it owns the message      accepted
    certainly not            rejected, with the condition; the link stays, unless the entity is gone
    nobody knows             no answer: the link is detached with com.microsoft:timeout

The order of a link is kept: one step to the broker at a time, with all that has come in meanwhile.
A message that the client has settled already has no answer, so that its failure ends the link.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
)
from gateway.domain.message import Message
from gateway.frontends.amqp.context import Context, Need
from gateway.frontends.amqp.errors import amqp_error
from gateway.wire.amqp.batches import decode_payload
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    LinkAttached,
    Rejected,
    SessionId,
    TransferReceived,
)

_GONE: Final = (EntityNotFound, EntityDisabled)
_NO_SUCH: Final = (*_GONE, InvalidRequest)
# Of several messages, one may be the reason.
_ONES_FAULT: Final = (MessageTooLarge, InvalidRequest, QuotaExceeded)


@attrs.frozen
class _Transfer:
    event: TransferReceived
    messages: tuple[Message, ...]


@attrs.define(eq=False)
class IncomingLink:
    """Takes messages for one entity."""

    _context: Context
    _attached: LinkAttached
    _entity: EntityPath
    _waiting: deque[TransferReceived] = attrs.field(factory=deque, init=False)
    _opening: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _largest: int = attrs.field(init=False)  # bytes of a message
    _open: bool = attrs.field(default=False, init=False)
    _working: bool = attrs.field(default=False, init=False)
    _in_work: int = attrs.field(default=0, init=False)
    _failed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._largest = self._context.options.max_message_size

    @property
    def session(self) -> SessionId:
        return self._attached.session

    @property
    def need(self) -> Need:
        return Need(rights=(Right.SEND,), entity=self._entity)

    async def open(self) -> None:
        """
        Answer the attach, as soon as it is known whether there is such an entity, and how large
        its messages may be.
        """
        refusal: BrokerError | None = None
        with self._opening:
            refusal = await self._probe()
        if self._opening.cancelled_caught:
            self._drop()
        elif refusal is not None:
            self._context.refuse(self._attached.link, amqp_error(refusal))
            self._drop()
        else:
            self._open = True
            self._context.engine.accept(self._attached.link, max_message_size=self._largest)
            self._top_up()
            self._work_on()

    def transfer(self, event: TransferReceived) -> None:
        if self._context.closed and not event.settled:
            return  # nobody would hear the answer: better it is sent once more than twice
        self._context.pending.add(len(event.payload))
        self._waiting.append(event)
        self._work_on()

    def end(self) -> None:
        """What has come in is sent all the same: the client may have settled it."""
        self._opening.cancel()

    async def _probe(self) -> BrokerError | None:
        """Why the link can't be; None if it can, or if nobody knows."""
        await trio.lowlevel.checkpoint()
        if self._entity.is_dead_letter:
            return InvalidRequest(f"{self._entity}: nobody sends to a dead-letter sub-queue")
        try:
            with trio.move_on_after(self._context.options.probe_timeout):
                await self._context.broker.probe(self._entity)
                await self._measure()
        except _NO_SUCH as error:
            return error
        except BrokerError:
            return None  # each send gets its own answer
        return None

    async def _measure(self) -> None:
        """Learn how large a message may be, from a namespace that tells it."""
        await trio.lowlevel.checkpoint()
        broker = self._context.broker
        with suppress(BrokerError):
            told: int | None = None
            try:
                told = (await broker.inspect(self._entity)).max_message_size
            except EntityNotFound:
                if isinstance(broker, Topology):
                    told = (await broker.inspect_topic(self._entity)).max_message_size
            self._largest = min(self._largest, told or self._largest)

    def _work_on(self) -> None:
        if self._open and self._waiting and not self._working:
            self._working = True
            self._context.nursery.start_soon(self._work)

    async def _work(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            while self._waiting:
                group = self._take_group()
                if group:
                    await self._send(group)
                self._top_up()
        finally:
            self._working = False

    def _take_group(self) -> list[_Transfer]:
        """What goes in one step; what can't be read is answered."""
        options = self._context.options
        group: list[_Transfer] = []
        count = size = 0
        while self._waiting:
            event = self._waiting[0]
            if group and size + len(event.payload) > options.max_group_bytes:
                break
            self._waiting.popleft()
            messages = self._read(event)
            if messages is not None:
                group.append(_Transfer(event, messages))
                count += len(messages)
                size += len(event.payload)
                if count >= options.max_group:
                    break
        self._in_work = len(group)
        return group

    def _read(self, event: TransferReceived) -> tuple[Message, ...] | None:
        try:
            messages = decode_payload(event.payload, event.message_format)
        except MessageTooLarge as error:
            self._reject(event, amqp_error(error))
            return None
        except MessageError as error:
            self._reject(event, AmqpError(condition="amqp:decode-error", description=str(error)))
            return None
        return tuple(map(self._context.with_id, messages))

    async def _send(self, group: Sequence[_Transfer]) -> None:
        await trio.lowlevel.checkpoint()
        error = await self._try([message for each in group for message in each.messages])
        if error is None:
            for each in group:
                self._context.engine.settle(each.event.delivery, ACCEPTED)
                self._done(each.event)
        elif len(group) > 1 and isinstance(error, _ONES_FAULT):
            await self._send_each(group)
        else:
            self._answer_failed(group, error)

    def _answer_failed(self, group: Sequence[_Transfer], error: BrokerError) -> None:
        if error.outcome is Outcome.UNKNOWN:
            for each in group:
                self._done(each.event)
            self._fail(amqp_error(error))
            return
        for each in group:
            self._reject(each.event, amqp_error(error))
        if isinstance(error, _GONE):
            self._fail(amqp_error(error))

    async def _send_each(self, group: Sequence[_Transfer]) -> None:
        await trio.lowlevel.checkpoint()
        for each in group:
            if self._failed:
                self._done(each.event)
            else:
                await self._send([each])

    async def _try(  # noqa: ASYNC910 a send waits, or raises after that
        self, messages: Sequence[Message]
    ) -> BrokerError | None:
        """Have the broker take them; the error if it didn't, or if nobody knows."""
        try:
            with trio.move_on_after(self._context.options.send_timeout) as scope:
                await self._context.broker.send(self._entity, messages)
        except BrokerError as error:
            return error  # noqa: ASYNC910
        if scope.cancelled_caught:
            return OutcomeUnknown(f"no answer from {self._entity} in time")
        return None

    def _reject(self, event: TransferReceived, error: AmqpError) -> None:
        self._context.engine.settle(event.delivery, Rejected(error=error))
        self._done(event)
        if event.settled:
            self._fail(error)

    def _fail(self, error: AmqpError) -> None:
        """Nothing of this link is sent any more: its client has to look."""
        self._failed = True
        self._drop()
        self._context.detach(self._attached.link, error)

    def _drop(self) -> None:
        while self._waiting:
            self._context.pending.drop(len(self._waiting.popleft().payload))

    def _done(self, event: TransferReceived) -> None:
        self._in_work = max(0, self._in_work - 1)
        self._context.pending.drop(len(event.payload))

    def _top_up(self) -> None:
        """Give the client credit for what isn't under way, when that is half of the window."""
        engine, window = self._context.engine, self._context.options.window
        unfinished = len(self._waiting) + self._in_work
        free = window - unfinished - engine.credit(self._attached.link)
        if free * 2 >= window:
            engine.grant(self._attached.link, free)
