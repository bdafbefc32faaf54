"""An endpoint `storage-queue` before a namespace in Azure Storage, as its clients see it."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.message import Message
from gateway.domain.storage_queue import Terms
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.storage_queue.notes import LastNotes
from gateway.wire.http.messages import Request, Response
from tests.brokers.storage_queue.harness import ORDERS, Harness, harness


@attrs.define(eq=False)
class Leased:
    account: Harness
    visibility: LeasedVisibility

    async def take(self, limit: int = 1) -> list[Any]:
        terms = Terms(hidden=timedelta(seconds=30), poison_after=None)
        return list(await self.visibility.dequeue(ORDERS, limit, lambda _: terms))


@pytest.fixture
async def leased(autojump_clock: MockClock) -> AsyncIterator[Leased]:
    async with harness() as here, trio.open_nursery() as nursery:
        await here.broker.create_queue(ORDERS, QueueProperties(user_metadata="says"))
        await here.broker.send(ORDERS, [Message(body=b"%d" % number) for number in range(3)])
        leases = Leases(here.broker, here.clock)
        await nursery.start(leases.run)
        visibility = LeasedVisibility(here.broker, leases, here.clock)
        await nursery.start(visibility.run)
        yield Leased(here, visibility)
        nursery.cancel_scope.cancel()


def answers_after(seconds: float) -> Any:
    async def fault(request: Request, handle: Any) -> Response:
        response: Response = await handle(request)
        await trio.sleep(seconds)
        return response

    return fault


async def test_an_account_that_answers_late_delivers_all_the_same(
    leased: Leased, autojump_clock: MockClock
) -> None:
    leased.account.account.fault = answers_after(1.5)

    (taken,) = await leased.take()

    assert taken.delivery.delivery_count == 1


async def test_a_client_that_gives_up_leaves_its_messages_to_the_next(
    leased: Leased, autojump_clock: MockClock
) -> None:
    leased.account.account.fault = answers_after(1.5)
    with trio.move_on_after(5):  # in the fourth request; the others read properties
        await leased.take(3)
    for _ in range(6):
        with trio.move_on_after(1.0):
            taken = await leased.take(3)
            break

    assert [each.delivery.delivery_count for each in taken] == [1, 1, 1]


async def test_an_empty_queue_is_asked_once(leased: Leased, autojump_clock: MockClock) -> None:
    await leased.take(3)
    asked, began = leased.account.account.count("GET", "/messages"), trio.current_time()

    assert await leased.take() == []
    assert leased.account.account.count("GET", "/messages") == asked + 1
    assert trio.current_time() == began


async def test_the_notes_of_a_queue_are_read_from_a_slow_account_in_the_end(
    leased: Leased, autojump_clock: MockClock
) -> None:
    leased.account.account.fault = answers_after(1.0)  # two requests
    notes = LastNotes(leased.account.broker)
    found = None
    for _ in range(3):
        with suppress(Unavailable):
            found = await notes.read(ORDERS)

    assert found is not None


async def test_clear_deletes_hidden_messages_too(leased: Leased, autojump_clock: MockClock) -> None:
    (taken,) = await leased.take()

    await leased.visibility.clear(ORDERS)
    await trio.sleep(60)

    assert await leased.take() == []
    assert leased.account.account.count("DELETE", "/messages") == 1, "the account does it"
    assert taken.receipt is not None
