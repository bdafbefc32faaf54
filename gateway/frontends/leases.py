"""
Deliveries that wait between two HTTP requests for their settlement.

A receiver is a scope and HTTP has none: the client takes a message with one request and settles it
with another. So one task per queue holds a receiver open, requests borrow it, and each locked
delivery is a lease until it is settled or its lock runs out.

    first request for a queue      a task enters the receiver's scope
    requests                       borrow the receiver, several at once
    nobody for `idle_timeout`,     the task leaves the scope
    and no lease left
    the receiver fails             retired: its leases may still be settled, requests get another
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio
from attrs import validators

from gateway.capabilities import ReceivesDeferred, SettlesMany
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    LockLost,
    MessageNotFound,
    NotSupported,
    Unavailable,
)
from gateway.domain.lock_ends import OVER, LockEnds
from gateway.domain.message import Abandon, Delivery, Settlement
from gateway.ports import Broker, Receiver, WallClock


@attrs.frozen(kw_only=True)
class LeaseOptions:
    max_leases: int = attrs.field(default=100_000, validator=validators.ge(1))
    max_receivers: int = attrs.field(default=1_000, validator=validators.ge(1))
    idle_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    open_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))
    close_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # For a namespace that doesn't tell how long its locks hold: after that they are given back.
    lock_duration: float = attrs.field(default=60.0, validator=validators.gt(0.0))


@attrs.define(eq=False)
class _Tap:
    """A receiver held open for one queue, who uses it, and what was taken from it."""

    entity: EntityPath
    last_used: float
    users: int = 0
    leases: "dict[str, _Lease]" = attrs.field(factory=dict)
    receiver: Receiver | None = None
    error: BrokerError | None = None
    retired: bool = False
    ready: trio.Event = attrs.field(factory=trio.Event)  # receiver or error is there
    needless: trio.Event = attrs.field(factory=trio.Event)  # retired, and nobody uses it any more

    async def opened(self) -> Receiver:
        if not self.ready.is_set():
            await self.ready.wait()
        if self.receiver is None:
            raise self.error or Unavailable(f"no receiver of {self.entity}")
        return self.receiver  # noqa: ASYNC910 nearly always it's open; using it waits

    def closes_at(self, idle_timeout: float) -> float:
        """When to close it, as far as one can tell now; later, if it is used in the meantime."""
        if self.users:
            return trio.current_time() + idle_timeout
        ends = [lease.lock.latest for lease in self.leases.values()]
        return max([self.last_used if self.retired else self.last_used + idle_timeout, *ends])

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.last_used = trio.current_time()
            self.note_whether_needless()

    def note_whether_needless(self) -> None:
        if self.retired and not self.users and not self.leases:
            self.needless.set()


@attrs.define(eq=False)
class _Lease:
    tap: _Tap
    delivery: Delivery
    lock: LockEnds


@attrs.define(eq=False)
class Leases:
    """
    Receives, settles and renews for clients that have no connection of their own.

    It is a `gateway.ports.Service`: `run` owns the receivers. What isn't settled when `run` ends
    goes back to the namespace.
    """

    _broker: Broker
    _wall_clock: WallClock
    _options: LeaseOptions = attrs.field(factory=LeaseOptions)

    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _taps: dict[str, _Tap] = attrs.field(factory=dict, init=False)
    _open_taps: int = attrs.field(default=0, init=False)
    _leases: dict[str, _Lease] = attrs.field(factory=dict, init=False)  # by lock token
    _awaited: int = attrs.field(default=0, init=False)  # deliveries that requests wait for

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the receivers until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def open(self, entity: EntityPath) -> Receiver:
        """
        Return if that queue can be received from, as far as one can know without doing it. Of the
        receiver, only what it is able to do is the caller's matter.

        Raises:
            BrokerError: what the namespace says.
        """
        tap = self._tap(entity)
        with tap.in_use():
            return await tap.opened()

    async def receive(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """
        Wait for at least one delivery; return at most `limit`, each locked and leased.

        Cancelling loses nothing.

        Raises:
            Busy: as many deliveries wait for their settlement as may.
            BrokerError: what the namespace says.
        """
        return await self._take(entity, limit, lambda receiver: receiver.receive(limit))

    async def receive_deferred(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`, each locked and leased.

        Raises:
            Busy: as many deliveries wait for their settlement as may.
            NotSupported: nothing can be deferred in this namespace.
            BrokerError: what the namespace says.
        """

        async def take(receiver: Receiver) -> Sequence[Delivery]:  # noqa: ASYNC910 or it raises
            if not isinstance(receiver, ReceivesDeferred):
                raise NotSupported("this namespace can't put messages aside")
            return await receiver.receive_deferred(sequence_numbers)

        return await self._take(entity, len(sequence_numbers), take)

    async def _take(
        self,
        entity: EntityPath,
        limit: int,
        take: Callable[[Receiver], Awaitable[Sequence[Delivery]]],
    ) -> Sequence[Delivery]:
        self._check_room(limit)
        tap = self._tap(entity)
        self._awaited += limit
        try:
            with tap.in_use():
                receiver = await tap.opened()
                try:
                    deliveries = await take(receiver)
                except (MessageNotFound, NotSupported):
                    raise  # which says nothing against the receiver
                except BrokerError:
                    self._retire(tap)
                    raise
                self._begin(tap, deliveries)
        finally:
            self._awaited -= limit
        return deliveries

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """
        Return once the namespace has done it. If it couldn't, the lease goes on.

        Raises:
            LockLost: there is no such lease, or not any more.
            BrokerError: what the namespace says.
        """
        lease = self._lease(entity, lock_token)
        with lease.tap.in_use():
            receiver = await lease.tap.opened()
            try:
                await receiver.settle(lease.delivery, settlement)
            except LockLost:
                self._end(lock_token, lease)
                raise
            self._end(lock_token, lease)

    async def settle_many(
        self, entity: EntityPath, settlements: Sequence[tuple[str, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `settle` for each lock token; return the verdict on each, None where it is done.

        `NotSupported` is that of a namespace which settles one delivery at a time.
        """
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        of_tap: dict[_Tap, list[tuple[int, _Lease]]] = {}
        for index, (lock_token, _) in enumerate(settlements):
            try:
                lease = self._lease(entity, lock_token)
            except LockLost as error:
                verdicts[index] = error
            else:
                of_tap.setdefault(lease.tap, []).append((index, lease))
        for tap, leases in of_tap.items():
            asked = [(lease.delivery, settlements[index][1]) for index, lease in leases]
            found = await self._settle_on(tap, asked)
            for (index, lease), verdict in zip(leases, found, strict=True):
                verdicts[index] = verdict
                if verdict is None or isinstance(verdict, LockLost):
                    self._end(settlements[index][0], lease)
        return verdicts  # noqa: ASYNC910 without a lease there is nothing to wait for

    async def _settle_on(  # noqa: ASYNC910 a settlement waits, or raises after that
        self, tap: _Tap, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        with tap.in_use():
            try:
                receiver = await tap.opened()
                if not isinstance(receiver, SettlesMany):
                    raise NotSupported("this namespace settles one message at a time")
                return await receiver.settle_many(settlements)
            except BrokerError as error:
                return [error] * len(settlements)  # noqa: ASYNC910 the same

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """
        Extend the lock, and the lease with it; return until when, in a delivery without a message.

        Raises:
            LockLost: there is no such lease, or not any more.
            BrokerError: what the namespace says.
        """
        lease = self._lease(entity, lock_token)
        with lease.tap.in_use():
            receiver = await lease.tap.opened()
            try:
                locked_until = await receiver.renew(lease.delivery)
            except LockLost:
                self._end(lock_token, lease)
                raise
            lease.delivery = attrs.evolve(lease.delivery, locked_until=locked_until)
            lease.lock = self._lock_of(lease.delivery)
        return lease.delivery

    def lock_of(self, lock_token: str) -> LockEnds:
        """When that lease ends, if nobody renews it; `OVER` if there is none."""
        lease = self._leases.get(lock_token.lower())
        return OVER if lease is None else lease.lock

    def _check_room(self, limit: int) -> None:
        if self._full(limit):
            # Which have run out is looked up when it matters; until then they do no harm.
            now = trio.current_time()
            for token, lease in list(self._leases.items()):
                if lease.lock.latest <= now and lease.delivery.locked_until is not None:
                    self._end(token, lease)
        if self._full(limit):
            raise Busy(f"{self._options.max_leases} deliveries wait for their settlement")

    def _full(self, limit: int) -> bool:
        return len(self._leases) + self._awaited + limit > self._options.max_leases

    def _tap(self, entity: EntityPath) -> _Tap:
        return self._taps.get(entity.key) or self._open(entity)

    def _open(self, entity: EntityPath) -> _Tap:
        if self._nursery is None:
            raise Unavailable("the gateway isn't receiving now")
        if self._open_taps >= self._options.max_receivers:
            raise Busy(f"{self._options.max_receivers} queues are being received from")
        tap = self._taps[entity.key] = _Tap(entity, trio.current_time())
        self._open_taps += 1
        self._nursery.start_soon(self._hold, tap)
        return tap

    async def _hold(self, tap: _Tap) -> None:
        await trio.lowlevel.checkpoint()
        options = self._options
        try:
            with trio.move_on_after(options.open_timeout) as scope:
                async with self._broker.open_receiver(tap.entity) as receiver:
                    scope.deadline = math.inf
                    tap.receiver = receiver
                    tap.ready.set()
                    await self._until_needless(tap, receiver)
                    self._retire(tap)
                    scope.deadline = trio.current_time() + options.close_timeout
        except BrokerError as error:
            tap.error = error
        finally:
            self._retire(tap)
            self._open_taps -= 1
            for token, lease in list(tap.leases.items()):
                self._end(token, lease)
            tap.ready.set()

    async def _until_needless(self, tap: _Tap, receiver: Receiver) -> None:
        await trio.lowlevel.checkpoint()
        idle_timeout = self._options.idle_timeout
        while (closes_at := tap.closes_at(idle_timeout)) > trio.current_time():
            # No longer than the idle time-out, so that what has no lock of its own goes back soon.
            with trio.move_on_at(min(closes_at, trio.current_time() + idle_timeout)):
                await tap.needless.wait()
                return
            for delivery in self._drop_ended(tap):
                if delivery.locked_until is None:
                    await self._give_back(tap, receiver, delivery)

    def _drop_ended(self, tap: _Tap) -> list[Delivery]:
        now = trio.current_time()
        ended = [(token, lease) for token, lease in tap.leases.items() if lease.lock.latest <= now]
        for token, lease in ended:
            self._end(token, lease)
        return [lease.delivery for _, lease in ended]

    async def _give_back(self, tap: _Tap, receiver: Receiver, delivery: Delivery) -> None:
        await trio.lowlevel.checkpoint()
        try:
            with trio.move_on_after(self._options.close_timeout):
                await receiver.settle(delivery, Abandon())
        except BrokerError:
            self._retire(tap)  # leaving its scope gives it back

    def _retire(self, tap: _Tap) -> None:
        """Take no more from it. What was taken may still be settled."""
        tap.retired = True
        if self._taps.get(tap.entity.key) is tap:
            del self._taps[tap.entity.key]
        tap.note_whether_needless()

    def _begin(self, tap: _Tap, deliveries: Sequence[Delivery]) -> None:
        """Lease them, without their messages: there may be very many leases."""
        for delivery in deliveries:
            assert delivery.lock_token is not None, "a locked delivery has a token"
            token, lock = delivery.lock_token.lower(), self._lock_of(delivery)
            self._leases[token] = tap.leases[token] = _Lease(tap, delivery.handle, lock)

    def _end(self, lock_token: str, lease: _Lease) -> None:
        """End a lease, unless that was done while somebody waited."""
        token = lock_token.lower()
        if self._leases.get(token) is lease:
            del self._leases[token], lease.tap.leases[token]

    def _lease(self, entity: EntityPath, lock_token: str) -> _Lease:
        lease, now = self._leases.get(lock_token.lower()), trio.current_time()
        if lease is None or lease.tap.entity != entity or lease.lock.latest <= now:
            raise LockLost(f"the lock {lock_token} of {entity} isn't known, or it ran out")
        return lease

    def _lock_of(self, delivery: Delivery) -> LockEnds:
        """Of a delivery that was taken or renewed just now."""
        now = trio.current_time()
        if delivery.locked_until is None:
            end = now + self._options.lock_duration
            return LockEnds(end, end)
        return LockEnds.of(delivery.locked_until, self._wall_clock(), now)
