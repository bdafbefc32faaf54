"""Faults that no other test has: a pair and a syphon on virtual time."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from gateway.domain.message import Abandon, AcceptedBy, Complete
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    QUEUE,
    Namespace,
    message,
    outcome_of,
    refuse,
    send,
    virtual_time,
)

pytestmark = [virtual_time, pytest.mark.slow]

HOUR = 3600.0


async def backlog_is_empty(harness):
    while await harness.secondary.ids(QUEUE):  # noqa: ASYNC110
        await trio.sleep(1.0)


async def test_a_flapping_primary_moves_an_entity_no_more_than_it_flaps(harness):
    pair = await harness.pair(failover_interval=5.0, ping_interval=10.0)
    await harness.syphon(states=pair.states)
    flaps, sent = 0, 0
    with trio.move_on_after(HOUR):
        while True:
            harness.primary.fail(Refuse())
            flaps += 1
            for _ in range(harness.rng.randint(1, 30)):
                assert await outcome_of(send(pair, message(f"m{sent}"))) is None
                sent += 1
                await trio.sleep(1.0)
            harness.primary.heal()
            await trio.sleep(harness.rng.uniform(1.0, 30.0))
    harness.primary.heal()
    await backlog_is_empty(harness)

    over = [
        one for one in harness.events.of(EntityStateChanged) if one.after == State.SECONDARY.value
    ]
    assert 10 < len(over) <= flaps
    assert sorted(await harness.primary.ids()) == sorted(f"m{number}" for number in range(sent))


async def test_a_primary_that_only_the_syphon_reaches_makes_no_ping_pong(harness):
    pair = await harness.pair(failover_interval=0.0)
    reached = harness.primary.broker.inner
    syphon = attrs.evolve(harness.make_syphon(), primary=reached)
    harness.primary.fail(Refuse())
    await harness.nursery.start(syphon.run)

    accepted_by = [await send(pair, message(f"m{number}"))() for number in range(20)]
    await backlog_is_empty(harness)

    assert set(accepted_by) == {AcceptedBy.BACKLOG}
    assert sorted(await harness.primary.ids()) == sorted(f"m{number}" for number in range(20))
    assert len(harness.events.of(EntityStateChanged)) == 1


async def test_a_batch_has_one_outcome(harness):
    pair = await harness.pair()
    harness.primary.fail(LoseAnswer(), Operation.SEND, times=1)
    batch = [message(f"m{number}") for number in range(4)]

    accepted_by = await send(pair, *batch)()
    await harness.syphon()
    await backlog_is_empty(harness)

    ids = await harness.primary.ids()
    assert accepted_by is AcceptedBy.BACKLOG
    assert sorted(ids) == sorted(2 * [one.message_id for one in batch])


async def test_duplicate_detection_takes_the_second_copy(harness):
    detecting = QueueProperties(requires_duplicate_detection=True)
    await harness.primary.store.delete_queue(ORDERS)
    await harness.primary.store.create_queue(ORDERS, detecting)
    pair = await harness.pair()
    harness.primary.fail(LoseAnswer(), Operation.SEND, times=1)

    accepted_by = await send(pair, message("m1"))()
    await harness.syphon()
    await backlog_is_empty(harness)

    assert accepted_by is AcceptedBy.BACKLOG
    assert await harness.primary.ids() == ["m1"]


async def test_a_message_that_appears_late_is_not_sent_again(harness):
    """Service Bus: an acknowledged message may take minutes to appear."""
    pair = await harness.pair()
    await harness.syphon(states=pair.states)
    harness.primary.fail(refuse(Unavailable, "down"), Operation.SEND, times=1)
    scheduled = message("m1", scheduled=harness.after(900))  # hidden for as long

    await send(pair, scheduled)()
    await backlog_is_empty(harness)
    await trio.sleep(HOUR)

    assert await harness.primary.ids() == ["m1"]
    assert harness.primary.sends() == 2  # an attempt that failed, and the syphon's


@pytest.mark.parametrize("hours", [-1, 1, 24 * 3652])
async def test_a_wall_clock_that_jumps_moves_no_entity_and_loses_nothing(harness, hours):
    pair = await harness.pair()
    harness.primary.fail(Refuse())
    await send(pair, message("m1"))()
    await send(pair, message("m2"), entity=BILLS)()
    states = [pair.states.state_of(entity) for entity in (ORDERS, BILLS)]

    harness.clock.skew = timedelta(hours=hours)
    await trio.sleep(10.0)
    after = [pair.states.state_of(entity) for entity in (ORDERS, BILLS)]
    harness.primary.heal()
    await harness.syphon()
    await backlog_is_empty(harness)

    assert states == after == [State.SUSPECT, State.SUSPECT]
    assert await harness.primary.ids(ORDERS) == ["m1"]
    assert await harness.primary.ids(BILLS) == ["m2"]


async def test_gateways_that_see_different_health_lose_nothing(harness):
    pairs = [await harness.pair(failover_interval=0.0) for _ in range(20)]
    blind = pairs[::2]
    for pair in blind:
        harness.primary.fail(Refuse(), times=1)
        await send(pair, message(f"first {id(pair)}"))()
        harness.primary.heal()
    await harness.syphon()

    async with trio.open_nursery() as nursery:
        for number, pair in enumerate(pairs):
            nursery.start_soon(partial(send(pair, message(f"m{number}"))))
    await backlog_is_empty(harness)

    ids = await harness.primary.ids()
    assert len(ids) == len(set(ids)) == len(pairs) + len(blind)
    assert await harness.secondary.ids(QUEUE) == []


@attrs.frozen
class Deadly:
    """The primary, for a syphon that dies as it sends one message; `die` kills it."""

    inner: Any
    die: Callable[[], None]

    async def send(self, entity, messages):
        if any(one.message_id == "deadly" for one in messages):
            self.die()
        await self.inner.send(entity, messages)

    def __getattr__(self, name):
        return getattr(self.inner, name)


async def die_at_the_message(harness, batch):
    """A syphon's life. Its death isn't noticed: the messages that it had locked stay locked."""
    primary, source = Namespace(harness.primary.store), Namespace(harness.secondary.store)
    for namespace in (primary, source):
        await harness.nursery.start(namespace.broker.run)
    died = trio.Event()

    def die():
        for namespace in (primary, source):
            namespace.fail(Hang())
        died.set()

    mortal = attrs.evolve(
        harness.make_syphon(batch=batch), primary=Deadly(primary.broker, die), source=source.broker
    )
    await harness.nursery.start(mortal.run)
    await died.wait()


async def test_a_syphon_that_dies_at_one_message_again_and_again_moves_the_others(harness):
    batch, others = 10, [f"m{number}" for number in range(40)]
    await harness.divert(message("deadly"), *map(message, others))
    await harness.divert(message("bill"), entity=BILLS)
    for _ in range(25):
        await die_at_the_message(harness, batch)
        await trio.sleep(1.0)  # and it is started again

    moved = await harness.primary.ids()
    dead_lettered = await harness.secondary.ids(QUEUE.dead_letter)
    await harness.syphon()
    await backlog_is_empty(harness)

    assert "deadly" not in moved
    assert len(moved) > len(others) - batch
    assert await harness.primary.ids(BILLS) == ["bill"]
    assert dead_lettered == []
    assert sorted(await harness.primary.ids()) == sorted(["deadly", *others])


async def test_a_consumer_that_abandons_a_message_for_ever_delays_no_other(harness):
    pair = await harness.pair()
    await harness.syphon(states=pair.states)
    harness.primary.fail(Refuse(), Operation.SEND, times=1)
    for name in ("poison", "m1", "m2"):
        await send(pair, message(name))()
    await backlog_is_empty(harness)

    taken = []
    async with harness.primary.store.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(HOUR):
            while True:
                for delivery in await receiver.receive(10):
                    poison = delivery.message.message_id == "poison"
                    taken += [] if poison else [delivery.message.message_id]
                    await receiver.settle(delivery, Abandon() if poison else Complete())

    assert sorted(taken) == ["m1", "m2"]
    assert await harness.primary.ids(ORDERS.dead_letter) == ["poison"]
    assert await harness.primary.ids() == []
    assert pair.states.state_of(ORDERS) is State.PRIMARY
