"""The order of work among clients."""

import random
import time

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.net.turns import (
    BRIEF,
    LIGHT,
    LONGEST,
    MOST_BYTES,
    RECENT,
    REST,
    SOON,
    Contention,
    Line,
    RequestTurn,
)

SHARE = 4


class Client:
    """A client that takes turns, and records them."""

    def __init__(self, contention: Contention, name: str) -> None:
        self.ends = 0  # how often all its requests had ended
        self.line = Line(contention, name, self._note_end)
        self.turns: list[RequestTurn] = []

    def _note_end(self) -> None:
        self.ends += 1

    async def take(self, size: int = 0, count: int = 1) -> None:
        self.turns.append(await self.line.acquire(size, count))


@pytest.fixture
def clients() -> tuple[Client, Client]:
    contention = Contention(SHARE)
    return Client(contention, "one"), Client(contention, "two")


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


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
    two.turns.pop().release()
    await trio.sleep(SOON)
    for _ in range(10):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    assert len(one.turns) == SHARE

    with trio.fail_after(0.01):
        await two.take()  # however many wait
    await trio.sleep(SOON)
    one.turns[1].release()
    await wait_all_tasks_blocked()

    assert len(one.turns) == SHARE + 1


async def test_beside_a_light_client_others_have_as_few_requests(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    two.turns.pop().release()
    for _ in range(10):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    beside = len(one.turns)

    await trio.sleep(1.5 * SOON)  # no other request of `two`

    assert (beside, len(one.turns)) == (LIGHT, SHARE)


async def test_clients_with_many_requests_have_their_shares_beside_each_other(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    for client in clients:
        for _ in range(10):
            nursery.start_soon(client.take)
    await trio.sleep(1.5 * SOON)
    for client in clients:
        client.turns[0].release()
    await wait_all_tasks_blocked()

    assert (len(one.turns), len(two.turns)) == (SHARE + 1, SHARE + 1)


async def test_a_large_request_goes_alone(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    for _ in range(3):
        nursery.start_soon(one.take, 2 * MOST_BYTES)
    await wait_all_tasks_blocked()
    assert len(one.turns) == 1

    one.turns[0].release()
    await wait_all_tasks_blocked()

    assert len(one.turns) == 2


async def test_between_its_steps_a_large_request_waits_for_that_of_a_light_client(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    steps = 0
    await one.take(2 * MOST_BYTES)

    async def work() -> None:
        nonlocal steps
        while True:
            await one.turns[0].give_way()
            steps += 1

    await two.take()
    nursery.start_soon(work)
    await wait_all_tasks_blocked()
    before = steps
    two.turns.pop().release()
    await two.take()  # its next request
    await wait_all_tasks_blocked()

    assert (before, steps) == (0, 1)
    nursery.cancel_scope.cancel()


async def test_a_large_request_goes_on_though_that_of_a_light_client_takes_longer(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    one, two = clients
    await one.take(2 * MOST_BYTES)
    began = trio.current_time()
    await two.take()
    for _ in range(3):
        await one.turns[0].give_way()

    assert trio.current_time() - began == pytest.approx(3 * BRIEF)
    assert one.turns[0].is_beside_light
    await trio.sleep(SOON)
    assert not one.turns[0].is_beside_light
    began = trio.current_time()
    await one.turns[0].give_way()  # `two` waits for something else than this process
    assert trio.current_time() == began


async def test_a_large_request_does_not_wait_for_what_waits_for_a_message(
    autojump_clock: MockClock,
) -> None:
    contention = Contention(SHARE)
    one, two = Client(contention, "one"), Client(contention, "two")
    receives = Line(contention, "two", longest=BRIEF)
    await receives.acquire()
    await one.take(2 * MOST_BYTES)
    await trio.sleep(BRIEF)
    await two.take()
    two.turns.pop().release()  # the light client has work, and nothing that ends soon
    began = trio.current_time()
    await one.turns[0].give_way()

    assert one.turns[0].is_beside_light
    assert trio.current_time() == began


async def test_large_requests_do_not_wait_for_each_other(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    began = trio.current_time()

    async def work(client: Client) -> None:
        await client.take(2 * MOST_BYTES)
        for _ in range(10):
            await client.turns[0].give_way()

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(work, client)

    assert trio.current_time() == began


async def test_requests_with_large_answers_go_one_after_the_other(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The size of an answer is expected from the answers before it."""
    one, two = clients
    for _ in range(20):
        await one.take()
        one.turns.pop().release(MOST_BYTES)
    await two.take()
    for _ in range(3):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    assert len(one.turns) == 1

    one.turns[0].release(MOST_BYTES)
    await wait_all_tasks_blocked()

    assert len(one.turns) == 2


async def test_beside_a_light_client_a_client_rests_for_as_long_as_its_large_answer_took(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await one.take()
    await trio.sleep(SOON / 2)
    await two.take()
    one.turns.pop().release(MOST_BYTES + 1)

    nursery.start_soon(one.take)
    await trio.sleep(SOON / 2 - 0.001)
    assert not one.turns

    await trio.sleep(0.002)
    assert one.turns


async def test_a_client_rests_no_longer_than_a_light_one_counts(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    """An answer that took long has mostly waited for others, not for this process."""
    one, two = clients
    await one.take()
    await trio.sleep(5)
    await two.take()
    one.turns.pop().release(MOST_BYTES + 1)
    began = trio.current_time()

    await one.take()

    assert trio.current_time() == pytest.approx(began + SOON)


def work(seconds: float) -> None:
    """Take the processor for so long."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


async def test_beside_a_light_client_a_client_rests_after_a_request_of_much_work(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    """The light client's last request may be older than `SOON`: it has waited for that work."""
    one, two = clients
    await one.take()
    await one.turns[0].give_way()
    await two.take()
    await trio.sleep(2 * SOON)
    work(2 * SOON)
    one.turns.pop().release()
    began = trio.current_time()

    await one.take()

    assert began + REST * 2 * SOON <= trio.current_time() <= began + LONGEST


@pytest.mark.parametrize("gives_way", [True, False])
async def test_a_client_does_not_rest_after_little_work_of_its_own(
    clients: tuple[Client, Client], autojump_clock: MockClock, gives_way: bool
) -> None:
    one, two = clients
    await one.take()
    if gives_way:
        await one.turns[0].give_way()
    else:
        work(2 * SOON)
    await two.take()
    one.turns.pop().release()
    began = trio.current_time()

    await one.take()

    assert trio.current_time() == began


async def test_without_a_light_client_nobody_rests(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    one, _ = clients
    await one.take()
    await trio.sleep(SOON / 2)
    one.turns.pop().release(MOST_BYTES + 1)
    began = trio.current_time()

    await one.take()

    assert trio.current_time() == began


async def test_small_answers_after_large_ones_give_the_whole_share_again(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await one.take()
    one.turns.pop().release(MOST_BYTES)
    for _ in range(20):
        await one.take()
        one.turns.pop().release(100)
    await two.take()
    await trio.sleep(SOON)
    for _ in range(2 * SHARE):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()

    assert len(one.turns) == SHARE


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
        turn.release()

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


async def test_a_cancelled_task_leaves_the_line(
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
        turn.release()
    await wait_all_tasks_blocked()

    assert len(one.turns) == SHARE + 1  # the other one that waited
    one.turns[-1].release()
    assert one.line.is_idle


async def test_the_next_one_goes_on_when_the_first_of_the_line_is_cancelled(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    await one.take()
    scope = trio.CancelScope()

    async def take_much() -> None:
        with scope:
            await one.take(2 * MOST_BYTES)

    nursery.start_soon(take_much)
    await wait_all_tasks_blocked()
    nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    assert len(one.turns) == 1  # the small one waits behind the large one

    scope.cancel()
    await wait_all_tasks_blocked()

    assert len(one.turns) == 2


async def test_each_that_becomes_the_first_of_the_line_looks_at_the_time(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The waiting requests go on because the turns before them have taken too long to count."""
    one, two = clients
    await two.take()
    for _ in range(5 * SHARE):
        nursery.start_soon(one.take)

    await trio.sleep(9.5 * LONGEST)

    assert len(one.turns) == 5 * SHARE


async def test_requests_that_wait_behind_the_first_one_need_no_processor(
    clients: tuple[Client, Client], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    one, two = clients
    await two.take()
    for _ in range(500):
        nursery.start_soon(one.take)
    await wait_all_tasks_blocked()
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for _ in range(10):
        await trio.sleep(LONGEST)
        await two.take()
    trio.lowlevel.remove_instrument(steps)

    assert len(one.turns) < 100
    assert steps.count < 200  # a timer for each would make about 4,600


async def test_a_client_that_comes_back_is_no_other_client(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    """The client's line was forgotten in between."""
    contention = Contention(SHARE)
    first, again = Client(contention, "one"), Client(contention, "one")
    await first.take()
    first.turns[0].release()

    with trio.fail_after(0.01):
        for _ in range(10):
            await again.take()


async def test_the_end_of_the_last_request_is_told(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    one, _ = clients
    for _ in range(3):
        await one.take()
    one.turns[0].release()
    one.turns[2].release()
    assert one.ends == 0

    one.turns[1].release()

    assert one.ends == 1


@pytest.mark.parametrize("seed", range(20))
async def test_everyone_gets_a_turn_and_nothing_is_left_over(
    seed: int, clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    done = 0

    async def request(client: Client, size: int, begins: float, takes: float) -> None:
        nonlocal done
        await trio.sleep(begins)
        turn = await client.line.acquire(size, rng.choice((1, 1, 2, 10)))
        await trio.sleep(takes)
        turn.release(rng.choice((0, 100, MOST_BYTES)))
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


async def test_a_step_is_as_large_as_the_share_while_another_client_has_work(
    clients: tuple[Client, Client], autojump_clock: MockClock
) -> None:
    one, two = clients
    large = 100, 1024 * 1024
    alone = one.line.step(*large)
    await one.take()
    await two.take()
    beside = one.line.step(*large)
    small = one.line.step(2, 10)
    await trio.sleep(RECENT + 0.1)

    assert alone == large == one.line.step(*large)
    assert (beside, small) == ((SHARE, MOST_BYTES), (2, 10))
    assert Line(Contention(0), "one").step(*large) == large
