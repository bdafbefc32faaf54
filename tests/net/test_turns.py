"""The order of work among clients."""

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.net.turns import LONGEST, MOST_BYTES, RECENT, Contention, Line, Turn

SHARE = 4


class Client:
    """It takes turns, and notes them."""

    def __init__(self, contention: Contention) -> None:
        self.line = Line(contention)
        self.turns: list[Turn] = []

    async def take(self, size: int = 0, count: int = 1) -> None:
        self.turns.append(await self.line.take(size, count))


@pytest.fixture
def clients() -> tuple[Client, Client]:
    contention = Contention(SHARE)
    return Client(contention), Client(contention)


async def test_a_single_client_is_not_held_back(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    one, _ = clients
    with trio.fail_after(0.01):
        for _ in range(100):
            await one.take(MOST_BYTES)


async def test_beside_another_client_each_has_its_share(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    two.turns.pop().end()
    for _ in range(10):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    assert len(one.turns) == SHARE

    with trio.fail_after(0.01):
        await two.take()  # however many wait
    one.turns[1].end()
    await wait_all_tasks_blocked()

    assert len(one.turns) == SHARE + 1


async def test_a_large_request_goes_alone(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    for _ in range(3):
        nursery.start_soon(one.take, 2 * MOST_BYTES)
    await wait_all_tasks_blocked()
    assert len(one.turns) == 1

    one.turns[0].end()
    await wait_all_tasks_blocked()

    assert len(one.turns) == 2


async def test_a_request_that_takes_long_counts_no_more(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A namespace that hangs for one entity must not hold up the client's other entities."""
    one, two = clients
    await two.take()
    for _ in range(SHARE):
        await one.take()

    with trio.fail_after(3 * LONGEST):
        await one.take()
    for turn in one.turns:
        turn.end()

    assert one.line.is_idle


async def test_a_client_that_is_alone_again_is_not_held_back(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    await trio.sleep(RECENT + 0.1)

    with trio.fail_after(0.01):
        for _ in range(10):
            await one.take()


async def test_who_is_cancelled_leaves_the_line(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    for _ in range(SHARE):
        await one.take()
    with trio.CancelScope() as scope:
        nursery.start_soon(one.take)
        await wait_all_tasks_blocked()
        scope.cancel()
        await one.take()
    assert scope.cancelled_caught
    for turn in list(one.turns):
        turn.end()
    await wait_all_tasks_blocked()

    assert len(one.turns) == SHARE + 1  # the other one that waited
    one.turns[-1].end()
    assert one.line.is_idle


@pytest.mark.parametrize("seed", range(20))
async def test_everyone_gets_a_turn_and_nothing_is_left_over(
    seed: int, clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    done = 0

    async def request(client: Client, size: int, begins: float, takes: float) -> None:
        nonlocal done
        await trio.sleep(begins)
        turn = await client.line.take(size, rng.choice((1, 1, 2, 10)))
        await trio.sleep(takes)
        turn.end()
        done += 1

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(
                    request,
                    rng.choice(clients),
                    rng.choice((0, 100, MOST_BYTES)),
                    rng.random(),
                    rng.choice((0.0, 0.01, 0.5)),
                )

    assert done == 200
    assert all(client.line.is_idle for client in clients)
