"""
The receivers that all requests for a queue share, and how long each stays open.

    first request for a queue      a task enters the receiver's scope
    requests                       share the receiver, several at once
    no request for `idle_timeout`, the task leaves the scope
    and no lease left
    the receiver fails             it is retired: its leases may still be settled; requests get
                                   another receiver
"""

import math
from collections.abc import Callable

import attrs
import trio
from attrs import validators

from gateway.changes import RunsTasks
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unavailable
from gateway.domain.message import Abandon, Delivery
from gateway.fair_budget import FairBudget
from gateway.net.visits import current_visit
from gateway.ports import Broker, Receiver


@attrs.frozen(kw_only=True)
class LeaseOptions:
    max_leases: int = attrs.field(default=100_000, validator=validators.ge(1))
    max_receivers: int = attrs.field(default=2_000, validator=validators.ge(1))
    idle_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    open_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))
    close_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # If the namespace reports no duration of its locks, deliveries are abandoned after this time.
    lock_duration: float = attrs.field(default=60.0, validator=validators.gt(0.0))


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
        return self.receiver

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


@attrs.define(eq=False)
class SharedReceivers(RunsTasks):
    """A `gateway.ports.Service`: `run` owns the receivers, which stay open until it ends."""

    _broker: Broker
    _options: LeaseOptions
    _end: Callable[[str, Lease], None]  # called with each lease that has ended, and its lock token
    _by_key: dict[str, SharedReceiver] = attrs.field(factory=dict, init=False)
    _openings: FairBudget = attrs.field(init=False)  # the receivers that each client has opened

    @_openings.default
    def _no_openings(self) -> FairBudget:
        return FairBudget(self._options.max_receivers)

    def of(self, entity: EntityPath) -> SharedReceiver:
        """
        The queue's receiver, which opens soon.

        Raises:
            Busy: this client has too many receivers open.
            Unavailable: `run` isn't running.
        """
        return self._by_key.get(entity.key) or self._open(entity)

    def retire(self, shared: SharedReceiver) -> None:
        """Receive no more from the receiver. Its deliveries may still be settled."""
        shared.retired = True
        if self._by_key.get(shared.entity.key) is shared:
            del self._by_key[shared.entity.key]
        shared.check_unused()

    def _open(self, entity: EntityPath) -> SharedReceiver:
        if self._nursery is None:
            raise Unavailable("the gateway isn't running: it is starting or shutting down")
        client = current_visit().client_name
        check_room(self._openings, client, 1, "open receivers", "wait until some are idle")
        shared = self._by_key[entity.key] = SharedReceiver(entity, trio.current_time())
        self._openings.add(client, 1)
        self._nursery.start_soon(self._keep_open, shared, client)
        return shared

    async def _keep_open(self, shared: SharedReceiver, client: str) -> None:
        options = self._options
        try:
            with trio.move_on_after(options.open_timeout) as scope:
                async with self._broker.open_receiver(shared.entity) as receiver:
                    scope.deadline = math.inf
                    shared.receiver = receiver
                    shared.ready.set()
                    await self._until_unused(shared, receiver)
                    self.retire(shared)
                    scope.deadline = trio.current_time() + options.close_timeout
        except BrokerError as error:
            shared.error = error
        finally:
            self.retire(shared)
            self._openings.release(client, 1)
            for token, lease in list(shared.leases.items()):
                self._end(token, lease)
            shared.ready.set()

    async def _until_unused(self, shared: SharedReceiver, receiver: Receiver) -> None:
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
        try:
            with trio.move_on_after(self._options.close_timeout):
                await receiver.settle(delivery, Abandon())
        except BrokerError:
            self.retire(shared)  # leaving its scope releases the delivery


def check_room(budget: FairBudget, client: str, count: int, things: str, remedy: str) -> None:
    """Raises `Busy` if the client's part of the budget has no room for so many more."""
    if not budget.leaves_room(client, count):
        own = budget.owned_by(client)
        raise Busy(f"of at most {budget.limit} {things} this client has {own}: {remedy}")
