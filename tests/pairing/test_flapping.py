"""An entity whose primary comes and goes fails over a few times, and then stays on the backlog."""

import pytest
import trio

from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from tests.harness.faults import Hang, Refuse
from tests.harness.retained import entries
from tests.pairing.harness import ORDERS, Timed, message, reaches, send, virtual_time

pytestmark = [virtual_time, pytest.mark.slow]

MINUTES = 60.0


async def flap(harness, pair, up, down, seconds=10 * MINUTES):
    """The primary comes and goes under a steady load."""
    end = trio.current_time() + seconds
    fault = Refuse()

    async def harm():
        while trio.current_time() < end:
            harness.primary.fail(fault)
            await trio.sleep(down)
            harness.primary.heal()
            await trio.sleep(up)

    harness.nursery.start_soon(harm)
    number = 0
    while trio.current_time() < end:
        number += 1
        await send(pair, message(f"{number}"))()
        await trio.sleep(0.5)
    harness.primary.heal()


def failovers(harness):
    moves = [(event.before, event.after) for event in harness.events.of(EntityStateChanged)]
    return sum(after == "secondary" and before != "half-open" for before, after in moves)


@pytest.mark.parametrize("interval", [0.0, 2.0, 5.0])
@pytest.mark.parametrize(
    ("up", "down"),
    [(5.0, 5.0), (8.0, 2.0), (15.0, 5.0), (20.0, 20.0), (50.0, 10.0), (60.0, 60.0), (110.0, 10.0)],
)
async def test_ten_minutes_of_flapping_are_four_failovers_at_most(harness, interval, up, down):
    pair = await harness.pair(failover_interval=interval)

    await flap(harness, pair, up, down)

    assert failovers(harness) <= 4


async def test_an_entity_returns_when_its_flapping_is_over(harness):
    pair = await harness.pair(failover_interval=0.0)
    await flap(harness, pair, 5.0, 5.0)

    with Timed() as timed:
        await reaches(pair.states, State.PRIMARY)

    assert timed.seconds <= 350.0


async def test_an_outage_long_after_the_last_one_is_no_flapping(harness):
    pair = await harness.pair(failover_interval=0.0)
    healthy = entries(pair.states)
    await flap(harness, pair, 5.0, 5.0, seconds=60.0)
    await reaches(pair.states, State.PRIMARY)
    await trio.sleep(30 * MINUTES)
    assert entries(pair.states) == healthy  # forgotten, when all of it has decayed
    harness.primary.fail(Hang())
    await send(pair)()
    await trio.sleep(30.0)
    harness.primary.heal()

    with Timed() as timed:
        await reaches(pair.states, State.PRIMARY)

    assert timed.seconds <= 40.0
    assert pair.states.state_of(ORDERS) is State.PRIMARY
