"""The leases of a process by their lock tokens, and the part of them that each client may have."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import uuid4

import attrs
import trio

from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost
from gateway.domain.message import Delivery
from gateway.fair_budget import FairBudget
from gateway.frontends.shared_receivers import Lease, LeaseOptions, SharedReceiver, check_room
from gateway.ports import WallClock

_UUID: Final = 36  # characters: as written by RFC 9562
_SWEEP: Final = 1.0  # seconds between two looks at all leases, which take milliseconds

NewToken = Callable[[], str]
"""Makes a lock token by which another process knows who holds the delivery."""


@attrs.define(eq=False)
class LeaseTable:
    """All leases. Lock tokens are the namespace's own, unless there is a `new_token`."""

    _wall_clock: WallClock
    _options: LeaseOptions
    _new_token: NewToken | None
    # The leases of each client, and the deliveries that its pending receives may return.
    room: FairBudget = attrs.field(init=False)
    _leases: dict[str, Lease] = attrs.field(factory=dict, init=False)  # by lock token
    _sweep_at: float = attrs.field(default=-math.inf, init=False)  # by Trio's clock

    @room.default
    def _no_lease(self) -> FairBudget:
        return FairBudget(self._options.max_leases)

    def make_room(self, client: str, limit: int) -> None:
        """Raises `Busy` if there is no room for so many more leases of the client."""
        now = trio.current_time()
        if now >= self._sweep_at and not self.room.leaves_room(client, limit):
            # Expired leases are dropped only when the limit matters; until then they do no harm.
            self._sweep_at = now + _SWEEP
            for token, lease in list(self._leases.items()):
                if lease.lock.latest <= now and lease.delivery.locked_until is not None:
                    self.remove(token, lease)
        check_room(self.room, client, limit, "unsettled deliveries", "settle some first")

    def begin(
        self, shared: SharedReceiver, deliveries: Sequence[Delivery], client: str
    ) -> Sequence[Delivery]:
        """
        Lease the deliveries, without their messages: there may be very many leases. Return them as
        the client gets them.
        """
        locks: dict[datetime | None, LockEnds] = {}  # the leases of a batch mostly end together
        given: list[Delivery] = []
        for delivery in deliveries:
            client_has = self._with_token(delivery)
            assert client_has.lock_token is not None, "a locked delivery has a token"
            token, until = client_has.lock_token.lower(), delivery.locked_until
            lock = locks.get(until)
            if lock is None:
                lock = locks[until] = self.lock_of(delivery)
            if (former := self._leases.get(token)) is not None:
                self.remove(token, former)  # the namespace has repeated a token
            lease = Lease(shared, delivery.handle, lock, client)
            self._leases[token] = shared.leases[token] = lease
            self.room.add(client, 1)
            given.append(client_has)
        return given

    def remove(self, lock_token: str, lease: Lease) -> None:
        """Remove a lease, unless it ended while the caller waited."""
        token = lock_token.lower()
        if self._leases.get(token) is lease:
            del self._leases[token], lease.shared.leases[token]
            self.room.release(lease.client, 1)

    def find(self, lock_token: str) -> Lease | None:
        """The lease with that token, in force or expired."""
        return self._leases.get(lock_token.lower())

    def of(self, entity: EntityPath, lock_token: str) -> Lease:
        """
        The lease of the queue with that token.

        Raises:
            LockLost: there is no such lease, or it has expired.
        """
        lease = self.find(lock_token)
        now = trio.current_time()
        if lease is None or lease.shared.entity != entity or lease.lock.latest <= now:
            raise LockLost(f"{entity}: lock {lock_token} is unknown or has expired")
        return lease

    def lock_of(self, delivery: Delivery) -> LockEnds:
        """The end of a lock that was received or renewed just now."""
        now = trio.current_time()
        if delivery.locked_until is None:
            end = now + self._options.lock_duration
            return LockEnds(end, end)
        return LockEnds.of(delivery.locked_until, self._wall_clock(), now)

    def _with_token(self, delivery: Delivery) -> Delivery:
        """The delivery with the lock token by which clients, also those of AMQP, know its lease."""
        make = self._new_token
        if make is None:
            if delivery.lock_token is None or len(delivery.lock_token) <= _UUID:
                return delivery
            return attrs.evolve(delivery, lock_token=str(uuid4()))
        token = make()
        # The token has few random bits, and there may be many leases.
        while token in self._leases:
            token = make()
        return attrs.evolve(delivery, lock_token=token)
