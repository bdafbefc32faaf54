"""
Links on which clients send: each message is answered when the broker has answered.

    outcome of the send      the client gets
    accepted                 accepted
    not sent                 rejected, with the condition; the link stays, unless the entity is gone
    unknown                  no answer: the link is detached with com.microsoft:timeout

The order of a link is kept. A namespace that has several batches in flight (`SendsMany`) gets two
steps at once, so that messages are read and answered while others are being stored. Any other
namespace gets one step at a time, with every message that has arrived meanwhile
(`capabilities.send_each`).

A message that the client has already settled gets no answer; if it fails, its link ends. A large
batch may be sent in parts (`batches.py`).

A message of a transaction is accepted provisionally, and sent when the transaction is committed
(`transactions.py`).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import attrs
import trio

from gateway.capabilities import SendsMany, Topology, send_each
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    Outcome,
)
from gateway.domain.message import Kind, Message, Typed
from gateway.domain.values import value
from gateway.frontends.amqp.batches import LARGEST, REFUSED, LargeBatch, error_of, is_large
from gateway.frontends.amqp.context import Context, Need, amqp_error, need_to_send
from gateway.net.turns import RequestTurn
from gateway.net.visits import acquire_turn, largest_step
from gateway.offering import offered
from gateway.wire.amqp.events import (
    ACCEPTED,
    Accepted,
    AmqpError,
    LinkId,
    Rejected,
    SessionId,
    TransactionalState,
    TransferReceived,
)
from gateway.wire.amqp.servicebus.batches import (
    BATCH,
    MAX_SIZE,
    contents_of,
    decode_content,
    decode_payload,
)

_GONE: Final = (EntityNotFound, EntityDisabled)
_NO_SUCH: Final = (*_GONE, InvalidRequest)
_STEPS: Final = 2  # in flight at once, if the broker keeps the order: one is read, one is stored


@value
class _PendingTransfer:
    event: TransferReceived
    messages: tuple[Message, ...]
    batch: LargeBatch | None = None  # of which the messages are a part


@attrs.define(eq=False)
class IncomingLink:
    """A link that sends its client's messages to one entity."""

    _context: Context
    id: LinkId
    session: SessionId
    _entity: EntityPath
    _waiting: deque[TransferReceived] = attrs.field(factory=deque, init=False)
    # The first one that waits, if it is large and was looked at.
    _batch: LargeBatch | None = attrs.field(default=None, init=False)
    _preparing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _opening: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _largest: int = attrs.field(init=False)  # maximum size of a message, in bytes
    is_open: bool = attrs.field(default=False, init=False)  # the attach was accepted
    _most_steps: int = attrs.field(init=False)
    _working: int = attrs.field(default=0, init=False)  # tasks, each with one step
    # a task was started and hasn't taken its step yet
    _beginning: bool = attrs.field(default=False, init=False)
    _in_work: int = attrs.field(default=0, init=False)  # transfers in steps

    def __attrs_post_init__(self) -> None:
        self._largest = self._context.options.max_message_size
        many = offered(self._context.broker, SendsMany)
        self._most_steps = 1 if many is None else _STEPS

    @property
    def need(self) -> Need:
        return need_to_send(self._entity)

    async def open(self) -> None:
        """
        Answer the attach, as soon as the entity's existence and maximum message size are known.
        """
        refusal: BrokerError | None = None
        with self._opening:
            refusal = await self._probe()
        if self._opening.cancelled_caught:
            self._drop()
        elif refusal is not None:
            self._context.refuse(self.id, amqp_error(refusal))
            self._drop()
        else:
            self.is_open = True
            stated = Typed(Kind.ULONG, min(self._largest, LARGEST))
            self._context.engine.accept(
                self.id, properties={MAX_SIZE: stated}, max_message_size=self._largest
            )
            self._top_up()
            self._context.on_opened()
            self._work_on()

    def transfer(self, event: TransferReceived) -> None:
        if self._context.closed and not event.settled:
            # The client gets no answer and sends the message again: if sent here too, it would
            # arrive twice.
            return
        if isinstance(event.state, TransactionalState):
            self._enlist(event, event.state)
            return
        try:
            self._context.pending.begin(len(event.payload))
        except Busy as error:
            self._refuse(event, amqp_error(error))
            return
        self._waiting.append(event)
        self._work_on()

    def stop(self) -> None:
        """
        End the link. Transfers that were received are still sent: the client may have settled them.
        """
        self._opening.cancel()

    async def _probe(self) -> BrokerError | None:
        """
        The error that forbids the link; None if the link is allowed, or if the namespace doesn't
        answer.
        """
        if self._entity.is_dead_letter:
            return InvalidRequest(f"{self._entity}: a dead-letter sub-queue can't be sent to")
        try:
            with trio.move_on_after(self._context.options.probe_timeout):
                await self._context.broker.probe(self._entity)
                await self._measure()
        except _NO_SUCH as error:
            return error
        except BrokerError:
            return None  # each send then gets its own answer
        return None

    async def _measure(self) -> None:
        """Set the maximum message size, if the namespace reports it."""
        broker = self._context.broker
        with suppress(BrokerError):
            told: int | None = None
            try:
                told = (await broker.inspect(self._entity)).max_message_size
            except EntityNotFound:
                if (topology := offered(broker, Topology)) is not None:
                    told = (await topology.inspect_topic(self._entity)).max_message_size
            self._largest = min(self._largest, told or self._largest)

    def _work_on(self) -> None:
        """Start another task, if there is a step for it."""
        may_begin = self._may_begin and not (self._beginning or self._is_held_up)
        if self.is_open and self._waiting and may_begin:
            self._beginning = True
            self._working += 1
            self._context.nursery.start_soon(self._work)

    @property
    def _may_begin(self) -> bool:
        """True if another step keeps the order and is useful, which it isn't beside a full step."""
        if self._working == 0:
            return True
        few = self._in_work < self._context.options.max_group
        return self._working < self._most_steps and few

    async def _work(self) -> None:
        try:
            while self._waiting and not self._is_held_up:
                options = self._context.options
                most, most_bytes = largest_step(options.max_group, options.max_group_bytes)
                turn = await self._acquire_turn(most, most_bytes)
                try:
                    await self._prepare(turn)
                    self._beginning = False
                    group = self._pop_group(most, most_bytes)
                    self._work_on()
                    if group:
                        # `_send` has its place in the order before its first checkpoint
                        await self._send(group)
                finally:
                    if turn is not None:
                        turn.release()
                self._top_up()
        finally:
            self._beginning = False
            self._working -= 1

    async def _acquire_turn(self, most: int, most_bytes: int) -> RequestTurn | None:
        """
        Wait for the turn of this client. The step is taken afterwards, so that the order doesn't
        depend on the order in which two tasks resume.
        """
        next_ones = [*islice(self._waiting, most)]
        size = sum(len(each.payload) for each in next_ones)
        return await acquire_turn(min(size, most_bytes), len(next_ones))

    async def _prepare(self, turn: RequestTurn | None) -> None:
        """Decode what is sent next, if it is a large batch or a part of one."""
        while self._waiting and not (self._is_held_up or self._is_ready(self._waiting[0])):
            first = self._waiting[0]
            async with self._preparing:
                if not self._waiting or self._waiting[0] is not first:
                    continue
                if self._batch is None:
                    self._batch = LargeBatch(first, self._decode)
                if not (self._batch.is_ready or self._batch.is_under_way):
                    await self._batch.prepare(turn)

    @property
    def _is_held_up(self) -> bool:
        """True if a part of the next batch is under way: all else waits for its outcome."""
        return self._batch is not None and self._batch.is_under_way

    def _is_ready(self, first: TransferReceived) -> bool:
        return not is_large(first) or (self._batch is not None and self._batch.is_ready)

    def _pop_group(self, most: int, most_bytes: int) -> list[_PendingTransfer]:
        """
        Return the next transfers to send in one step; reject transfers that can't be decoded. The
        next step begins with a large batch, or a part of one, that isn't decoded.
        """
        group: list[_PendingTransfer] = []
        count = size = 0
        while count < most and self._waiting and self._is_ready(self._waiting[0]):
            event = self._waiting[0]
            if group and size + len(event.payload) > most_bytes:
                break
            taken = self._pop_next(event)
            if taken is not None:
                group.append(taken)
                count += len(taken.messages)
                size += len(event.payload)
        return group

    def _pop_next(self, event: TransferReceived) -> _PendingTransfer | None:
        batch = self._batch
        read = self._read(event) if batch is None else batch.next_part()
        if batch is None or batch.is_taken:
            self._leave_waiting()
        if isinstance(read, AmqpError):
            self._reject(event, read)
            return None
        return _PendingTransfer(event, read, batch)

    def _leave_waiting(self) -> None:
        self._waiting.popleft()
        self._batch = None
        self._in_work += 1

    def _read(
        self, event: TransferReceived, most: int | None = None
    ) -> tuple[Message, ...] | AmqpError:
        """The messages; of a batch, the first `most`."""
        try:
            if event.message_format == BATCH:
                return tuple(map(self._decode, islice(contents_of(event.payload), most)))
            messages = decode_payload(event.payload, event.message_format)
            return tuple(map(self._context.with_id, messages))
        except REFUSED as error:
            return error_of(error)

    def _decode(self, content: bytes) -> Message:
        return self._context.with_id(decode_content(content))

    def _enlist(self, event: TransferReceived, state: TransactionalState) -> None:
        """
        Add the messages to a transaction. They don't count as pending, since their transaction may
        last: they have limits of their own.
        """
        transactions, size = self._context.transactions, len(event.payload)
        # one more than it may have, of which it is told
        read = self._read(event, self._context.options.max_transaction_work + 1)
        try:
            if isinstance(read, AmqpError):
                transactions.fail_if_open(state.txn_id, InvalidRequest(read.description))
                self._refuse(event, read)
                return
            transactions.add_send(state.txn_id, self._entity, read, size)
        except BrokerError as error:
            self._refuse(event, amqp_error(error))
            return
        provisional = attrs.evolve(state, outcome=ACCEPTED)
        self._context.engine.settle(event.delivery, provisional)
        self._top_up()

    async def _send(self, group: Sequence[_PendingTransfer]) -> None:
        batches = [each.messages for each in group]
        try:
            with answered_within(self._context.options.send_timeout, f"from {self._entity}"):
                verdicts = await send_each(self._context.broker, self._entity, batches)
        except BrokerError as error:
            verdicts = [error] * len(group)
        self._answer(group, verdicts)

    def _answer(
        self, group: Sequence[_PendingTransfer], errors: Sequence[BrokerError | None]
    ) -> None:
        """
        Tell the client the outcome of each transfer; then end the link if one of the errors demands
        it.
        """
        ending: BrokerError | None = None
        for each, outcome in zip(group, errors, strict=True):
            error = outcome
            if each.batch is not None:
                if not self._record_part(each.batch, outcome):
                    continue
                error = each.batch.verdict()
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

    def _record_part(self, batch: LargeBatch, error: BrokerError | None) -> bool:
        """Note the outcome of a part; return True if the batch can be answered."""
        batch.record(error)
        if error is not None and self._batch is batch:
            self._leave_waiting()
        return batch.is_finished

    def _refuse(self, event: TransferReceived, error: AmqpError) -> None:
        """Reject a transfer that doesn't count as in flight."""
        self._context.engine.settle(event.delivery, Rejected(error=error))
        if event.settled:
            self._fail(error)
        else:
            self._top_up()

    def _reject(self, event: TransferReceived, error: AmqpError) -> None:
        self._settle(event, Rejected(error=error))
        if event.settled:
            self._fail(error)

    def _settle(self, event: TransferReceived, state: Accepted | Rejected) -> None:
        self._context.engine.settle(event.delivery, state)
        self._done(event)

    def _fail(self, error: AmqpError) -> None:
        """End the link and send nothing more of it: the client has to attach again."""
        self._drop()
        self._context.detach(self.id, error)

    def _drop(self) -> None:
        batch = self._batch
        if batch is not None and batch.has_begun:
            batch.give_up()
            self._leave_waiting()
            if batch.is_finished:
                self._done(batch.event)
        self._batch = None
        while self._waiting:
            self._context.pending.finish(len(self._waiting.popleft().payload))

    def _done(self, event: TransferReceived) -> None:
        self._in_work -= 1
        self._context.pending.finish(len(event.payload))

    def _top_up(self) -> None:
        """
        Give the client credit for all transfers that aren't in flight, once they are half of the
        window.
        """
        engine, window = self._context.engine, self._context.options.window
        unfinished = len(self._waiting) + self._in_work
        free = window - unfinished - engine.credit(self.id)
        if free * 2 >= window:
            engine.grant(self.id, free)
