"""Parts of the tests of order lease that other tests need, too."""

from contextlib import suppress

import attrs
import trio

from gateway.domain.errors import SessionLockLost
from gateway.domain.message import AcceptedBy
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.options import OrderLeaseMode
from gateway.extensions.order.queues import LEASE_LOCK, lease_queue
from gateway.extensions.order.status import ORDER, OrderStatus
from gateway.extensions.order.watch import OrderWatch
from gateway.pairing.pair import Pair
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.pairing.harness import (
    LABEL,
    ORDERS,
    Harness,
    message,
)

OUTAGE = {"failover_interval": 0.0, "ping_interval": 1.0, "successes_to_return": 1}
KEY = key_of(ORDERS, message())
QUEUE = lease_queue(LABEL)
NAME = str(KEY.number)  # of the lease's session
LOCK = LEASE_LOCK.total_seconds()


@attrs.define(eq=False)
class Gateway:
    """A pair that runs, over a connection of its own to the secondary."""

    pair: Pair
    secondary: FaultySessionsBroker
    scope: trio.CancelScope

    async def send(self, name: str) -> AcceptedBy:
        return await self.pair.broker.send_diverting(ORDERS, [message(name)])

    def stop(self) -> None:
        """End in good order."""
        self.scope.cancel()

    def kill(self) -> None:
        """End without releasing anything."""
        self.secondary.crash()
        self.scope.cancel()


@attrs.define(eq=False)
class Switch:
    """The fault of a connection, while there is one."""

    fault: object = None

    def __call__(self, operation, entity):
        return self.fault


async def gateway(harness: Harness, switch: Switch | None = None, **options) -> Gateway:
    link = FaultySessionsBroker(inner=harness.secondary.broker, fault=switch or Switch())
    await harness.nursery.start(link.run)
    options = {**OUTAGE, "order_lease": OrderLeaseMode.WAIT, **options}
    parts = attrs.evolve(harness.parts(ordered=("orders",), **options), secondary=link)
    pair = parts.assemble()

    async def run(*, task_status):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(pair.run)
                task_status.started(scope)

    return Gateway(pair, link, await harness.nursery.start(run))


def watch_of(pair: Pair) -> OrderWatch:
    """The watch of the keys of the pair's ordered entities."""
    [addition] = pair.additions
    assert isinstance(addition.kept, OrderWatch)
    return addition.kept


def status_of(pair: Pair) -> OrderStatus:
    return pair.sections[ORDER]()


def asked_for_leases(harness: Harness) -> int:
    return sum(each.entity == QUEUE for each in harness.secondary.asked)


async def keep_locked(holder) -> None:
    """Renew the session's lock until it is lost."""
    with suppress(SessionLockLost):
        while True:
            await holder.renew_session()
            await trio.sleep(5.0)
