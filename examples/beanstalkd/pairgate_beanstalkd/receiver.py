"""Reserves the jobs of a tube, and settles them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.brokers.meter import Meter
from gateway.domain.billing import Operation
from gateway.domain.errors import (
    BrokerError,
    LockLost,
    MessageError,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
    derive_message,
)
from gateway.domain.texts import check_reason
from gateway.ports import NewId, WallClock
from gateway.wire.amqp.message import decode_message, encode_message
from pairgate_beanstalkd.connection import Connection, check, figures, put

_FIRST_PAUSE: Final = 0.005  # seconds between two looks; each further one is twice as long


@attrs.frozen
class _Held:
    """A reserved job."""

    number: int
    message: Message


@attrs.define(eq=False, kw_only=True)
class BeanstalkdReceiver:
    """`ports.Receiver`. Its connection holds what it received: with the connection locks end."""

    connection: Connection
    mode: ReceiveMode
    dead_letters: bytes | None  # the tube; None: this is it
    lock: int  # seconds
    poll_max: float
    clock: WallClock
    new_token: NewId
    meter: Meter
    _held: dict[str, _Held] = attrs.field(factory=dict, init=False)  # by lock token
    _doubtful: set[str] = attrs.field(factory=set, init=False)  # settled perhaps: no answer came

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. The server's own wait would hold the connection, and so all
        settlements: an empty tube is looked at again and again instead.
        """
        pause = _FIRST_PAUSE
        while True:
            found = list[Delivery]()
            try:
                await self._reserve_up_to(limit, found)
                await trio.lowlevel.checkpoint()
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self._release(found)
                raise
            if found:
                return found
            await trio.sleep(pause)
            pause = min(2 * pause, self.poll_max)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`."""
        if isinstance(settlement, DeadLetter):
            check_reason(settlement)
        elif not isinstance(settlement, Complete | Abandon):
            raise NotSupported("beanstalkd can't defer messages")
        elif isinstance(settlement, Abandon) and settlement.properties:
            raise NotSupported("beanstalkd can't change the properties of a message")
        token, held = self._find(delivery)
        if isinstance(settlement, Abandon):
            command, expected = b"release %d 0 0\r\n" % held.number, b"RELEASED"
        else:
            command, expected = b"delete %d\r\n" % held.number, b"DELETED"
        if isinstance(settlement, DeadLetter):
            await self._copy_to_dead_letters(held, settlement)
        self._doubtful.add(token)
        try:
            [answer] = await self.connection.ask(command)
        except Unavailable:
            self._doubtful.discard(token)
            raise
        self._doubtful.discard(token)
        del self._held[token]
        if answer.word == b"NOT_FOUND":
            raise LockLost("the lock has expired")
        check(answer, expected)
        self.meter.settled(1)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        token, held = self._find(delivery)
        now = self.clock()
        [answer] = await self.connection.ask(b"touch %d\r\n" % held.number)
        if answer.word == b"NOT_FOUND":
            del self._held[token]
            raise LockLost("the lock has expired")
        check(answer, b"TOUCHED")
        return now + timedelta(seconds=self.lock)

    async def _reserve_up_to(self, limit: int, found: list[Delivery]) -> None:
        try:
            while len(found) < limit and (delivery := await self._reserve()) is not None:
                found.append(delivery)
        except BrokerError:
            if not found:
                raise

    async def _reserve(self) -> Delivery | None:
        """The next message that hasn't expired; None: there is none now."""
        while True:
            now = self.clock()
            [answer] = await self.connection.ask(b"reserve-with-timeout 0\r\n")
            if answer.word in (b"TIMED_OUT", b"DEADLINE_SOON"):
                return None
            number = check(answer, b"RESERVED").number
            [stats] = await self.connection.ask(b"stats-job %d\r\n" % number)
            told = figures(check(stats, b"OK"))
            try:
                message = decode_message(answer.data)
            except MessageError:
                message = Message(body=answer.data)  # a job of another program
            life, age = message.time_to_live, timedelta(seconds=told["age"])
            has_expired = life is not None and age >= life
            if has_expired or self.mode is ReceiveMode.RECEIVE_AND_DELETE:
                await self.connection.ask(b"delete %d\r\n" % number)
            if has_expired:
                continue
            self.meter.carried(Operation.RECEIVE, 1, len(answer.data))
            return self._delivery(_Held(number, message), told["reserves"], now, now - age)

    def _delivery(self, held: _Held, count: int, now: datetime, enqueued: datetime) -> Delivery:
        token = None
        if self.mode is ReceiveMode.PEEK_LOCK:
            token = self.new_token()
            self._held[token] = held
        return Delivery(
            message=held.message,
            sequence_number=held.number,
            lock_token=token,
            delivery_count=count,
            enqueued=enqueued,
            locked_until=None if token is None else now + timedelta(seconds=self.lock),
            received=now,
        )

    def _find(self, delivery: Delivery) -> tuple[str, _Held]:
        token = delivery.lock_token or ""
        if token in self._doubtful:
            raise OutcomeUnknown("an earlier settlement had no answer")
        if token not in self._held:
            raise LockLost("this receiver doesn't hold the message")
        if self.connection.is_over:
            raise LockLost("the connection has ended, and with it the lock")
        return token, self._held[token]

    async def _copy_to_dead_letters(self, held: _Held, why: DeadLetter) -> None:
        """Copy first: a crash before the job is deleted leaves two, never none."""
        if self.dead_letters is None:
            raise NotSupported("a dead letter can't be dead-lettered again")
        told = {DEAD_LETTER_REASON: why.reason, DEAD_LETTER_DESCRIPTION: why.description}
        message = derive_message(
            held.message,
            properties={**held.message.properties, **why.properties, **told},
            time_to_live=None,
        )
        _, answer = await self.connection.ask(
            b"use %b\r\n" % self.dead_letters,
            put(encode_message(message), delay=0, time_to_run=self.lock),
        )
        check(answer, b"INSERTED")

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            if each.lock_token is not None:
                await self.settle(each, Abandon(delivered=False))
