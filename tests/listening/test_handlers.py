"""Handlers that block, and the blame when many messages fail."""

import threading
from functools import partial

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Message
from gateway.listening import EndpointDown, Item
from gateway.listening.handlers import PATIENCE, ROW, Blame, handler_of
from tests.harness.retained import entries

ERROR = ValueError("wrong")


def item_of(number: int) -> Item[Message]:
    message = Message(body=b"x")
    delivery = Delivery(message=message, sequence_number=number)
    return Item(value=message, delivery=delivery, queue=EntityPath("orders"))


async def test_a_blocking_handler_runs_in_a_thread() -> None:
    threads = []

    def work(item: Item[Message]) -> None:
        threads.append(threading.current_thread())

    await handler_of(work, threads=1)(item_of(1))

    assert threads[0] is not threading.current_thread()


async def test_an_async_handler_runs_as_it_is() -> None:
    threads = []

    async def work(item: Item[Message], mark: str) -> None:
        threads.append(threading.current_thread())

    await handler_of(partial(work, mark="a"), threads=1)(item_of(1))

    assert threads == [threading.current_thread()]


async def test_no_more_threads_run_than_may() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(item: Item[Message]) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        trio.from_thread.run(trio.sleep, 0.01)
        with lock:
            running -= 1

    handle = handler_of(work, threads=2)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(handle, item_of(number))

    assert most == 2


async def test_a_thread_that_hangs_holds_up_no_cancellation() -> None:
    released = threading.Event()

    def work(item: Item[Message]) -> None:
        released.wait(60.0)

    with trio.move_on_after(0.05) as scope:
        await handler_of(work, threads=1)(item_of(1))
    released.set()

    assert scope.cancelled_caught


def test_one_message_that_fails_again_and_again_is_to_blame_itself() -> None:
    blame = Blame()

    assert all(blame.judge(item_of(1), ERROR) is ERROR for _ in range(100))


def test_message_after_message_that_fails_blames_the_endpoint() -> None:
    blame = Blame()
    found = [blame.judge(item_of(number), ERROR) for number in range(ROW)]

    assert found[:-1] == [ERROR] * (ROW - 1)
    assert isinstance(found[-1], EndpointDown)


def test_a_success_clears_the_endpoint() -> None:
    blame = Blame()
    for number in range(ROW - 1):
        blame.judge(item_of(number), ERROR)
    blame.succeeded()

    assert blame.judge(item_of(ROW), ERROR) is ERROR


def test_a_message_is_excused_a_few_times_only() -> None:
    blame = Blame()
    for number in range(ROW - 1):
        blame.judge(item_of(number), ERROR)
    found = [blame.judge(item_of(99), ERROR) for _ in range(PATIENCE + 1)]

    assert all(isinstance(error, EndpointDown) for error in found[:-1])
    assert found[-1] is ERROR


@pytest.mark.parametrize("messages", [ROW, 10 * ROW])
def test_few_messages_are_remembered(messages: int) -> None:
    blame = Blame()
    for number in range(messages):
        blame.judge(item_of(number), ERROR)

    assert entries(blame) <= ROW
