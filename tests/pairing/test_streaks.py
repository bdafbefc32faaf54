"""A streak of failures must reach the failover interval, however short that is."""

import random
from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown
from gateway.domain.failover import State
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import load_of

ORDERS = EntityPath("orders")
ERROR = OutcomeUnknown("no answer")


@attrs.define
class Heard:
    events: list = attrs.field(factory=list)

    def report(self, event):
        self.events.append(event)


def states(interval):
    return EntityStates(
        options=PairOptions(label="east", failover_interval=interval),
        clock=lambda: datetime.now(UTC),
        observer=Heard(),
        rng=random.Random(1),
    )


async def seconds_until_failed_over(table, attempt_takes):
    """Producers that send all the time to a primary that never answers well."""
    started = trio.current_time()
    with trio.fail_after(600):
        while table.state_of(ORDERS) is not State.SECONDARY:
            healthy = table.state_of(ORDERS) is State.PRIMARY
            if not healthy:
                table.probed(ORDERS)
            attempt = table.begin(ORDERS) if healthy else table.begin_trial(ORDERS)
            if attempt is None:
                await trio.sleep(0.01)
                continue
            await trio.sleep(attempt_takes)
            table.failed(attempt, ERROR)
    return trio.current_time() - started


@pytest.mark.parametrize("interval", [0.0, 0.3, 1.0, 2.0, 5.0, 8.0, 60.0])
@pytest.mark.parametrize("attempt_takes", [0.001, 1.0, 10.0])
async def test_an_entity_fails_over_soon_after_the_interval(
    interval, attempt_takes, autojump_clock
):
    took = await seconds_until_failed_over(states(interval), attempt_takes)

    # The first failure starts the clock, and the trial that ends it may have begun just before.
    longest_pause = min(6.0, interval / 2)
    assert interval <= took <= interval + 2 * attempt_takes + longest_pause + 0.1


async def test_sends_that_fail_together_are_one_failure(autojump_clock):
    rng = random.Random(1)
    load = load_of(MemoryBroker(VirtualClock(), rng))
    backoffs = EntityBackoffs(rng=rng, observer=Heard(), load=load, largest=100)
    rest = Backoff(first=1.0, cap=300.0, jitter=0.0)

    for _ in range(10):  # an attempt for each backlog queue
        backoffs.back_off(ORDERS, rest, "no answer")
    started = trio.current_time()
    await backoffs.wait_until_resumed(ORDERS)
    first = trio.current_time() - started
    backoffs.back_off(ORDERS, rest, "no answer")
    await backoffs.wait_until_resumed(ORDERS)

    assert first == pytest.approx(1.0)
    assert trio.current_time() - started == pytest.approx(3.0)
