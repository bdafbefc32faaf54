"""Calls go on in the order in which they were made, also if some of them are cancelled."""

from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.changes import Turns


async def test_calls_of_one_key_go_on_in_their_order(nursery, autojump_clock):
    turns, gone = Turns(), []

    async def call(number, seconds):
        with turns.acquire("a") as turn:
            await trio.sleep(seconds)
            await turn.come()
            gone.append(number)

    for number, seconds in enumerate([3.0, 1.0, 2.0, 0.0]):
        nursery.start_soon(call, number, seconds)
        await wait_all_tasks_blocked()
    await trio.sleep(4.0)

    assert gone == [0, 1, 2, 3]


async def test_a_call_that_is_cancelled_while_it_waits_lets_nobody_pass(nursery, autojump_clock):
    turns, gone, scope = Turns(), [], trio.CancelScope()

    async def call(number):
        with turns.acquire("a") as turn:
            await turn.come()
            gone.append(number)

    async def cancelled():
        with scope:
            await call("cancelled")

    first = turns.acquire("a")
    nursery.start_soon(cancelled)
    await wait_all_tasks_blocked()
    nursery.start_soon(call, 1)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    nursery.start_soon(call, 2)
    await wait_all_tasks_blocked()
    before = list(gone)
    first.release()
    await wait_all_tasks_blocked()

    assert (before, gone) == ([], [1, 2])


async def test_the_last_call_that_is_cancelled_lets_nobody_pass(nursery, autojump_clock):
    turns, gone = Turns(), []

    async def call(turn):
        with turn:
            await turn.come()
            gone.append(turn)

    first, last = turns.acquire("a"), turns.acquire("a")
    last.release()  # without having come
    nursery.start_soon(partial(call, turns.acquire("a")))
    await wait_all_tasks_blocked()
    before = list(gone)
    first.release()
    await wait_all_tasks_blocked()

    assert (before, len(gone)) == ([], 1)


async def test_other_keys_and_calls_without_one_do_not_wait(autojump_clock):
    turns = Turns()
    turns.acquire("a")

    with trio.fail_after(1.0):
        for turn in (turns.acquire("b"), turns.acquire(None)):
            await turn.come()


async def test_a_turn_that_begins_after_all_others_have_ended_waits_for_none(autojump_clock):
    turns = Turns()
    first, second, third = (turns.acquire("a") for _ in range(3))

    for turn in (second, third, first):
        turn.release()

    assert turns.acquire("a").before is None
