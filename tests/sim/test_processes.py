"""A process of the simulation dies as a real one does."""

import random

import attrs
import pytest
import trio

from gateway.brokers.memory import MemoryBroker
from gateway.domain.events import LoopPaused
from gateway.pairing.pair import Surroundings
from gateway.testing.clocks import VirtualClock
from gateway.testing.sim.names import Names
from gateway.testing.sim.network import Network
from gateway.testing.sim.processes import Process, Site
from gateway.testing.sim.seeds import draw

BEGAN, ENDED = LoopPaused(seconds=1.0), LoopPaused(seconds=2.0)


@attrs.define(eq=False, kw_only=True)
class Talker(Process):
    """Tells when a life begins, and when its last task ends."""

    async def live(self, around, primary, secondary, *, task_status):
        around.observer.report(BEGAN)
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            around.observer.report(ENDED)


@attrs.define
class Heard:
    events: list = attrs.field(factory=list)

    def report(self, event):
        self.events.append(event)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
async def process(heard, nursery):
    rng, clock = random.Random(1), VirtualClock()
    around = Surroundings(clock=clock, rng=rng, new_id=str, observer=heard, measure=len)
    site = Site(
        scenario=draw(1),
        primary=MemoryBroker(clock, rng),
        secondary=MemoryBroker(clock, rng),
        around=lambda _: around,
        watch=lambda *_: None,
        home=nursery,
        network=Network(rng=rng, breaking=0.0, until=0.0, on_break=lambda: None),
        names=Names(),
    )
    process = Talker(name="gateway", site=site)
    await nursery.start(process.run)
    return process


async def test_a_killed_process_tells_nothing_while_its_tasks_end(process, heard, autojump_clock):
    process.kill()
    await trio.testing.wait_all_tasks_blocked()

    assert heard.events == [BEGAN]


async def test_a_process_that_lives_again_is_heard_again(process, heard, autojump_clock):
    process.kill()
    process.revive()
    await trio.testing.wait_all_tasks_blocked()

    assert heard.events == [BEGAN, BEGAN]
