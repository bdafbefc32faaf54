"""
Locked deliveries that wait for their settlement between two HTTP requests.

A receiver is a scope, and HTTP has no scopes: a client receives a message with one request and
settles it with another. So one task per queue holds a receiver open, requests share it, and each
locked delivery is a lease until it is settled or its lock expires.

    first request for a queue      a task enters the receiver's scope
    requests                       share the receiver, several at once
    no request for `idle_timeout`, the task leaves the scope
    and no lease left
    the receiver fails             it is retired: its leases may still be settled; requests get
                                   another receiver

In a cluster, a client may get the token of the namespace itself instead, where any process can
settle with that (`SettlesByToken`). The cluster seals the token, and no lock is held here.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio
from attrs import validators

from gateway.capabilities import (
    ChangesBody,
    Enlists,
    HidesMessages,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
    SettlesByToken,
    SettlesMany,
    TransactedSettlement,
)
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.clocks.lock_ends import OVER, LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    LockLost,
    MessageNotFound,
    NotSupported,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Abandon, Delivery, Settlement
from gateway.fair_budget import FairBudget
from gateway.frontends.elsewhere import Elsewhere
from gateway.frontends.shared_receiver import Adopted, Lease, SharedReceiver
from gateway.net.visits import current_visit
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

_UUID: Final = 36  # characters: as written by RFC 9562
_SWEEP: Final = 1.0  # seconds between two looks at all leases, which take milliseconds


@attrs.frozen(kw_only=True)
class LeaseOptions:
    max_leases: int = attrs.field(default=100_000, validator=validators.ge(1))
    max_receivers: int = attrs.field(default=2_000, validator=validators.ge(1))
    idle_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    open_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))
    close_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # If the namespace reports no duration of its locks, deliveries are abandoned after this time.
    lock_duration: float = attrs.field(default=60.0, validator=validators.gt(0.0))


def _never(_: Receiver) -> None:
    return None


def _in_place(receiver: Receiver) -> SettlesByToken | None:
    by_token = offered(receiver, SettlesByToken)
    return by_token if by_token is not None and by_token.renews_in_place else None


def _check(budget: FairBudget, client: str, count: int, things: str, remedy: str) -> None:
    if not budget.leaves_room(client, count):
        own = budget.owned_by(client)
        raise Busy(f"of at most {budget.limit} {things} this client has {own}: {remedy}")


@attrs.define(eq=False)
class Leases:
    """
    Receives, settles and renews for clients that have no connection of their own.

    A `gateway.ports.Service`: `run` owns the receivers. Deliveries that aren't settled when `run`
    ends go back to the namespace.

    With `elsewhere`, deliveries get lock tokens of the cluster instead of the namespace's, and
    deliveries that another gateway or process holds are settled and renewed there. A sealed token
    is settled at the namespace.
    """

    _broker: Broker
    _wall_clock: WallClock
    _options: LeaseOptions = attrs.field(factory=LeaseOptions)
    elsewhere: Elsewhere | None = None
    _new_id: Callable[[], UUID] = uuid4  # of leases whose namespace has longer tokens
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _receivers: dict[str, SharedReceiver] = attrs.field(factory=dict, init=False)
    _openings: FairBudget = attrs.field(init=False)  # the receivers that each client has opened
    _leases: dict[str, Lease] = attrs.field(factory=dict, init=False)  # by lock token
    # The leases of each client, and the deliveries that its pending receives may return.
    _room: FairBudget = attrs.field(init=False)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)
    _sweep_at: float = attrs.field(default=-math.inf, init=False)  # by Trio's clock

    def __attrs_post_init__(self) -> None:
        self._room = FairBudget(self._options.max_leases)
        self._openings = FairBudget(self._options.max_receivers)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the receivers open until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def open(self, entity: EntityPath) -> Receiver:
        """
        Return the queue's receiver if it can be opened; the caller may only read its capabilities.

        Raises:
            BrokerError: as `Broker.open_receiver`.
        """
        shared = self._receiver_of(entity)
        with shared:
            return await shared.opened()

    async def receive(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """
        Wait for at least one delivery; return at most `limit`, each locked and leased.

        With `any_token`, the client takes lock tokens of other forms than a UUID, and keeps them
        when it renews. A delivery whose token any gateway can settle with is then not leased.

        A cancellation loses nothing.

        Raises:
            Busy: too many deliveries wait for their settlement.
            BrokerError: as `Receiver.receive`.
        """
        find = _in_place if any_token else _never
        return await self._take(entity, limit, lambda receiver: receiver.receive(limit), find)

    async def look(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """
        As `receive`, but return what is available now, also nothing. Only a namespace that doesn't
        tell that it has no messages is waited for.
        """

        async def take(receiver: Receiver) -> Sequence[Delivery]:
            knows = offered(receiver, ReceivesAvailable)
            if knows is None:
                return await receiver.receive(limit)
            return await knows.receive_available(limit)

        return await self._take(entity, limit, take, _in_place if any_token else _never)

    async def receive_available(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """
        As `ReceivesAvailable.receive_available`, each delivery locked and leased.

        Raises:
            Busy: too many deliveries wait for their settlement.
            NotSupported: the namespace doesn't tell that it has no messages.
            BrokerError: as `Receiver.receive`.
        """

        async def take(receiver: Receiver) -> Sequence[Delivery]:  # noqa: ASYNC910 or it raises
            return await required(receiver, ReceivesAvailable).receive_available(limit)

        return await self._take(entity, limit, take)

    async def hides(self, entity: EntityPath) -> bool:
        """
        Return True if `receive_hidden` is possible: in a cluster, before a namespace that hides
        messages itself and has tokens that any gateway can settle with. Raises as `open`.
        """
        if self.elsewhere is None or not self.elsewhere.seals:
            return False  # noqa: ASYNC910 who asks receives next
        receiver = await self.open(entity)
        kinds = (SettlesByToken, HidesMessages, Polls)
        return all(offered(receiver, each) is not None for each in kinds)

    async def asks_once(self, entity: EntityPath) -> bool:
        """
        Return True if `poll` is one short request: the namespace hides messages, and never waits
        for them. Raises as `open`.
        """
        receiver = await self.open(entity)
        return all(offered(receiver, each) is not None for each in (HidesMessages, Polls))

    async def poll(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `receive`, but the result is empty if a single request has found nothing."""

        async def take(receiver: Receiver) -> Sequence[Delivery]:  # noqa: ASYNC910 or it raises
            return await required(receiver, Polls).poll(limit)

        return await self._take(entity, limit, take)

    async def receive_hidden(
        self, entity: EntityPath, limit: int, duration: timedelta
    ) -> Sequence[Delivery]:
        """
        Make one request for messages, as `Polls.poll`, each locked for that duration. Deliveries
        whose token any gateway can settle with aren't leased: see `holds`.

        Raises:
            Busy: too many deliveries wait for their settlement.
            NotSupported: not if `hides`.
            BrokerError: as `Polls.poll`.
        """

        async def take(receiver: Receiver) -> Sequence[Delivery]:  # noqa: ASYNC910 or it raises
            return await required(receiver, Polls).poll(limit, duration)

        return await self._take(entity, limit, take, lambda each: offered(each, SettlesByToken))

    async def receive_deferred(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`, each locked and leased.

        Raises:
            Busy: too many deliveries wait for their settlement.
            NotSupported: the namespace can't defer messages.
            BrokerError: as `ReceivesDeferred.receive_deferred`.
        """

        async def take(receiver: Receiver) -> Sequence[Delivery]:  # noqa: ASYNC910 or it raises
            return await required(receiver, ReceivesDeferred).receive_deferred(sequence_numbers)

        return await self._take(entity, len(sequence_numbers), take)

    async def _take(
        self,
        entity: EntityPath,
        limit: int,
        take: Callable[[Receiver], Awaitable[Sequence[Delivery]]],
        find: Callable[[Receiver], SettlesByToken | None] = _never,
    ) -> Sequence[Delivery]:
        client = current_visit().client_name
        self._make_room(client, limit)
        shared = self._receiver_of(entity)
        self._room.add(client, limit)
        try:
            with shared:
                receiver = await shared.opened()
                try:
                    deliveries = await take(receiver)
                except (MessageNotFound, NotSupported, QuotaExceeded):
                    raise  # such an error says nothing about the receiver
                except BrokerError:
                    self._retire(shared)
                    raise
                return self._begin(shared, deliveries, find(receiver), client)
        finally:
            self._room.release(client, limit)

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """
        Return once the namespace has settled the delivery. If it couldn't, the lease stays.

        Raises:
            LockLost: there is no such lease, or it has expired.
            OutcomeUnknown: also instead of `LockLost`, if an earlier settlement had no answer.
            BrokerError: as `Receiver.settle`; as `Elsewhere.settle`, if another gateway holds the
                delivery.
        """
        with self._doubts.settling(lock_token):
            if (token := self._unsealed(entity, lock_token)) is not None:
                async with self._receiver_of(entity).adopt(token) as adopted:
                    await adopted.receiver.settle(adopted.delivery, settlement)
                return
            elsewhere = self._elsewhere(lock_token)
            if elsewhere is not None:
                await elsewhere.settle(entity, lock_token, settlement)
            else:
                await self._settle_here(entity, lock_token, settlement)

    async def settle_here(
        self, entity: EntityPath, lock_token: str, settlement: Settlement
    ) -> None:
        """As `settle`, for the leases of this gateway alone."""
        with self._doubts.settling(lock_token):
            await self._settle_here(entity, lock_token, settlement)

    async def _settle_here(
        self, entity: EntityPath, lock_token: str, settlement: Settlement
    ) -> None:
        lease = self._lease(entity, lock_token, trio.current_time())
        with lease.shared:
            receiver = await lease.shared.opened()
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
        As `settle` for each lock token; return one error or None (settled) per lock token.

        `NotSupported` means that the namespace settles one delivery at a time.
        """
        here, away = list[int](), list[int]()
        for index, (token, _) in enumerate(settlements):
            (here if self._elsewhere(token) is None else away).append(index)
        if not away:
            return await self._settle_many_here(entity, settlements)
        verdicts: list[BrokerError | None] = [None] * len(settlements)

        async def settle_here() -> None:
            found = await self._settle_many_here(entity, [settlements[each] for each in here])
            for index, verdict in zip(here, found, strict=True):
                verdicts[index] = verdict

        async def settle(index: int) -> None:
            try:
                await self.settle(entity, *settlements[index])
            except BrokerError as error:
                verdicts[index] = error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle_here)
            for index in away:
                nursery.start_soon(settle, index)
        return verdicts

    async def _settle_many_here(
        self, entity: EntityPath, settlements: Sequence[tuple[str, Settlement]]
    ) -> Sequence[BrokerError | None]:
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        of_shared: dict[SharedReceiver, list[tuple[int, Lease]]] = {}
        now = trio.current_time()
        for index, (lock_token, _) in enumerate(settlements):
            self._doubts.begin(lock_token)
            try:
                lease = self._lease(entity, lock_token, now)
            except LockLost as error:
                verdicts[index] = error
            else:
                of_shared.setdefault(lease.shared, []).append((index, lease))
        for shared, leases in of_shared.items():
            asked = [(lease.delivery, settlements[index][1]) for index, lease in leases]
            found = await self._settle_on(shared, asked)
            for (index, lease), verdict in zip(leases, found, strict=True):
                verdicts[index] = verdict
                if verdict is None or isinstance(verdict, LockLost):
                    self._end(settlements[index][0], lease)
        return [
            self._doubts.resolve(lock_token, verdict)
            for (lock_token, _), verdict in zip(settlements, verdicts, strict=True)
        ]  # noqa: ASYNC910 without a lease there is nothing to wait for

    async def _settle_on(  # noqa: ASYNC910 a settlement waits, or raises after that
        self, shared: SharedReceiver, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        with shared:
            try:
                receiver = await shared.opened()
                return await required(receiver, SettlesMany).settle_many(settlements)
            except BrokerError as error:
                return [error] * len(settlements)  # noqa: ASYNC910 the same

    def enlist(
        self, entity: EntityPath, lock_token: str, settlement: Settlement
    ) -> TransactedSettlement:
        """
        As `Enlists.enlist`. The lease stays; the caller ends it with `settled` once the transaction
        is committed.

        Raises:
            LockLost: there is no such lease, or it has expired.
            BrokerError: as `Enlists.enlist`.
        """
        lease = self._lease(entity, lock_token, trio.current_time())
        receiver = lease.shared.receiver
        if receiver is None:
            raise LockLost(f"{entity}: the receiver of lock {lock_token} was closed")
        return required(receiver, Enlists).enlist(lease.delivery, settlement)

    def settled(self, lock_token: str) -> None:
        """End the lease of a delivery that was settled in a transaction."""
        lease = self._leases.get(lock_token.lower())
        if lease is not None:
            self._end(lock_token, lease)
            lease.shared.check_unused()

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """
        Extend the lock and its lease; return a delivery without a message, with the new end of the
        lock.

        Raises:
            LockLost: there is no such lease, or it has expired.
            OutcomeUnknown: also instead of `LockLost`, if a settlement had no answer.
            BrokerError: as `Receiver.renew`; as `Elsewhere.renew`, if another gateway holds the
                delivery.
        """
        with self._doubts.using(lock_token):
            return await self._renew_anywhere(entity, lock_token)

    async def _renew_anywhere(self, entity: EntityPath, lock_token: str) -> Delivery:
        if (token := self._unsealed(entity, lock_token)) is not None:
            async with self._receiver_of(entity).adopt(token) as adopted:
                until = await adopted.receiver.renew(adopted.delivery)
                return self._renewed(entity, adopted, until, lock_token)
        elsewhere = self._elsewhere(lock_token)
        if elsewhere is not None:
            return await elsewhere.renew(entity, lock_token)
        return await self.renew_here(entity, lock_token)

    async def renew_here(self, entity: EntityPath, lock_token: str) -> Delivery:
        """As `renew`, for the leases of this gateway alone."""
        return await self._renew(
            entity, lock_token, lambda receiver, delivery: receiver.renew(delivery)
        )

    async def hide(
        self, entity: EntityPath, lock_token: str, duration: timedelta, body: bytes | None = None
    ) -> Delivery:
        """
        As `HidesMessages.hide`, for a delivery of `receive_hidden` that isn't leased; return it
        without its message, with the token that it has from now on.

        Raises:
            LockLost: no gateway of this cluster has made the token.
            BrokerError: as `HidesMessages.hide`.
        """
        token = self._unsealed(entity, lock_token)
        if token is None:
            raise LockLost(f"{entity}: lock {lock_token:.80} is unknown")
        async with self._receiver_of(entity).adopt(token) as adopted:
            hides = required(adopted.receiver, HidesMessages)
            until = await hides.hide(adopted.delivery, duration, body)
            return self._renewed(entity, adopted, until, lock_token)

    async def change_body(self, entity: EntityPath, lock_token: str, body: bytes) -> Delivery:
        """
        As `ChangesBody.change_body`, with the result of `renew`.

        Raises:
            NotSupported: the namespace can't change a body.
        """

        def change(receiver: Receiver, delivery: Delivery) -> Awaitable[datetime]:
            return required(receiver, ChangesBody).change_body(delivery, body)

        return await self._renew(entity, lock_token, change)

    async def _renew(
        self,
        entity: EntityPath,
        lock_token: str,
        renew: Callable[[Receiver, Delivery], Awaitable[datetime]],
    ) -> Delivery:
        with self._doubts.using(lock_token):
            lease = self._lease(entity, lock_token, trio.current_time())
        with lease.shared:
            receiver = await lease.shared.opened()
            try:
                with self._doubts.using(lock_token):
                    locked_until = await renew(receiver, lease.delivery)
            except LockLost:
                self._end(lock_token, lease)
                raise
            lease.delivery = attrs.evolve(lease.delivery, locked_until=locked_until)
            lease.lock = self._lock_of(lease.delivery)
        return lease.delivery

    def _renewed(
        self, entity: EntityPath, adopted: Adopted, until: datetime, lock_token: str
    ) -> Delivery:
        token = adopted.by_token.hand_out(adopted.delivery)
        if token is not None and self.elsewhere is not None:
            lock_token = self.elsewhere.seal(entity, token)
        return attrs.evolve(adopted.delivery, lock_token=lock_token, locked_until=until)

    def _unsealed(self, entity: EntityPath, lock_token: str) -> bytes | None:
        elsewhere = self.elsewhere
        return None if elsewhere is None else elsewhere.unseal(entity, lock_token)

    def holds(self, lock_token: str) -> bool:
        """True if there is such a lease, in force or expired."""
        return lock_token.lower() in self._leases

    def lock_of(self, lock_token: str) -> LockEnds:
        """The end of that lease, unless the lease is renewed; `OVER` if there is no such lease."""
        lease = self._leases.get(lock_token.lower())
        return OVER if lease is None else lease.lock

    def _make_room(self, client: str, limit: int) -> None:
        now = trio.current_time()
        if now >= self._sweep_at and not self._room.leaves_room(client, limit):
            # Expired leases are dropped only when the limit matters; until then they do no harm.
            self._sweep_at = now + _SWEEP
            for token, lease in list(self._leases.items()):
                if lease.lock.latest <= now and lease.delivery.locked_until is not None:
                    self._end(token, lease)
        _check(self._room, client, limit, "unsettled deliveries", "settle some first")

    def _receiver_of(self, entity: EntityPath) -> SharedReceiver:
        return self._receivers.get(entity.key) or self._open(entity)

    def _open(self, entity: EntityPath) -> SharedReceiver:
        if self._nursery is None:
            raise Unavailable("the gateway isn't running: it is starting or shutting down")
        client = current_visit().client_name
        _check(self._openings, client, 1, "open receivers", "wait until some are idle")
        shared = self._receivers[entity.key] = SharedReceiver(entity, trio.current_time())
        self._openings.add(client, 1)
        self._nursery.start_soon(self._keep_open, shared, client)
        return shared

    async def _keep_open(self, shared: SharedReceiver, client: str) -> None:
        await trio.lowlevel.checkpoint()
        options = self._options
        try:
            with trio.move_on_after(options.open_timeout) as scope:
                async with self._broker.open_receiver(shared.entity) as receiver:
                    scope.deadline = math.inf
                    shared.receiver = receiver
                    shared.ready.set()
                    await self._until_unused(shared, receiver)
                    self._retire(shared)
                    scope.deadline = trio.current_time() + options.close_timeout
        except BrokerError as error:
            shared.error = error
        finally:
            self._retire(shared)
            self._openings.release(client, 1)
            for token, lease in list(shared.leases.items()):
                self._end(token, lease)
            shared.ready.set()

    async def _until_unused(self, shared: SharedReceiver, receiver: Receiver) -> None:
        await trio.lowlevel.checkpoint()
        idle_timeout = self._options.idle_timeout
        while (closes_at := shared.closes_at(idle_timeout)) > trio.current_time():
            # No longer than the idle timeout, so that deliveries without a lock of their own are
            # abandoned soon.
            with trio.move_on_at(min(closes_at, trio.current_time() + idle_timeout)):
                await shared.unused.wait()
                return
            for delivery in self._drop_ended(shared):
                if delivery.locked_until is None:
                    await self._give_back(shared, receiver, delivery)

    def _drop_ended(self, shared: SharedReceiver) -> list[Delivery]:
        now = trio.current_time()
        ended = [
            (token, lease) for token, lease in shared.leases.items() if lease.lock.latest <= now
        ]
        for token, lease in ended:
            self._end(token, lease)
        return [lease.delivery for _, lease in ended]

    async def _give_back(
        self, shared: SharedReceiver, receiver: Receiver, delivery: Delivery
    ) -> None:
        await trio.lowlevel.checkpoint()
        try:
            with trio.move_on_after(self._options.close_timeout):
                await receiver.settle(delivery, Abandon())
        except BrokerError:
            self._retire(shared)  # leaving its scope releases the delivery

    def _retire(self, shared: SharedReceiver) -> None:
        """Receive no more from the receiver. Its deliveries may still be settled."""
        shared.retired = True
        if self._receivers.get(shared.entity.key) is shared:
            del self._receivers[shared.entity.key]
        shared.check_unused()

    def _begin(
        self,
        shared: SharedReceiver,
        deliveries: Sequence[Delivery],
        by_token: SettlesByToken | None,
        client: str,
    ) -> Sequence[Delivery]:
        """
        Lease the deliveries, without their messages: there may be very many leases. Return them as
        the client gets them.
        """
        locks: dict[datetime | None, LockEnds] = {}  # the leases of a batch mostly end together
        given = list[Delivery]()
        for delivery in deliveries:
            client_has = self._sealed(shared.entity, delivery, by_token)
            if client_has is None:
                client_has = self._with_token(delivery)
                assert client_has.lock_token is not None, "a locked delivery has a token"
                token, until = client_has.lock_token.lower(), delivery.locked_until
                lock = locks.get(until)
                if lock is None:
                    lock = locks[until] = self._lock_of(delivery)
                if (former := self._leases.get(token)) is not None:
                    self._end(token, former)  # the namespace has repeated a token
                lease = Lease(shared, delivery.handle, lock, client)
                self._leases[token] = shared.leases[token] = lease
                self._room.add(client, 1)
            given.append(client_has)
        return given

    def _sealed(
        self, entity: EntityPath, delivery: Delivery, by_token: SettlesByToken | None
    ) -> Delivery | None:
        """The delivery with the namespace's token, sealed; None: it has to be leased."""
        if by_token is None or self.elsewhere is None or not self.elsewhere.seals:
            return None
        token = by_token.hand_out(delivery)
        if token is None:
            return None
        return attrs.evolve(delivery, lock_token=self.elsewhere.seal(entity, token))

    def _with_token(self, delivery: Delivery) -> Delivery:
        """The delivery with the lock token by which clients, also those of AMQP, know its lease."""
        if self.elsewhere is not None:
            token = self.elsewhere.new_token()
            # The token has few random bits, and there may be many leases.
            while token in self._leases:
                token = self.elsewhere.new_token()
            return attrs.evolve(delivery, lock_token=token)
        if delivery.lock_token is not None and len(delivery.lock_token) > _UUID:
            return attrs.evolve(delivery, lock_token=str(self._new_id()))
        return delivery

    def _elsewhere(self, lock_token: str) -> Elsewhere | None:
        """The other gateways, if one of them holds the delivery."""
        elsewhere = self.elsewhere
        if elsewhere is None or lock_token.lower() in self._leases:
            return None
        return elsewhere if elsewhere.is_elsewhere(lock_token) else None

    def _end(self, lock_token: str, lease: Lease) -> None:
        """End a lease, unless it ended while the caller waited."""
        token = lock_token.lower()
        if self._leases.get(token) is lease:
            del self._leases[token], lease.shared.leases[token]
            self._room.release(lease.client, 1)

    def _lease(self, entity: EntityPath, lock_token: str, now: float) -> Lease:
        lease = self._leases.get(lock_token.lower())
        if lease is None or lease.shared.entity != entity or lease.lock.latest <= now:
            raise LockLost(f"{entity}: lock {lock_token} is unknown or has expired")
        return lease

    def _lock_of(self, delivery: Delivery) -> LockEnds:
        """The end of a lock that was received or renewed just now."""
        now = trio.current_time()
        if delivery.locked_until is None:
            end = now + self._options.lock_duration
            return LockEnds(end, end)
        return LockEnds.of(delivery.locked_until, self._wall_clock(), now)
