"""The receiver that all requests for one queue share, and the leases of its deliveries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from gateway.capabilities import SettlesByToken
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, Unavailable
from gateway.domain.message import Delivery
from gateway.offering import offered
from gateway.ports import Receiver


@attrs.frozen(eq=False)
class Adopted:
    """A delivery of which the client has the namespace's token, during a request that uses it."""

    receiver: Receiver
    by_token: SettlesByToken  # the same
    delivery: Delivery  # without its message


@attrs.define(eq=False)
class SharedReceiver:
    """A receiver held open for one queue, its users, and its leases."""

    entity: EntityPath
    last_used: float
    users: int = 0
    leases: "dict[str, Lease]" = attrs.field(factory=dict)  # by lock token
    receiver: Receiver | None = None
    error: BrokerError | None = None
    retired: bool = False
    ready: trio.Event = attrs.field(factory=trio.Event)  # the receiver is open, or has failed to
    unused: trio.Event = attrs.field(factory=trio.Event)  # retired, and no longer in use

    async def opened(self) -> Receiver:
        if not self.ready.is_set():
            await self.ready.wait()
        if self.receiver is None:
            raise self.error or Unavailable(f"no receiver of {self.entity}")
        return self.receiver  # noqa: ASYNC910 nearly always it's open; using it waits

    @asynccontextmanager
    async def adopt(self, token: bytes) -> AsyncIterator[Adopted]:
        """
        Use the receiver for the delivery of a namespace's token.

        Raises:
            LockLost: the token isn't one of this namespace.
            BrokerError: as `opened`.
        """
        with self:
            receiver = await self.opened()
            by_token = offered(receiver, SettlesByToken)
            if by_token is None:  # the gateway that sealed it has another namespace
                raise LockLost(f"{self.entity}: this namespace has no such tokens")
            with by_token.adopt(token) as delivery:
                yield Adopted(receiver, by_token, delivery)

    def closes_at(self, idle_timeout: float) -> float:
        """
        The time to close the receiver, as far as known now; later if the receiver is used in the
        meantime.
        """
        if self.users:
            return trio.current_time() + idle_timeout
        ends = [lease.lock.latest for lease in self.leases.values()]
        return max([self.last_used if self.retired else self.last_used + idle_timeout, *ends])

    def __enter__(self) -> None:
        """Use the receiver; several users may use it at once."""
        self.users += 1

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        self.last_used = trio.current_time()
        self.check_unused()

    def check_unused(self) -> None:
        if self.retired and not self.users and not self.leases:
            self.unused.set()


@attrs.define(eq=False)
class Lease:
    shared: SharedReceiver
    delivery: Delivery
    lock: LockEnds
    client: str  # who has received the delivery, as for the limits of clients
