"""A process of the simulation dies as a real one does."""

import random

import attrs
import pytest
import trio
import trio.testing

from gateway.brokers.memory import MemoryBroker
from gateway.domain.entity import EntityPath
from gateway.domain.events import LoopPaused
from gateway.pairing.pair import Surroundings
from gateway.pairing.state import BETWEEN_SAVES
from gateway.testing.clocks import VirtualClock
from gateway.testing.sim.names import Names
from gateway.testing.sim.network import Network
from gateway.testing.sim.processes import GatewayProcess, Process, Site
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
def site(heard, nursery):
    rng, clock = random.Random(1), VirtualClock()
    around = Surroundings(clock=clock, rng=rng, new_id=str, observer=heard, measure=len)
    return Site(
        scenario=draw(1),
        primary=MemoryBroker(clock, rng),
        secondary=MemoryBroker(clock, rng),
        around=lambda _: around,
        watch=lambda *_: None,
        home=nursery,
        network=Network(rng=rng, breaking=0.0, until=0.0, on_break=lambda: None),
        names=Names(),
    )


@pytest.fixture
async def process(site, nursery):
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


async def test_a_killed_gateway_saves_nothing_while_its_tasks_end(site, nursery, autojump_clock):
    """What changed less than a pause between two saves ago is unknown to the next life."""
    gateway = GatewayProcess(name="gateway", site=site, syphons=False)
    await nursery.start(gateway.run)
    standings = gateway.pair.standings
    standings.force_over(EntityPath("early"))
    await trio.sleep(2 * BETWEEN_SAVES)
    standings.force_over(EntityPath("late"))
    gateway.kill()
    gateway.revive()
    await trio.testing.wait_all_tasks_blocked()

    assert gateway.pair.standings is not standings
    assert gateway.saved_standings() == {"early": "pinned"}
