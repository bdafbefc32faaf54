"""Order is kept while an entity moves: that of ordered entities, and of sessions."""

from typing import Any

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import SessionLockLost
from gateway.domain.message import Complete
from tests.extensions.move.stand import SESSIONS, Gateway, MoveStand
from tests.pairing.harness import Harness, message, virtual_time

pytestmark = virtual_time
JOBS = EntityPath("jobs")


@pytest.fixture
async def stand(harness: Harness) -> MoveStand:
    stand = await MoveStand.make(harness)
    await harness.primary.store.create_queue(JOBS, SESSIONS)
    return stand


async def test_receivers_get_the_new_sides_messages_after_the_old_ones(stand: MoveStand) -> None:
    gateway = await stand.gateway(keeps_order=True)
    await gateway.send("a", "b")
    await gateway.order("start")
    await gateway.until("to-new")
    await gateway.send("c", "d")
    await trio.sleep(60)
    unmoved = await stand.ids()

    received = await gateway.receive(4)

    assert unmoved == (["a", "b"], ["c", "d"])
    assert received == ["a", "b", "c", "d"]


async def test_a_message_that_a_receiver_holds_keeps_back_those_of_the_new_side(
    stand: MoveStand,
) -> None:
    gateway = await stand.gateway(keeps_order=True)
    await gateway.send("a")
    found: list[Any] = []
    async with gateway.pair.broker.open_receiver(EntityPath("orders")) as receiver:
        [held] = await receiver.receive(1)
        await gateway.order("start")
        await gateway.until("to-new")
        await gateway.send("b")
        with trio.move_on_after(40):
            found += await receiver.receive(1)
        early = list(found)
        await receiver.settle(held, Complete())
        with trio.fail_after(60):
            found += await receiver.receive(1)

    assert early == []
    assert [each.message.message_id for each in found] == ["b"]


async def test_a_roll_back_waits_until_the_old_side_is_empty(stand: MoveStand) -> None:
    gateway = await stand.gateway(keeps_order=True)
    await gateway.send("a")
    await gateway.order("start")
    await gateway.until("to-new")
    await gateway.send("b")

    await gateway.order("rollback")
    await trio.sleep(30)
    waiting = await gateway.state()
    await gateway.send("c")
    received = await gateway.receive(1)
    await gateway.until("to-old")
    await gateway.send("d")
    received += await gateway.receive(3, 60)
    await gateway.until("old")

    assert (waiting.stage.value, waiting.turns) == ("to-new", True)
    assert received == ["a", "b", "c", "d"]


async def test_a_late_message_of_an_ordered_entity_is_moved_too(stand: MoveStand) -> None:
    gateway = await stand.gateway(keeps_order=True)
    await gateway.order("start")
    await gateway.until("new")

    await stand.put(message("late"))
    await trio.sleep(60)

    assert await stand.ids() == ([], ["late"])


async def test_a_queue_that_requires_sessions_keeps_their_order(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    await _send(gateway, "a", "b")
    await gateway.order("start", "jobs")
    await gateway.until("to-new")
    await _send(gateway, "c")

    assert (await gateway.state()).ordered
    assert await _next_session(gateway, 2) == ["a", "b"]
    assert await _next_session(gateway, 1) == ["c"]


async def test_a_session_is_lost_when_its_entity_has_left_its_side(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    async with gateway.broker.open_session(JOBS, "s") as session:
        await gateway.order("start", "jobs")
        with trio.fail_after(60), pytest.raises(SessionLockLost, match="has moved"):
            await session.receive(1)


async def test_the_state_of_a_session_moves(stand: MoveStand) -> None:
    gateway = await stand.gateway(is_plain=True)
    async with gateway.broker.open_session(JOBS, "s") as session:
        await session.set_state(b"step 3")
    await gateway.order("start", "jobs")
    await gateway.until("new")

    async with gateway.broker.open_session(JOBS, "s") as session:
        assert await session.get_state() == b"step 3"
    async with stand.new.store.open_session(JOBS, "s") as session:
        assert await session.get_state() == b"step 3"


async def _send(gateway: Gateway, *names: str) -> None:
    for name in names:
        await gateway.broker.send(JOBS, [message(name, session_id="s")])


async def _next_session(gateway: Gateway, number: int) -> list[Any]:
    found: list[Any] = []
    with trio.fail_after(60):
        async with gateway.broker.open_session(JOBS, None) as session:
            while len(found) < number:
                for each in await session.receive(5):
                    await session.settle(each, Complete())
                    found.append(each.message.message_id)
    return found
