"""Entities whose sends and receives wait all the time return soon after the namespace does."""

from collections.abc import Callable

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Unreachable
from gateway.domain.failover import State
from gateway.pairing.pair import Pair
from tests.harness.faults import Fault, Hang, T, Work
from tests.pairing.harness import Harness, message, refuse, virtual_time

pytestmark = [virtual_time, pytest.mark.slow]

ENTITIES = tuple(EntityPath(f"orders-{number}") for number in range(4))
ATTEMPT = 5.0  # seconds until a request without an answer is given up
SOON = 3.0  # seconds: the probes are spread over one, and a second lies between two


@attrs.frozen
class Freeze:
    """Does nothing until the thaw, and then all that has waited, as a stopped process."""

    thaw: trio.Event = attrs.field(factory=trio.Event)

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await self.thaw.wait()
        return await work()


async def produce(pair: Pair, entity: EntityPath) -> None:
    number = 0
    while True:
        number += 1
        try:
            await pair.broker.send_diverting(entity, [message(f"{entity.name}-{number}")])
        except BrokerError:
            await trio.sleep(1.0)
        await trio.sleep(0.5)


async def consume(harness: Harness, entity: EntityPath) -> None:
    while True:
        try:
            async with harness.primary.broker.open_receiver(entity) as receiver:
                while True:
                    await receiver.receive(10)
        except BrokerError:
            await trio.sleep(1.0)


async def seconds_until_all_are_back(
    harness: Harness, fault: Fault, heal: Callable[[], None], outage: float
) -> float:
    for entity in ENTITIES:
        await harness.primary.store.create_queue(entity, QueueProperties())
    pair = await harness.pair(attempt_timeout=ATTEMPT, failover_interval=10.0)
    for entity in ENTITIES:
        harness.nursery.start_soon(produce, pair, entity)
        harness.nursery.start_soon(produce, pair, entity)
        harness.nursery.start_soon(consume, harness, entity)
    await trio.sleep(30.0)
    assert pair.states.troubled() == []
    harness.primary.fail(fault)
    await trio.sleep(outage)
    assert {each.entity for each in pair.states.troubled()} == set(ENTITIES)
    assert {each.state for each in pair.states.troubled()} == {State.SECONDARY}
    returned = trio.current_time()

    harness.primary.heal()
    heal()
    pair.states.evidence.returns.notify()  # as an answer to a receiver does: `namespace_back`
    while pair.states.troubled():
        await pair.states.changes.wait(pair.states.changes.version)
    return trio.current_time() - returned


@pytest.mark.parametrize("outage", [60.0, 66.0, 90.0])
async def test_an_entity_whose_requests_wait_returns_with_the_thaw_of_its_primary(
    harness: Harness, outage: float
) -> None:
    freeze = Freeze()

    took = await seconds_until_all_are_back(harness, freeze, freeze.thaw.set, outage)

    assert took <= SOON


@pytest.mark.parametrize("outage", [60.0, 66.0, 90.0])
async def test_an_entity_whose_requests_are_refused_returns_with_its_primary(
    harness: Harness, outage: float
) -> None:
    refused = refuse(Unreachable, "connection refused")

    took = await seconds_until_all_are_back(harness, refused, lambda: None, outage)

    assert took <= SOON


@pytest.mark.parametrize("outage", [60.0, 66.0, 90.0])
async def test_an_entity_whose_requests_are_never_answered_returns_after_one_such_request(
    harness: Harness, outage: float
) -> None:
    """A connection has died in silence: the probe that waits on it is given up first."""
    took = await seconds_until_all_are_back(harness, Hang(), lambda: None, outage)

    assert took <= ATTEMPT + SOON
