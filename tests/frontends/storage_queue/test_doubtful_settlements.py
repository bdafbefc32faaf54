"""A settlement without an answer is told as the service tells one: as a time-out, and no more."""

from collections.abc import Iterator

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath
from gateway.wire.http.messages import Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.rest import build_request
from tests.frontends.storage_client import Client, code, open_client
from tests.harness.faults import Fault, Hang, LoseAnswer, Operation, Reset, SwallowAnswer

LATER = 100.0  # seconds, after which no lock of the message holds any more
DONE = {"lost": LoseAnswer(), "swallowed": SwallowAnswer()}
NOT_DONE = {"not arrived": Reset(), "never done": Hang()}


@attrs.define(eq=False)
class Trouble:
    """Each settlement meets the fault, as long as there is one."""

    fault: Fault | None

    def meet(self, operation: Operation, entity: EntityPath) -> Fault | None:
        return self.fault if operation is Operation.SETTLE else None


@pytest.fixture(params=[*DONE.values(), *NOT_DONE.values()], ids=[*DONE, *NOT_DONE])
def trouble(request: pytest.FixtureRequest) -> Iterator[Trouble]:
    return Trouble(request.param)


async def deleted(client: Client, message: storage.QueueMessage) -> Response:
    receipt = message.pop_receipt or ""
    delete = storage.DeleteMessage(
        queue="orders", message_id=message.message_id, pop_receipt=receipt
    )
    return await client.send(build_request(delete))


def is_in_doubt(response: Response) -> bool:
    answer = response.status, code(response), response.headers.get("X-Pairgate-Outcome")
    return answer == (500, "OperationTimedOut", "unknown")


async def test_a_deletion_without_an_answer_is_in_doubt(
    trouble: Trouble, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True, fault=trouble.meet) as client:
        await client.put("a")
        [got] = await client.get(hidden=300)

        assert is_in_doubt(await deleted(client, got))


async def test_a_deletion_stays_in_doubt_while_nothing_shows_its_fate(
    trouble: Trouble, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True, fault=trouble.meet) as client:
        await client.put("a")
        [got] = await client.get(hidden=20)
        await deleted(client, got)
        trouble.fault = None
        await trio.sleep(LATER)

        assert is_in_doubt(await deleted(client, got))


async def test_an_update_after_a_deletion_without_an_answer_is_in_doubt(
    trouble: Trouble, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True, fault=trouble.meet) as client:
        await client.put("a")
        [got] = await client.get(hidden=20)
        await deleted(client, got)
        trouble.fault = None
        await trio.sleep(LATER)
        update = storage.UpdateMessage(
            queue="orders",
            message_id=got.message_id,
            pop_receipt=got.pop_receipt or "",
            visibility=60,
        )

        assert is_in_doubt(await client.send(build_request(update)))


async def test_a_deletion_is_told_as_done_once_it_is(autojump_clock: MockClock) -> None:
    trouble = Trouble(Reset())
    async with open_client(leased=True, fault=trouble.meet) as client:
        await client.put("a")
        [got] = await client.get(hidden=300)
        await deleted(client, got)
        trouble.fault = None

        assert (await deleted(client, got)).status == 204
        assert await client.broker.peek(EntityPath("orders")) == []
