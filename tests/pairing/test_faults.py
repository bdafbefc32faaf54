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
from gateway.domain.events import StandingChanged
from gateway.domain.failover import State
from gateway.domain.message import Abandon, Complete, Leg
from gateway.testing.faults import Hang, LoseAnswer, Operation, Refuse
from tests.pairing.lab import (
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

pytestmark = virtual_time

HOUR = 3600.0


async def backlog_is_empty(lab):
    while await lab.secondary.ids(QUEUE):  # noqa: ASYNC110
        await trio.sleep(1.0)


async def test_a_flapping_primary_moves_an_entity_no_more_than_it_flaps(lab):
    pair = await lab.pair(failover_interval=5.0, ping_interval=10.0)
    await lab.syphon(standings=pair.standings)
    flaps, sent = 0, 0
    with trio.move_on_after(HOUR):
        while True:
            lab.primary.fail(Refuse())
            flaps += 1
            for _ in range(lab.rng.randint(1, 30)):
                assert await outcome_of(send(pair, message(f"m{sent}"))) is None
                sent += 1
                await trio.sleep(1.0)
            lab.primary.heal()
            await trio.sleep(lab.rng.uniform(1.0, 30.0))
    lab.primary.heal()
    await backlog_is_empty(lab)

    over = [one for one in lab.events.of(StandingChanged) if one.after == State.SECONDARY.value]
    assert 10 < len(over) <= flaps
    assert sorted(await lab.primary.ids()) == sorted(f"m{number}" for number in range(sent))


async def test_a_primary_that_only_the_syphon_reaches_makes_no_ping_pong(lab):
    pair = await lab.pair(failover_interval=0.0)
    reached = lab.primary.broker.inner
    syphon = attrs.evolve(lab.make_syphon(), primary=reached)
    lab.primary.fail(Refuse())
    await lab.nursery.start(syphon.run)

    legs = [await send(pair, message(f"m{number}"))() for number in range(20)]
    await backlog_is_empty(lab)

    assert set(legs) == {Leg.BACKLOG}
    assert sorted(await lab.primary.ids()) == sorted(f"m{number}" for number in range(20))
    assert len(lab.events.of(StandingChanged)) == 1


async def test_a_batch_has_one_outcome(lab):
    pair = await lab.pair()
    lab.primary.fail(LoseAnswer(), Operation.SEND, times=1)
    batch = [message(f"m{number}") for number in range(4)]

    leg = await send(pair, *batch)()
    await lab.syphon()
    await backlog_is_empty(lab)

    ids = await lab.primary.ids()
    assert leg is Leg.BACKLOG
    assert sorted(ids) == sorted(2 * [one.message_id for one in batch])


async def test_duplicate_detection_takes_the_second_copy(lab):
    detecting = QueueProperties(requires_duplicate_detection=True)
    await lab.primary.store.delete_queue(ORDERS)
    await lab.primary.store.create_queue(ORDERS, detecting)
    pair = await lab.pair()
    lab.primary.fail(LoseAnswer(), Operation.SEND, times=1)

    leg = await send(pair, message("m1"))()
    await lab.syphon()
    await backlog_is_empty(lab)

    assert leg is Leg.BACKLOG
    assert await lab.primary.ids() == ["m1"]


async def test_what_appears_late_is_not_sent_again(lab):
    """Service Bus: what was acknowledged may take minutes to be seen."""
    pair = await lab.pair()
    await lab.syphon(standings=pair.standings)
    lab.primary.fail(refuse(Unavailable, "down"), Operation.SEND, times=1)
    scheduled = message("m1", scheduled=lab.after(900))  # hidden for as long

    await send(pair, scheduled)()
    await backlog_is_empty(lab)
    await trio.sleep(HOUR)

    assert await lab.primary.ids() == ["m1"]
    assert lab.primary.sends() == 2  # one that failed, and the syphon's


@pytest.mark.parametrize("hours", [-1, 1, 24 * 3652])
async def test_a_wall_clock_that_jumps_moves_no_entity_and_loses_nothing(lab, hours):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), Operation.SEND, times=2)
    await send(pair, message("m1"))()
    await send(pair, message("m2"), entity=BILLS)()
    standings = [pair.standings.state_of(entity) for entity in (ORDERS, BILLS)]

    lab.clock.skew = timedelta(hours=hours)
    await trio.sleep(10.0)
    after = [pair.standings.state_of(entity) for entity in (ORDERS, BILLS)]
    await lab.syphon()
    await backlog_is_empty(lab)

    assert standings == after == [State.SUSPECT, State.SUSPECT]
    assert await lab.primary.ids(ORDERS) == ["m1"]
    assert await lab.primary.ids(BILLS) == ["m2"]


