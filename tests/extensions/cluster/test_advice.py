"""Gateways of a cluster advise each other of the entities that they suspect."""

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.failover import Failover, State
from gateway.extensions.cluster.advice import MOST_UNTOLD
from gateway.pairing.additions import PairPeers
from gateway.pairing.entity_record import SharedState
from gateway.pairing.pair import Pair
from tests.extensions.cluster.gateways import Network, Node
from tests.harness.clocks import START
from tests.harness.faults import Hang
from tests.pairing.harness import BILLS, ORDERS, Harness, message, virtual_time

pytestmark = virtual_time

ADDRESSES = tuple(f"gateway-{number}.test:5680" for number in range(8))
BETWEEN = 20.0  # seconds between two sends of a gateway
STAGGERED = BETWEEN / len(ADDRESSES)


@attrs.frozen
class Gateway:
    node: Node
    pair: Pair

    async def send(self, entity: EntityPath = ORDERS) -> float:
        """Send one message; return the seconds that it took."""
        began = trio.current_time()
        await self.pair.broker.send(entity, [message(f"m{began}")])
        return trio.current_time() - began

    @property
    def state(self) -> State:
        return self.pair.states.state_of(ORDERS)


async def gateways(
    nursery: trio.Nursery, harness: Harness, number: int = 8, *, advised: bool = True
) -> list[Gateway]:
    network = Network(nursery, harness.primary.store)
    found = []
    for address in ADDRESSES[:number]:
        node = await network.start(address, peers=ADDRESSES[:number])
        advice = node.cluster.advice
        peers = PairPeers(tell=advice.advise, takes_advice=True) if advised else PairPeers()
        pair = await harness.pair(queues=1, peers=peers)
        if advised:
            node.advise = pair.states.advise
        found.append(Gateway(node, pair))
    return found


async def stalls(number: int, *, advised: bool) -> float:
    """
    The sum of the seconds that sends took longer than usual: each gateway sends seldom, and the
    primary freezes.
    """
    async with trio.open_nursery() as nursery:
        harness = Harness(nursery=nursery)
        await harness.open()
        some = await gateways(nursery, harness, number, advised=advised)
        for each in some:
            assert await each.send() == 0
            await trio.sleep(STAGGERED)
        harness.primary.fail(Hang())
        found = 0.0
        for each in some:
            found += await each.send()
            await trio.sleep(STAGGERED)
        nursery.cancel_scope.cancel()
    return found


async def test_the_stalls_of_eight_gateways_are_hardly_more_than_those_of_one() -> None:
    one = await stalls(1, advised=False)
    alone = await stalls(8, advised=False)
    together = await stalls(8, advised=True)

    assert one > 2
    assert alone == pytest.approx(8 * one, rel=0.1), "the baseline: each finds it out by itself"
    assert together <= 1.5 * one


@attrs.define
class Two:
    harness: Harness
    one: Gateway
    two: Gateway


@pytest.fixture
async def two(nursery: trio.Nursery) -> Two:
    harness = Harness(nursery=nursery)
    await harness.open()
    return Two(harness, *await gateways(nursery, harness, 2))


async def test_a_suspicion_is_told_and_ends_by_the_probes_of_each(two: Two) -> None:
    await two.one.send()
    await two.two.send()
    await trio.sleep(1)
    two.harness.primary.fail(Hang())
    await two.one.send()

    assert two.two.state is State.SUSPECT
    two.harness.primary.heal()
    await trio.sleep(60)

    assert [two.one.state, two.two.state] == [State.PRIMARY, State.PRIMARY]


async def test_a_suspicion_after_the_end_of_the_cluster_is_told_to_nobody(two: Two) -> None:
    """Sends end later than the cluster, when the gateway shuts down."""
    advice = two.one.node.cluster.advice
    async with trio.open_nursery() as ending:
        await ending.start(advice.run)
        ending.cancel_scope.cancel()
    two.harness.primary.fail(Hang())

    await two.one.send()

    assert two.one.state is State.SUSPECT


async def test_own_evidence_wins(two: Two) -> None:
    """The other gateway alone can't reach the primary."""
    await two.two.send()
    states = two.two.pair.states

    assert not states.advise(ORDERS, 0.0, "it began with the last answer")
    await trio.sleep(5)
    await two.two.send()
    assert not states.advise(ORDERS, 3.0, "it began before the last answer")
    assert two.two.state is State.PRIMARY
    await trio.sleep(5)
    assert states.advise(ORDERS, 3.0, "it began after the last answer")
    assert two.two.state is State.SUSPECT
    await trio.sleep(5)
    assert two.two.state is State.PRIMARY, "its own probes were answered"


async def test_advice_on_an_entity_that_isnt_used_here_is_ignored(two: Two) -> None:
    await two.two.send()

    assert not two.two.pair.states.advise(BILLS, 0.0, "advice")
    assert two.two.pair.states.troubled() == []


async def test_advice_isnt_passed_on(two: Two) -> None:
    await two.one.send()
    await two.two.send()
    await trio.sleep(1)

    assert two.two.pair.states.advise(ORDERS, 0.5, "advice")
    await trio.sleep(0.1)

    assert two.one.state is State.PRIMARY


async def test_a_suspicion_of_a_worker_is_told_with_the_start_of_its_send(two: Two) -> None:
    told = list[tuple[EntityPath, float, str]]()
    states = attrs.evolve(two.one.pair.states, tell=lambda *row: told.append(row))
    failover = Failover(state=State.SUSPECT, failing_since=-0.5, last_failure=-0.5)

    states.adopt(SharedState(entity=ORDERS, since=START, reason="no answer", failover=failover))

    assert told == [(ORDERS, trio.current_time() - 2.5, "no answer")]


async def test_a_peer_is_told_of_many_entities_and_the_oldest_are_dropped(
    nursery: trio.Nursery,
) -> None:
    harness = Harness(nursery=nursery)
    await harness.open()
    one, two = await gateways(nursery, harness, 2)
    heard = list[str]()
    two.node.advise = lambda entity, age, reason: heard.append(entity.name)

    for number in range(MOST_UNTOLD + 70):
        one.node.cluster.advice.advise(EntityPath(f"q{number}"), trio.current_time(), "no answer")
    await trio.sleep(1)

    assert heard == [f"q{number}" for number in range(70, MOST_UNTOLD + 70)]


@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_a_gateway_that_is_cut_off_acts_alone(two: Two, how: str) -> None:
    await two.one.send()
    await two.two.send()
    two.two.node.is_up = how == "hanging"
    two.two.node.hangs = how == "hanging"
    await trio.sleep(1)
    two.harness.primary.fail(Hang())

    alone = await two.one.send()
    await trio.sleep(10)

    assert alone < 3
    assert two.two.state is State.PRIMARY
    assert await two.two.send() == pytest.approx(alone, rel=0.1)
    assert two.two.state is not State.PRIMARY
