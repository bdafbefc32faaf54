"""
Links on which clients send: each message is answered when the broker has answered.

    the broker says          the client gets
    it owns the message      accepted
    certainly not            rejected, with the condition; the link stays, unless the entity is gone
    nobody knows             no answer: the link is detached with com.microsoft:timeout

The order of a link is kept. A broker that takes several batches in one step, and tells of each
what became of it, has two steps under way, so that messages are read and answered while others are
being stored. Any other one has a step at a time, with all that has come in meanwhile: where one
message is refused, each is sent again by itself, before any later one.

A message that the client has settled already has no answer, so that its failure ends the link.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import attrs
import trio

from gateway.capabilities import SendsMany, Topology
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    MESSAGE_FAULTS,
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
from gateway.domain.values import value
from gateway.frontends.amqp.context import Context, Need
from gateway.frontends.amqp.errors import amqp_error
from gateway.wire.amqp.batches import decode_payload
from gateway.wire.amqp.events import (
    ACCEPTED,
    Accepted,
    AmqpError,
    LinkAttached,
    Rejected,
    SessionId,
    TransferReceived,
)

T = TypeVar("T")

_GONE: Final = (EntityNotFound, EntityDisabled)
_NO_SUCH: Final = (*_GONE, InvalidRequest)
# Of several messages, one may be the reason.
_ONES_FAULT: Final = (*MESSAGE_FAULTS, QuotaExceeded)


_STEPS: Final = 2  # under way at once, where that keeps the order: one is read, one is stored


@value
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
    _many: SendsMany | None = attrs.field(init=False)
    _working: int = attrs.field(default=0, init=False)  # tasks, with a step each
    _beginning: bool = attrs.field(default=False, init=False)  # one of them hasn't looked yet
    _in_work: int = attrs.field(default=0, init=False)  # transfers
    _failed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._largest = self._context.options.max_message_size
        broker = self._context.broker
        self._many = broker if isinstance(broker, SendsMany) else None

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
        """Have one more task at work, if it has something to do."""
        if self._open and self._waiting and not self._beginning and self._may_begin:
            self._beginning = True
            self._working += 1
            self._context.nursery.start_soon(self._work)

    @property
    def _may_begin(self) -> bool:
        """Whether one more step keeps the order and is worth it: beside a full one it isn't."""
        if self._working == 0:
            return True
        few = self._in_work < self._context.options.max_group
        return self._many is not None and self._working < _STEPS and few

    async def _work(self) -> None:  # noqa: ASYNC910 it ends, or a send waits
        self._beginning = False
        try:
            while self._waiting:
                group = self._take_group()
                self._work_on()
                if group:
                    await self._send(group)  # before it waits, it has its place in the order
                self._top_up()
        finally:
            self._working -= 1

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
            self._in_work += 1
            messages = self._read(event)
            if messages is not None:
                group.append(_Transfer(event, messages))
                count += len(messages)
                size += len(event.payload)
                if count >= options.max_group:
                    break
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

    async def _send(self, group: Sequence[_Transfer]) -> None:  # noqa: ASYNC910 a send waits
        if self._many is not None:
            self._answer(group, await self._try_many(self._many, group))
            return
        error = await self._try(group)
        if isinstance(error, _ONES_FAULT) and len(group) > 1:
            await self._send_each(group)
        else:
            self._answer(group, [error] * len(group))

    async def _send_each(self, group: Sequence[_Transfer]) -> None:
        await trio.lowlevel.checkpoint()
        for each in group:
            if self._failed:
                self._done(each.event)
            else:
                self._answer([each], [await self._try([each])])

    async def _try(self, group: Sequence[_Transfer]) -> BrokerError | None:
        """Have the broker take all of them; the error if it didn't, or if nobody knows."""
        messages = [message for each in group for message in each.messages]
        sent = await self._in_time(lambda: self._context.broker.send(self._entity, messages))
        return sent if isinstance(sent, BrokerError) else None

    async def _try_many(
        self, many: SendsMany, group: Sequence[_Transfer]
    ) -> Sequence[BrokerError | None]:
        """The same, and of each what became of it."""
        batches = [each.messages for each in group]
        verdicts = await self._in_time(lambda: many.send_many(self._entity, batches))
        return [verdicts] * len(group) if isinstance(verdicts, BrokerError) else verdicts

    async def _in_time(  # noqa: ASYNC910 a send waits, or raises after that
        self, send: Callable[[], Awaitable[T]]
    ) -> T | BrokerError:
        try:
            with trio.move_on_after(self._context.options.send_timeout):
                return await send()
        except BrokerError as error:
            return error  # noqa: ASYNC910
        return OutcomeUnknown(f"no answer from {self._entity} in time")

    def _answer(self, group: Sequence[_Transfer], errors: Sequence[BrokerError | None]) -> None:
        """Tell the client of each what became of it; at last, where that must be, the link ends."""
        ending: BrokerError | None = None
        for each, error in zip(group, errors, strict=True):
            if error is None:
                self._settle(each.event, ACCEPTED)
            elif error.outcome is Outcome.UNKNOWN:
                self._done(each.event)
                ending = error
            else:
                self._settle(each.event, Rejected(error=amqp_error(error)))
                if each.event.settled or isinstance(error, _GONE):
                    ending = ending or error
        if ending is not None:
            self._fail(amqp_error(ending))

    def _reject(self, event: TransferReceived, error: AmqpError) -> None:
        self._settle(event, Rejected(error=error))
        if event.settled:
            self._fail(error)

    def _settle(self, event: TransferReceived, state: Accepted | Rejected) -> None:
        self._context.engine.settle(event.delivery, state)
        self._done(event)

    def _fail(self, error: AmqpError) -> None:
        """Nothing of this link is sent any more: its client has to look."""
        self._failed = True
        self._drop()
        self._context.detach(self._attached.link, error)

    def _drop(self) -> None:
        while self._waiting:
            self._context.pending.drop(len(self._waiting.popleft().payload))

    def _done(self, event: TransferReceived) -> None:
        self._in_work -= 1
        self._context.pending.drop(len(event.payload))

    def _top_up(self) -> None:
        """Give the client credit for what isn't under way, when that is half of the window."""
        engine, window = self._context.engine, self._context.options.window
        unfinished = len(self._waiting) + self._in_work
        free = window - unfinished - engine.credit(self._attached.link)
        if free * 2 >= window:
            engine.grant(self._attached.link, free)