async def test_gateways_that_see_different_health_lose_nothing(lab):
    pairs = [await lab.pair(failover_interval=0.0) for _ in range(20)]
    blind = pairs[::2]
    for pair in blind:
        lab.primary.fail(Refuse(), times=1)
        await send(pair, message(f"first {id(pair)}"))()
        lab.primary.heal()
    await lab.syphon()

    async with trio.open_nursery() as nursery:
        for number, pair in enumerate(pairs):
            nursery.start_soon(partial(send(pair, message(f"m{number}"))))
    await backlog_is_empty(lab)

    ids = await lab.primary.ids()
    assert len(ids) == len(set(ids)) == len(pairs) + len(blind)
    assert await lab.secondary.ids(QUEUE) == []


@attrs.frozen
class Deadly:
    """The primary, for a syphon that dies as it sends one message; `die` kills it."""

    inner: Any
    die: Callable[[], None]

    async def send(self, entity, messages):
        if any(one.message_id == "deadly" for one in messages):
            self.die()
        return await self.inner.send(entity, messages)

    def __getattr__(self, name):
        return getattr(self.inner, name)


async def die_at_the_message(lab, batch):
    """A syphon's life. Of its death nobody is told: what it had locked stays so."""
    primary, source = Namespace(lab.primary.store), Namespace(lab.secondary.store)
    for namespace in (primary, source):
        await lab.nursery.start(namespace.broker.run)
    died = trio.Event()

    def die():
        for namespace in (primary, source):
            namespace.fail(Hang())
        died.set()

    mortal = attrs.evolve(
        lab.make_syphon(batch=batch), primary=Deadly(primary.broker, die), source=source.broker
    )
    await lab.nursery.start(mortal.run)
    await died.wait()


async def test_a_syphon_that_dies_at_one_message_again_and_again_moves_the_others(lab):
    batch, others = 10, [f"m{number}" for number in range(40)]
    await lab.divert(message("deadly"), *map(message, others))
    await lab.divert(message("bill"), entity=BILLS)
    for _ in range(25):
        await die_at_the_message(lab, batch)
        await trio.sleep(1.0)  # and it is started again

    moved = await lab.primary.ids()
    parked = await lab.secondary.ids(QUEUE.dead_letter)
    await lab.syphon()
    await backlog_is_empty(lab)

    assert "deadly" not in moved
    assert len(moved) > len(others) - batch
    assert await lab.primary.ids(BILLS) == ["bill"]
    assert parked == []
    assert sorted(await lab.primary.ids()) == sorted(["deadly", *others])


async def test_a_consumer_that_abandons_a_message_for_ever_delays_no_other(lab):
    pair = await lab.pair()
    await lab.syphon(standings=pair.standings)
    lab.primary.fail(Refuse(), Operation.SEND, times=1)
    for name in ("poison", "m1", "m2"):
        await send(pair, message(name))()
    await backlog_is_empty(lab)

    taken = []
    async with lab.primary.store.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(HOUR):
            while True:
                for delivery in await receiver.receive(10):
                    poison = delivery.message.message_id == "poison"
                    taken += [] if poison else [delivery.message.message_id]
                    await receiver.settle(delivery, Abandon() if poison else Complete())

    assert sorted(taken) == ["m1", "m2"]
    assert await lab.primary.ids(ORDERS.dead_letter) == ["poison"]
    assert await lab.primary.ids() == []
    assert pair.standings.state_of(ORDERS) is State.PRIMARY
