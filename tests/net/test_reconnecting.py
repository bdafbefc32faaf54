"""A lost connection is dialled again after pauses; callers in between get the earlier failure."""

import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, Unavailable
from gateway.net.reconnecting import Failures, Reconnecting


@attrs.define(eq=False)
class Connection:
    is_over: bool = False

    def replaced(self) -> None:
        self.is_over = True


@attrs.define(eq=False)
class Server:
    """Refuses until it is up; each dial takes `seconds`."""

    is_up: bool = False
    seconds: float = 0.0
    dials: list[float] = attrs.field(factory=list)  # when each began
    dialling: int = 0

    async def dial(self) -> Connection:
        self.dials.append(trio.current_time())
        self.dialling += 1
        try:
            await trio.sleep(self.seconds)
        finally:
            self.dialling -= 1
        if not self.is_up:
            raise Unavailable("refused")
        return Connection()

    def connections(self) -> Reconnecting[Connection]:
        failures = Failures(backoff=Backoff(first=0.1, cap=5.0, jitter=0.0), rng=random.Random(0))
        return Reconnecting(
            dial=self.dial, failures=failures, spawn=trio.lowlevel.spawn_system_task
        )


async def refused(get: Callable[[], Awaitable[Connection]]) -> bool:
    try:
        await get()
    except BrokerError:
        return True
    return False


async def paused(server: Server, connections: Reconnecting[Connection]) -> None:
    """Return when the pause has grown to 5 s and has just begun."""
    while len(server.dials) < 8:
        assert await refused(connections.get)
        await trio.sleep(0.01)


async def test_in_the_pause_a_caller_with_another_way_gets_the_last_failure_at_once(
    autojump_clock,
) -> None:
    server = Server()
    connections = server.connections()
    await paused(server, connections)
    server.is_up = True

    assert await refused(connections.get)
    assert len(server.dials) == 8


async def test_a_remembered_failure_says_when_its_dial_began(autojump_clock) -> None:
    server = Server(seconds=0.5)
    connections = server.connections()
    with pytest.raises(Unavailable) as own:
        await connections.get(trio.current_time())
    with pytest.raises(Unavailable) as remembered:
        await connections.get()

    assert (own.value.since, remembered.value.since) == (None, server.dials[0])


async def test_in_the_pause_a_caller_without_another_way_dials(autojump_clock) -> None:
    server = Server()
    connections = server.connections()
    await paused(server, connections)
    server.is_up = True
    asked = trio.current_time()

    connection = await connections.get(since=asked)

    assert not connection.is_over
    assert trio.current_time() - asked <= 0.1


async def test_all_that_wait_for_a_dial_share_it_and_its_failure(autojump_clock) -> None:
    server = Server(seconds=1.0)
    connections = server.connections()
    await paused(server, connections)
    asked = trio.current_time()
    outcomes = []

    async def one() -> None:
        outcomes.append(await refused(lambda: connections.get(since=asked)))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one)

    assert outcomes == [True] * 50
    assert len(server.dials) == 9


async def test_a_dial_that_had_begun_before_speaks_for_nobody_who_came_later_if_it_fails(
    autojump_clock,
) -> None:
    server = Server(seconds=1.0)
    connections = server.connections()
    await paused(server, connections)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused, lambda: connections.get(since=trio.current_time()))
        await trio.sleep(0.5)
        asked = trio.current_time()
        assert await refused(lambda: connections.get(since=asked))

    assert [at >= asked for at in server.dials[-2:]] == [False, True]


async def test_a_dial_that_was_cancelled_speaks_for_nobody(autojump_clock) -> None:
    server = Server(seconds=1.0)
    connections = server.connections()
    await paused(server, connections)
    asked = trio.current_time()

    with trio.move_on_after(0.5):
        await connections.get(since=asked)
    server.is_up = True

    await connections.get(since=asked)


async def test_a_dial_that_takes_longer_than_its_callers_have_goes_on_for_the_next(
    autojump_clock,
) -> None:
    server = Server(is_up=True, seconds=3.0)
    connections = server.connections()
    began = trio.current_time()
    while connections.current is None:
        with trio.move_on_after(1.0):
            await connections.get()
        await trio.sleep(0.1)
        assert server.dialling <= 1

    assert trio.current_time() - began < 4.0
    assert server.dialling == 0


async def test_a_dial_that_hangs_keeps_nobody_from_another_one(autojump_clock) -> None:
    server = Server(is_up=True, seconds=60.0)
    connections = server.connections()
    with trio.move_on_after(1.0):
        await connections.get()
    server.seconds = 0.1
    began = trio.current_time()

    await connections.get()

    assert trio.current_time() - began == pytest.approx(0.1)
    await trio.testing.wait_all_tasks_blocked()
    assert server.dialling == 0  # nobody needs the other any more


async def test_dials_are_ten_a_second_at_most(autojump_clock) -> None:
    server = Server()
    connections = server.connections()
    end = trio.current_time() + 20.0

    async def keep_asking() -> None:
        while trio.current_time() < end:
            await refused(lambda: connections.get(since=trio.current_time()))
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(keep_asking)

    assert min(later - sooner for sooner, later in pairwise(server.dials)) >= 0.1 - 1e-9
    assert len(server.dials) >= 190


async def test_while_somebody_dials_in_the_pause_a_caller_with_another_way_does_not_wait(
    autojump_clock,
) -> None:
    server = Server(seconds=4.0)
    connections = server.connections()
    await paused(server, connections)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused, lambda: connections.get(since=trio.current_time()))
        await trio.sleep(0.5)
        began = trio.current_time()

        assert await refused(connections.get)
        assert trio.current_time() == began


async def test_a_connection_that_was_lost_is_dialled_again_at_once(autojump_clock) -> None:
    server = Server(is_up=True)
    connections = server.connections()
    first = await connections.get()
    first.is_over = True
    lost = trio.current_time()

    assert await connections.get() is not first
    assert trio.current_time() == lost


async def test_a_call_with_a_deadline_waits_no_longer(autojump_clock) -> None:
    server = Server(seconds=60.0)
    connections = server.connections()
    began = trio.current_time()

    with pytest.raises(trio.TooSlowError), trio.fail_after(2.0):
        await connections.get(since=began)

    assert trio.current_time() - began == 2.0
