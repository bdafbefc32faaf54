"""
Locked deliveries between two requests, as front ends use them: received by one, settled by another.

`leases` has those of one process. With other processes beside it, `app/assembly/others.py` puts
theirs around them.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from gateway.capabilities import TransactedSettlement
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import Delivery, Settlement
from gateway.ports import Receiver


class Leasing(Protocol):
    """Receives, settles and renews for clients that have no connection of their own."""

    async def open(self, entity: EntityPath) -> Receiver:
        """
        Return the queue's receiver if it can be opened; the caller may only read its capabilities.

        Raises:
            BrokerError: as `Broker.open_receiver`.
        """
        ...

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
        ...

    async def receive_now(
        self, entity: EntityPath, limit: int, *, any_token: bool = False
    ) -> Sequence[Delivery]:
        """
        As `receive`, but return what is available now, also nothing. Only a namespace that doesn't
        tell that it has no messages is waited for.
        """
        ...

    async def receive_available(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """
        As `ReceivesAvailable.receive_available`, each delivery locked and leased.

        Raises:
            Busy: too many deliveries wait for their settlement.
            NotSupported: the namespace doesn't tell that it has no messages.
            BrokerError: as `Receiver.receive`.
        """
        ...

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
        ...

    async def asks_once(self, entity: EntityPath) -> bool:
        """
        Return True if `poll` is one short request: the namespace hides messages, and never waits
        for them. Raises as `open`.
        """
        ...

    async def poll(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """As `receive`, but the result is empty if a single request has found nothing."""
        ...

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """
        Return once the namespace has settled the delivery. If it couldn't, the lease stays.

        Raises:
            LockLost: there is no such lease, or it has expired.
            OutcomeUnknown: also instead of `LockLost`, if an earlier settlement had no answer.
            HolderSilent: the process that holds the delivery didn't answer.
            BrokerError: as `Receiver.settle`.
        """
        ...

    async def settle_many(
        self, entity: EntityPath, settlements: Sequence[tuple[str, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `settle` for each lock token; return one error or None (settled) per lock token.

        `NotSupported` means that the namespace settles one delivery at a time.
        """
        ...

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
        ...

    def settled(self, lock_token: str) -> None:
        """End the lease of a delivery that was settled in a transaction."""
        ...

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """
        Extend the lock and its lease; return a delivery without a message, with the new end of the
        lock.

        Raises:
            LockLost: there is no such lease, or it has expired.
            OutcomeUnknown: also instead of `LockLost`, if a settlement had no answer.
            HolderSilent: the process that holds the delivery didn't answer.
            BrokerError: as `Receiver.renew`.
        """
        ...

    async def change_body(self, entity: EntityPath, lock_token: str, body: bytes) -> Delivery:
        """
        As `ChangesBody.change_body`, with the result of `renew`.

        Raises:
            NotSupported: the namespace can't change a body.
        """
        ...

    def holds(self, lock_token: str) -> bool:
        """True if this process has such a lease, in force or expired."""
        ...

    def lock_of(self, lock_token: str) -> LockEnds:
        """The end of that lease, unless the lease is renewed; `OVER` if there is no such lease."""
        ...

    async def hides(self, entity: EntityPath) -> bool:
        """
        Return True if `receive_hidden` is possible: several gateways, before a namespace that hides
        messages itself and has tokens that any of them can settle with. Raises as `open`.
        """
        ...

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
        ...

    async def hide(
        self, entity: EntityPath, lock_token: str, duration: timedelta, body: bytes | None = None
    ) -> Delivery:
        """
        As `HidesMessages.hide`, for a delivery of `receive_hidden` that isn't leased; return it
        without its message, with the token that it has from now on.

        Raises:
            LockLost: no gateway has made the token.
            BrokerError: as `HidesMessages.hide`.
        """
        ...
