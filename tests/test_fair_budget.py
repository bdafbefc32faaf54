import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from gateway.fair_budget import FairBudget
from tests.harness.retained import entries


async def at_once(budget, owner, size):
    return await budget.acquire(owner, size, trio.current_time())


async def test_a_request_larger_than_the_budget_is_served_alone(autojump_clock):
    budget = FairBudget(10, 10)

    assert await at_once(budget, "a", 100)
    assert not await budget.acquire("b", 1, trio.current_time() + 1.0)
    budget.release("a", 100)
    assert await at_once(budget, "b", 1)
    assert not await at_once(budget, "a", 100)


async def test_requests_are_served_in_their_order_and_may_leave(autojump_clock):
    budget, got = FairBudget(10, 10), []
    assert await at_once(budget, "first", 10)

    async def wait(name, size):
        with trio.move_on_after(5 if name == "leaves" else 100):
            assert await budget.acquire(name, size, math.inf)
            got.append(name)

    async with trio.open_nursery() as nursery:
        for name, size in (("leaves", 10), ("large", 8), ("small", 2), ("late", 1)):
            nursery.start_soon(wait, name, size)
            await wait_all_tasks_blocked()
        await trio.sleep(10)
        budget.release("first", 10)
        await wait_all_tasks_blocked()
        assert sorted(got) == ["large", "small"]
        budget.release("small", 2)

    assert got[-1] == "late"
    assert budget.acquired == 9


async def test_a_small_request_of_another_doesnt_overtake_a_large_one(autojump_clock, nursery):
    budget = FairBudget(10, 10)
    assert await at_once(budget, "first", 5)

    nursery.start_soon(budget.acquire, "large", 8, math.inf)
    await wait_all_tasks_blocked()

    assert not await at_once(budget, "small", 1)
    budget.release("first", 5)
    assert budget.owned_by("large") == 8


async def test_an_owner_at_its_share_waits_for_its_own_and_others_go_first(autojump_clock, nursery):
    budget = FairBudget(10, 4)
    assert await at_once(budget, "many", 3)
    nursery.start_soon(budget.acquire, "many", 2, math.inf)
    await wait_all_tasks_blocked()
    nursery.start_soon(budget.acquire, "many", 1, math.inf)  # behind the other one, though it fits
    await wait_all_tasks_blocked()

    assert await at_once(budget, "few", 4)
    assert budget.owned_by("many") == 3
    budget.release("many", 3)
    assert budget.owned_by("many") == 3
    assert budget.acquired == 7


@pytest.mark.parametrize(("own", "others", "size", "fits"), [
    (0, 0, 10, True),
    (0, 0, 11, False),
    (0, 6, 4, True),
    (0, 6, 5, False),
    (2, 4, 2, True),
    (2, 4, 3, False),
])  # fmt: skip
def test_without_a_share_an_owner_has_what_it_leaves_for_the_others(own, others, size, fits):
    budget = FairBudget(10)
    budget.add("a", own)
    budget.add("b", others)

    assert budget.leaves_room("a", size) is fits


async def test_a_request_that_is_cancelled_holds_nothing(autojump_clock):
    budget = FairBudget(10, 10)
    assert await at_once(budget, "a", 10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.acquire, "b", 5, math.inf)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    budget.release("a", 10)

    assert budget.acquired == 0
    assert entries(budget) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.booleans()), max_size=30))
def test_no_request_waits_when_nothing_is_acquired(steps):
    """A budget of which nothing is acquired any more has no memory of its owners."""

    async def main():
        budget, held = FairBudget(10, 5), []
        async with trio.open_nursery() as nursery:

            async def hold(owner, size):
                if await budget.acquire(owner, size, math.inf):
                    held.append((owner, size))

            for owner, size, releases in steps:
                nursery.start_soon(hold, owner, size)
                await wait_all_tasks_blocked()
                if releases and held:
                    budget.release(*held.pop(0))
                    await wait_all_tasks_blocked()
            while held:
                budget.release(*held.pop(0))
                await wait_all_tasks_blocked()
        assert budget.acquired == 0
        assert entries(budget) == 0

    trio.run(main)
