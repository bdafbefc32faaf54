"""A delivery that one process of a gateway with workers holds is settled at another one."""

import random
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.errors import HolderSilent, LockLost
from gateway.domain.message import Complete
from gateway.extensions.cluster.options import ALONE
from gateway.extensions.cluster.peer import Peer
from gateway.extensions.cluster.requests import SettleHeld
from tests.extensions.cluster.gateways import (
    ADDRESSES,
    ORDERS,
    Collected,
    Network,
    Node,
    open_network,
)

ONE, TWO, _ = ADDRESSES
PARENT, FIRST, SECOND = range(3)


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with open_network() as network:
        yield network


async def left(network: Network) -> int:
    return (await network.broker.inspect(ORDERS)).active or 0


async def token_of(node: Node) -> str:
    token = (await node.received()).lock_token
    assert token is not None
    return token


PLACES = [
    (holder, asked) for holder in (PARENT, FIRST, SECOND) for asked in (PARENT, FIRST, SECOND)
]


@pytest.mark.parametrize("address", [ONE, ALONE], ids=["in a cluster", "alone"])
@pytest.mark.parametrize(("holder", "asked"), PLACES)
async def test_each_process_renews_and_settles_for_each_other_one(
    network: Network, holder: int, asked: int, address: str, autojump_clock: MockClock
) -> None:
    processes = await network.start_workers(address)
    token = await token_of(processes[holder])
    await trio.sleep(40)

    await processes[asked].leases.renew(ORDERS, token)
    await trio.sleep(40)
    await processes[asked].leases.settle(ORDERS, token, Complete())

    assert await left(network) == 2
    for each in processes:
        with pytest.raises(LockLost):
            await each.leases.settle(ORDERS, token, Complete())


@pytest.mark.parametrize("workers_hold", [True, False])
@pytest.mark.parametrize("number", [PARENT, FIRST, SECOND])
async def test_so_do_the_processes_of_another_gateway(
    network: Network, number: int, workers_hold: bool, autojump_clock: MockClock
) -> None:
    one, two = await network.start_workers(ONE), await network.start_workers(TWO)
    holder, asked = (one[number], two[FIRST]) if workers_hold else (two[FIRST], one[number])
    first, second = await token_of(holder), await token_of(holder)

    await asked.leases.renew(ORDERS, first)
    await asked.leases.settle(ORDERS, first, Complete())
    await asked.leases.settle(ORDERS, second, Complete())

    assert await left(network) == 1


async def test_a_worker_that_was_replaced_has_lost_its_locks_at_once(
    network: Network, autojump_clock: MockClock
) -> None:
    processes = await network.start_workers(ONE)
    other = await network.start(TWO)
    tokens = [await token_of(processes[FIRST]) for _ in range(2)]
    await processes[SECOND].leases.settle(ORDERS, tokens[0], Complete())
    await processes[FIRST].kill()
    began = trio.current_time()

    asked = (processes[PARENT], processes[SECOND], other)
    for each in asked:
        with pytest.raises(LockLost, match="worker 1 can't be asked"):
            await each.leases.settle(ORDERS, tokens[1], Complete())
    new = await network.start_process(ONE, FIRST)
    for each in (*asked, new):
        with pytest.raises(LockLost):
            await each.leases.settle(ORDERS, tokens[1], Complete())

    assert trio.current_time() == began
    await processes[SECOND].leases.settle(ORDERS, await token_of(new), Complete())


async def test_a_gateway_with_fewer_workers_than_before_asks_nobody(
    network: Network, autojump_clock: MockClock
) -> None:
    third = await network.start_process(ONE, 3, 3)
    token = await token_of(third)
    processes, other = await network.start_workers(ONE), await network.start(TWO)

    for each in (*processes, other):
        with pytest.raises(LockLost):
            await each.leases.settle(ORDERS, token, Complete())
    assert third.connections == []


async def test_a_parent_whose_workers_dont_run_yet_has_none_of_their_locks(
    network: Network, autojump_clock: MockClock
) -> None:
    """A peer asks as soon as the port of the cluster is open."""
    before = await network.start_process(ONE, FIRST)
    token = await token_of(before)
    parent, other = await network.start_process(ONE, PARENT), await network.start(TWO)
    assert parent.cluster.processes is not None
    parent.cluster.processes.dial = None

    with pytest.raises(LockLost, match="isn't in this cluster"):
        await other.leases.settle(ORDERS, token, Complete())


async def test_a_worker_that_dies_before_it_answers_leaves_the_outcome_unknown(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await network.start_workers(ONE), await network.start_workers(TWO)
    token = await token_of(one[FIRST])
    one[FIRST].hindered.hangs = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_when_asked, one[FIRST])
        with pytest.raises(HolderSilent):
            await two[SECOND].leases.settle(ORDERS, token, Complete())


async def kill_when_asked(node: Node) -> None:
    await node.hindered.asked.wait()
    await node.kill()


async def test_another_gateway_settles_by_a_parent_only_what_that_gateway_holds(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await network.start_workers(ONE), await network.start(TWO)
    held = await token_of(two)
    cluster = one[PARENT].cluster
    peer = Peer(ONE, cluster.options, network.dial, random.Random(1), Collected([]))

    with pytest.raises(LockLost, match="unknown or has expired"):
        await peer.ask(SettleHeld(ORDERS, held, Complete()))
    assert len(one[PARENT].connections) == 1
    assert two.connections == []
