"""
Locked deliveries that wait for their settlement between two HTTP requests.

A receiver is a scope, and HTTP has no scopes: a client receives a message with one request and
settles it with another. So one task per queue holds a receiver open (`shared_receivers`), requests
share it, and each locked delivery is a lease (`lease_table`) until it is settled or its lock
expires.

A namespace with tokens that any process can settle with (`SettlesByToken`) needs no lease: clients
get its own token (`client_tokens`), which outlives this process and works at any gateway.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

import attrs
import trio

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
    LockLost,
    MessageNotFound,
    NotSupported,
    QuotaExceeded,
)
from gateway.domain.message import Delivery, Settlement, derive_delivery
from gateway.frontends.client_tokens import ClientTokens, OpenTokens
from gateway.frontends.lease_table import LeaseTable, NewToken
from gateway.frontends.shared_receivers import Lease, LeaseOptions, SharedReceiver, SharedReceivers
from gateway.net.visits import current_visit
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

ReceiveBy = Callable[[Receiver], Awaitable[Sequence[Delivery]]]
"""Receives from a queue's receiver."""

Keep = Callable[[Receiver, Delivery], Delivery | None]
"""The delivery as a client gets it that needs no lease; None: it is leased."""


@attrs.frozen(eq=False)
class _Adopted:
    """A delivery of which the client has the namespace's token, during a request that uses it."""

    receiver: Receiver
    by_token: SettlesByToken  # the same
    delivery: Delivery  # without its message


