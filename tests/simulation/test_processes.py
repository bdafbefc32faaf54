"""A process of the simulation dies as a real one does."""

import random

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import LoopPaused
from gateway.pairing.additions import PairDependencies
from gateway.pairing.state_file import BETWEEN_SAVES
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.simulation.names import Names
from tests.simulation.network import Network
from tests.simulation.processes import GatewayProcess, Installation, Process
from tests.simulation.seeds import draw

BEGAN, ENDED = LoopPaused(seconds=1.0), LoopPaused(seconds=2.0)


@attrs.define(eq=False, kw_only=True)
class Talker(Process):
    """Tells when a life begins, and when its last task ends."""

    async def live(self, dependencies, primary, secondary, *, task_status):
        dependencies.observer.report(BEGAN)
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            dependencies.observer.report(ENDED)


@attrs.define
class Heard:
    events: list = attrs.field(factory=list)

    def report(self, event):
        self.events.append(event)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def installation(heard, nursery):
    rng, clock = random.Random(1), VirtualClock()
    dependencies = PairDependencies(clock=clock, rng=rng, new_id=str, observer=heard, measure=len)
    return Installation(
        scenario=draw(1),
        primary=MemoryBroker(clock, rng),
        secondary=MemoryBroker(clock, rng),
        dependencies=lambda _: dependencies,
        watch=lambda *_: None,
        replaced=lambda *_: None,
        home=nursery,
        network=Network(rng=rng, breaking=0.0, until=0.0, on_break=lambda: None),
        names=Names(),
    )


@pytest.fixture
async def process(installation, nursery):
    process = Talker(name="gateway", installation=installation)
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


async def test_a_killed_gateway_saves_nothing_while_its_tasks_end(
    installation, nursery, autojump_clock
):
    """
    A change of state shortly before the kill is unknown to the next life: it wasn't saved yet.
    """
    gateway = GatewayProcess(name="gateway", installation=installation, syphons=False)
    await nursery.start(gateway.run)
    states = gateway.pair.states
    states.force_over(EntityPath("early"))
    await trio.sleep(2 * BETWEEN_SAVES)
    states.force_over(EntityPath("late"))
    gateway.kill()
    gateway.revive()
    await trio.testing.wait_all_tasks_blocked()

    assert gateway.pair.states is not states
    assert gateway.saved_states() == {"early": "pinned"}
