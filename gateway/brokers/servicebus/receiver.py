"""
Receives over Service Bus REST, by one long poll after the other, and releases its locks at the end.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.brokers.looks import Looks
from gateway.brokers.servicebus.peer import RestPeer
from gateway.capabilities import LONGEST_TOKEN
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.clocks.times import moved
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, NotSupported
from gateway.domain.held_deliveries import HeldDeliveries
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.ports import WallClock
from gateway.wire.servicebus.operations import (
    MAX_LIMIT,
    Delivered,
    Operation,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SettleMessage,
)

_MAX_HELD: Final = 10_000  # locks that are remembered, to be released at the end
_GIVERS: Final = 16  # locks that are released concurrently
SHORT_POLLS: Final = 64  # at a time
_SHORT_POLL: Final = 1.0  # seconds; after an earlier "nothing", the next poll is delayed
_WAY_BACK: Final = 0.5  # seconds that an answer may take
_NO_MESSAGE: Final = Message()
_LOCK: Final = timedelta(seconds=30)  # if the namespace doesn't report the end of a lock
_TOKEN: Final = b"S"  # begins a token: sequence number, milliseconds of the lock, lock token
_NUMBERS: Final = struct.Struct(">qI")
_MILLISECOND: Final = timedelta(milliseconds=1)
_MOST_MILLISECONDS: Final = 2**32 - 1  # of the token's four bytes: 49.7 days


@attrs.define(eq=False)
class PollLimit:
    """
    Limits how many receives wait at the namespace at a time, `most`: each occupies a connection, of
    which a namespace gives one client only some. Further receives return at once, and share
    `SHORT_POLLS` connections.
    """

    most: int
    _waiting: int = attrs.field(default=0, init=False)

    @property
    def connections(self) -> int:
        """The connections that receives take together."""
        return self.most + SHORT_POLLS

    @contextmanager
    def turn(self, seconds: float) -> Iterator[float]:
        """The block is one receive; the value is how long it may wait: `seconds`, or 0."""
        if self._waiting >= self.most:
            yield 0.0
            return
        self._waiting += 1
        try:
            yield seconds
        finally:
            self._waiting -= 1


@attrs.define(eq=False, kw_only=True)
class RestReceiver:
    """
    Receives messages of one queue, with `SettlesByToken` and `ReceivesAvailable`. Abandons the
    messages that are still locked at the end.
    """

    _peer: RestPeer
    _polls: RestPeer  # the same namespace over other connections
    _entity: EntityPath
    _mode: ReceiveMode
    _poll: float
    _long_polls: PollLimit
    _most: int
    _clock: WallClock
    # Without their messages, each with the duration of its lock on arrival.
    _held: HeldDeliveries[tuple[Delivery, timedelta]] = attrs.field(
        factory=lambda: HeldDeliveries(_MAX_HELD)
    )
    _adopted: dict[str, timedelta] = attrs.field(factory=dict)  # the locks' durations, by token
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts)
    looks: Looks = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.looks = Looks(clock=self._clock, release=self._release)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. A namespace that isn't a Pairgate returns one message at a time.
        """
        while True:
            began = trio.current_time()
            if deliveries := await self.poll(limit):
                return deliveries
            if _answerable() < _SHORT_POLL:
                await trio.sleep_until(trio.current_effective_deadline())
            elif trio.current_time() - began < _SHORT_POLL:
                await trio.sleep(_SHORT_POLL)

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """
        As `Polls.poll`. Waits at the namespace, unless as many receives as `PollLimit` allows wait
        there. The queue's lock duration applies; `lock` is ignored.

        The namespace is to answer before the caller's deadline. The messages of a later answer are
        for the next receive.
        """
        return await self._poll_once(limit, min(self._poll, _answerable()))

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`: the namespace doesn't wait."""
        return await self._poll_once(limit, 0.0)

    async def _poll_once(self, limit: int, waits: float) -> Sequence[Delivery]:
        most = min(limit, self._most, MAX_LIMIT)
        return await self.looks.receive(partial(self._ask, most, waits), most, waits=waits)

    async def _ask(self, limit: int, waits: float) -> Sequence[Delivery]:
        is_pairgate = await self._peer.is_pairgate(self._entity)
        with self._long_polls.turn(waits) as timeout:
            operation = ReceiveMessages(
                entity=self._entity,
                mode=self._mode,
                timeout=timeout if is_pairgate else math.floor(timeout),
                limit=limit if is_pairgate else None,
            )
            answer = await self._polls.run(operation)
        if not isinstance(answer, Delivered):
            return ()
        self._remember(answer.deliveries)
        return answer.deliveries

    @property
    def takes_back_uncounted(self) -> bool:
        """As `TakesBack.takes_back_uncounted`: true for a Pairgate."""
        return self._polls.is_known_pairgate

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`.

        Raises:
            NotSupported: a dead-lettering on a namespace that isn't a Pairgate; or new properties,
                which REST can't carry.
        """
        token = _token_of(delivery)
        if not isinstance(settlement, Complete) and settlement.properties:
            raise NotSupported(
                "properties: Service Bus REST can't change a message when it settles it"
            )
        if isinstance(settlement, DeadLetter) and not await self._peer.is_pairgate(self._entity):
            raise NotSupported("Service Bus REST can't dead-letter a message")
        try:
            with self._doubts.settling(delivery.lock_token):
                await self._peer.run(self._settlement(delivery, token, settlement))
        except LockLost:
            self._held.pop(token)
            raise
        self._held.pop(token)

    async def renew(self, delivery: Delivery) -> datetime:
        """
        As `Receiver.renew`. If the namespace doesn't report the new end, the former lock duration
        is assumed.
        """
        token = _token_of(delivery)
        lock = RenewLock(
            entity=self._entity, message=str(delivery.sequence_number), lock_token=token
        )
        asked = self._clock()
        with self._doubts.using(token):
            answer = await self._peer.run(lock)
        if isinstance(answer, Renewed) and answer.locked_until is not None:
            return answer.locked_until
        return moved(asked, self._lock_of(token)) or asked + _LOCK

    @property
    def renews_in_place(self) -> bool:
        """As `SettlesByToken.renews_in_place`."""
        return True

    def hand_out(self, delivery: Delivery) -> bytes | None:
        """As `SettlesByToken.hand_out`."""
        lock_token = _token_of(delivery)
        milliseconds = min(max(self._lock_of(lock_token) // _MILLISECOND, 0), _MOST_MILLISECONDS)
        try:
            numbers = _NUMBERS.pack(delivery.sequence_number, milliseconds)
            token = b"%b%b%b" % (_TOKEN, numbers, lock_token.encode())
        except (struct.error, UnicodeEncodeError):
            return None
        if len(token) > LONGEST_TOKEN:
            return None
        self._held.pop(lock_token)
        return token

    @contextmanager
    def adopt(self, token: bytes) -> Iterator[Delivery]:
        """As `SettlesByToken.adopt`."""
        delivery, duration = read_token(token)
        lock_token = _token_of(delivery)
        self._adopted[lock_token] = duration
        try:
            yield delivery
        finally:
            self._adopted.pop(lock_token, None)  # two requests may have adopted the same one

    async def give_back(self) -> None:
        """Abandon all locked messages, as far as the namespace can be reached. Runs until done."""
        unseen = {each.lock_token for each in self.looks.close()}
        held = [delivery for delivery, _ in self._held]
        async with trio.open_nursery() as nursery:
            seen = [each for each in held if each.lock_token not in unseen]
            nursery.start_soon(self._give_all, seen, Abandon())
            nursery.start_soon(self._release, [each for each in held if each.lock_token in unseen])

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        """Abandon deliveries that no receive has got."""
        await self._give_all(deliveries, Abandon(delivered=False))

    async def _give_all(self, deliveries: Sequence[Delivery], settlement: Abandon) -> None:
        limiter = trio.CapacityLimiter(_GIVERS)
        async with trio.open_nursery() as nursery:
            for delivery in deliveries:
                token = _token_of(delivery)
                self._held.pop(token)
                abandon = self._settlement(delivery, token, settlement)
                nursery.start_soon(self._give, abandon, limiter)

    async def _give(self, abandon: Operation, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            with suppress(BrokerError):  # the message's lock expires instead
                await self._peer.run(abandon)

    def _settlement(self, delivery: Delivery, token: str, settlement: Settlement) -> SettleMessage:
        return SettleMessage(
            entity=self._entity,
            message=str(delivery.sequence_number),
            lock_token=token,
            settlement=settlement,
        )

    def _lock_of(self, token: str) -> timedelta:
        """The duration of the lock on arrival."""
        held = self._held.get(token)
        return self._adopted.get(token, _LOCK) if held is None else held[1]

    def _remember(self, deliveries: Sequence[Delivery]) -> None:
        now = self._clock()
        for delivery in deliveries:
            if delivery.lock_token is not None:
                until = delivery.locked_until
                handle = attrs.evolve(delivery, message=_NO_MESSAGE)
                lock = until - now if until else _LOCK
                self._held.add(delivery.lock_token, (handle, lock))


def _answerable() -> float:
    """Seconds for which the namespace may wait so that its answer comes before the deadline."""
    left = trio.current_effective_deadline() - trio.current_time()
    return max(left - _WAY_BACK, 0.0)


def read_token(token: bytes) -> tuple[Delivery, timedelta]:
    """
    The delivery of a token that was handed out, without its message, and the duration of its lock.

    Raises:
        LockLost: it isn't a token of this kind of namespace.
    """
    start = len(_TOKEN) + _NUMBERS.size
    if not token.startswith(_TOKEN) or len(token) <= start:
        raise LockLost("the token isn't one of Service Bus REST")
    sequence, milliseconds = _NUMBERS.unpack(token[len(_TOKEN) : start])
    lock_token = token[start:].decode(errors="replace")
    delivery = Delivery(message=_NO_MESSAGE, sequence_number=sequence, lock_token=lock_token)
    return delivery, milliseconds * _MILLISECOND


def _token_of(delivery: Delivery) -> str:
    if delivery.lock_token is None:
        raise LockLost("this delivery was never locked")
    return delivery.lock_token