@attrs.define(eq=False)
class Leases:
    """
    Implements `leasing.Leasing` and `ports.Service`: `run` owns the receivers. Deliveries that
    aren't settled when `run` ends go back to the namespace.

    With `new_token`, leased deliveries get such lock tokens instead of the namespace's.
    """

    _broker: Broker
    _wall_clock: WallClock
    _options: LeaseOptions = attrs.field(factory=LeaseOptions)
    _new_token: NewToken | None = None
    _tokens: ClientTokens = attrs.field(factory=OpenTokens)
    receivers: SharedReceivers = attrs.field(init=False)
    _table: LeaseTable = attrs.field(init=False)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)

    def __attrs_post_init__(self) -> None:
        self._table = LeaseTable(self._wall_clock, self._options, self._new_token)
        self.receivers = SharedReceivers(self._broker, self._options, self._table.remove)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the receivers open until cancelled."""
        await self.receivers.run(task_status=task_status)

    async def open(self, entity: EntityPath) -> Receiver:
        """As `Leasing.open`."""
        shared = self.receivers.of(entity)
        with shared:
            return await shared.opened()

    async def receive(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """As `Leasing.receive`."""
        keep = partial(self._handed_out, entity, in_place=True) if any_token else None
        return await self.receive_by(entity, limit, lambda receiver: receiver.receive(limit), keep)

    async def receive_now(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_now`."""
        keep = partial(self._handed_out, entity, in_place=True) if any_token else None
        return await self.receive_by(
            entity, limit, lambda receiver: available(receiver, limit), keep
        )

    async def receive_available(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Leasing.receive_available`."""

        async def receive(receiver: Receiver) -> Sequence[Delivery]:
            return await required(receiver, ReceivesAvailable).receive_available(limit)

        return await self.receive_by(entity, limit, receive)

    async def receive_deferred(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_deferred`."""

        async def receive(receiver: Receiver) -> Sequence[Delivery]:
            return await required(receiver, ReceivesDeferred).receive_deferred(sequence_numbers)

        return await self.receive_by(entity, len(sequence_numbers), receive)

    async def asks_once(self, entity: EntityPath) -> bool:
        """As `Leasing.asks_once`."""
        receiver = await self.open(entity)
        return all(offered(receiver, each) is not None for each in (HidesMessages, Polls))

    async def poll(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `Leasing.poll`."""

        async def receive(receiver: Receiver) -> Sequence[Delivery]:
            return await required(receiver, Polls).poll(limit)

        return await self.receive_by(entity, limit, receive)

    async def receive_by(
        self, entity: EntityPath, limit: int, receive: ReceiveBy, keep: Keep | None = None
    ) -> Sequence[Delivery]:
        """
        Receive at most `limit` deliveries by `receive`; lease each that `keep` doesn't return.

        Raises:
            Busy: too many deliveries wait for their settlement.
            BrokerError: as `receive`.
        """
        client = current_visit().client_name
        self._table.make_room(client, limit)
        shared = self.receivers.of(entity)
        self._table.room.add(client, limit)
        try:
            with shared:
                receiver = await shared.opened()
                try:
                    deliveries = await receive(receiver)
                except (MessageNotFound, NotSupported, QuotaExceeded):
                    raise  # such an error says nothing about the receiver
                except BrokerError:
                    self.receivers.retire(shared)
                    raise
                if keep is None:
                    return self._table.begin(shared, deliveries, client)
                kept = [keep(receiver, each) for each in deliveries]
                leased = [each for each, own in zip(deliveries, kept, strict=True) if own is None]
                given = iter(self._table.begin(shared, leased, client))
                return [next(given) if own is None else own for own in kept]
        finally:
            self._table.room.release(client, limit)

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """As `Leasing.settle`, for the leases of this process and for tokens of the namespace."""
        with self._doubts.settling(lock_token):
            if (token := self._tokens.unseal(entity, lock_token)) is not None:
                async with self._adopted(entity, token) as adopted:
                    await adopted.receiver.settle(adopted.delivery, settlement)
                return
            lease = self._table.of(entity, lock_token)
            with lease.shared:
                receiver = await lease.shared.opened()
                try:
                    await receiver.settle(lease.delivery, settlement)
                except LockLost:
                    self._table.remove(lock_token, lease)
                    raise
                self._table.remove(lock_token, lease)

    async def settle_many(
        self, entity: EntityPath, settlements: Sequence[tuple[str, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `Leasing.settle_many`."""
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        of_shared: dict[SharedReceiver, list[tuple[int, Lease]]] = {}
        for index, (lock_token, _) in enumerate(settlements):
            self._doubts.begin(lock_token)
            try:
                lease = self._table.of(entity, lock_token)
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
                    self._table.remove(settlements[index][0], lease)
        return [
            self._doubts.resolve(lock_token, verdict)
            for (lock_token, _), verdict in zip(settlements, verdicts, strict=True)
        ]

    async def _settle_on(
        self, shared: SharedReceiver, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        with shared:
            try:
                receiver = await shared.opened()
                return await required(receiver, SettlesMany).settle_many(settlements)
            except BrokerError as error:
                return [error] * len(settlements)

    def enlist(
        self, entity: EntityPath, lock_token: str, settlement: Settlement
    ) -> TransactedSettlement:
        """As `Leasing.enlist`."""
        lease = self._table.of(entity, lock_token)
        receiver = lease.shared.receiver
        if receiver is None:
            raise LockLost(f"{entity}: the receiver of lock {lock_token} was closed")
        return required(receiver, Enlists).enlist(lease.delivery, settlement)

    def settled(self, lock_token: str) -> None:
        """As `Leasing.settled`."""
        lease = self._table.find(lock_token)
        if lease is not None:
            self._table.remove(lock_token, lease)
            lease.shared.check_unused()

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """As `Leasing.renew`, for the leases of this process and for tokens of the namespace."""
        if (token := self._tokens.unseal(entity, lock_token)) is not None:
            with self._doubts.using(lock_token):
                async with self._adopted(entity, token) as adopted:
                    until = await adopted.receiver.renew(adopted.delivery)
                    return self._renewed(entity, adopted, until, lock_token)
        return await self._renew(
            entity, lock_token, lambda receiver, delivery: receiver.renew(delivery)
        )

    async def change_body(self, entity: EntityPath, lock_token: str, body: bytes) -> Delivery:
        """As `Leasing.change_body`."""

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
            lease = self._table.of(entity, lock_token)
        with lease.shared:
            receiver = await lease.shared.opened()
            try:
                with self._doubts.using(lock_token):
                    locked_until = await renew(receiver, lease.delivery)
            except LockLost:
                self._table.remove(lock_token, lease)
                raise
            lease.delivery = attrs.evolve(lease.delivery, locked_until=locked_until)
            lease.lock = self._table.lock_of(lease.delivery)
        return lease.delivery

    def holds(self, lock_token: str) -> bool:
        """As `Leasing.holds`."""
        return self._table.find(lock_token) is not None

    def lock_of(self, lock_token: str) -> LockEnds:
        """As `Leasing.lock_of`."""
        lease = self._table.find(lock_token)
        return OVER if lease is None else lease.lock

    async def hides(self, entity: EntityPath) -> bool:
        """As `Leasing.hides`."""
        receiver = await self.open(entity)
        kinds = (SettlesByToken, HidesMessages, Polls)
        return all(offered(receiver, each) is not None for each in kinds)

    async def receive_hidden(
        self, entity: EntityPath, limit: int, duration: timedelta
    ) -> Sequence[Delivery]:
        """As `Leasing.receive_hidden`."""

        async def receive(receiver: Receiver) -> Sequence[Delivery]:
            return await required(receiver, Polls).poll(limit, duration)

        return await self.receive_by(entity, limit, receive, partial(self._handed_out, entity))

    async def hide(
        self, entity: EntityPath, lock_token: str, duration: timedelta, body: bytes | None = None
    ) -> Delivery:
        """As `Leasing.hide`. Raises `LockLost`, too: the text is no token of the namespace."""
        token = self._tokens.unseal(entity, lock_token)
        if token is None:
            raise LockLost(f"{entity}: lock {lock_token:.80} is unknown")
        async with self._adopted(entity, token) as adopted:
            hides = required(adopted.receiver, HidesMessages)
            until = await hides.hide(adopted.delivery, duration, body)
            return self._renewed(entity, adopted, until, lock_token)

    def _handed_out(
        self, entity: EntityPath, receiver: Receiver, delivery: Delivery, *, in_place: bool = False
    ) -> Delivery | None:
        """
        The delivery with the namespace's token; None: it has to be leased. `in_place`: the client
        keeps the token when it renews.
        """
        by_token = offered(receiver, SettlesByToken)
        if by_token is None or (in_place and not by_token.renews_in_place):
            return None
        token = by_token.hand_out(delivery)
        if token is None:
            return None
        return derive_delivery(delivery, lock_token=self._tokens.seal(entity, token))

    @asynccontextmanager
    async def _adopted(self, entity: EntityPath, token: bytes) -> AsyncIterator[_Adopted]:
        """
        Use the queue's receiver for the delivery of a namespace's token.

        Raises:
            LockLost: the token isn't one of this namespace.
            BrokerError: as `Leasing.open`.
        """
        shared = self.receivers.of(entity)
        with shared:
            receiver = await shared.opened()
            by_token = offered(receiver, SettlesByToken)
            if by_token is None:  # the gateway that handed it out has another namespace
                raise LockLost(f"{entity}: this namespace has no such tokens")
            with by_token.adopt(token) as delivery:
                yield _Adopted(receiver, by_token, delivery)

    def _renewed(
        self, entity: EntityPath, adopted: _Adopted, until: datetime, lock_token: str
    ) -> Delivery:
        token = adopted.by_token.hand_out(adopted.delivery)
        if token is not None:
            lock_token = self._tokens.seal(entity, token)
        return attrs.evolve(adopted.delivery, lock_token=lock_token, locked_until=until)


async def available(receiver: Receiver, limit: int) -> Sequence[Delivery]:
    """
    At most `limit` deliveries that are there now, perhaps none. A receiver that doesn't know is
    waited for.
    """
    knows = offered(receiver, ReceivesAvailable)
    if knows is None:
        return await receiver.receive(limit)
    return await knows.receive_available(limit)
