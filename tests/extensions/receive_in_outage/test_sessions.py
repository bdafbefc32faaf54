"""A session of an entity that is received from at both sides has one receiver."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import Sessions
from gateway.domain.backlog import own_queue
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import SessionLockLost, SessionNotAvailable, Unavailable
from gateway.domain.message import Abandon, Complete
from gateway.extensions.receive_in_outage.queues import SESSIONS_PROPERTIES
from gateway.offering import required
from gateway.pairing.entity_cache import KnownEntity
from tests.extensions.receive_in_outage.stand import AWAY, Stand, complete, take
from tests.harness.faults import Call, Hang, Operation
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.pairing.harness import LABEL, QUEUE, message, virtual_time

pytestmark = virtual_time

ORDERS = EntityPath("orders")
OWN = own_queue(LABEL, ORDERS, sessions=True)
START = datetime.min.replace(tzinfo=UTC)
AT_HOME = QueueProperties(requires_session=True)


@attrs.define(eq=False, kw_only=True)
class ListedSessions(FaultySessionsBroker):
    """The same; its faults meet a list of sessions, too, which simulations draw no numbers for."""

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        listing = partial(
            super().list_sessions, entity, updated_since=updated_since, skip=skip, top=top
        )
        return await self.operate(Call(operation=Operation.MANAGE, entity=entity), listing)


async def made(harness: Any, *, has_queue: bool = True, **options: Any) -> Stand:
    """A pair whose `orders` require sessions, on namespaces that have them."""
    harness.primary = await harness.namespace(kind=ListedSessions)
    harness.secondary = await harness.namespace(kind=ListedSessions)
    await harness.primary.store.create_queue(ORDERS, AT_HOME)
    await harness.secondary.store.create_queue(QUEUE, QueueProperties())
    if has_queue:
        await harness.secondary.store.create_queue(OWN, SESSIONS_PROPERTIES)
    stand = await Stand.make(harness, has_queue=False, **options)
    stand.pair.entity_cache.store(KnownEntity(entity=ORDERS, requires_session=True))
    return stand


def in_session(session: str, *ids: str) -> list[Any]:
    return [message(each, session_id=session) for each in ids]


async def test_a_session_is_received_in_the_outage_in_its_order_as_it_was_sent(harness):
    stand = await made(harness)
    stand.lose_primary()
    sent = in_session("s", "1", "2", "3")
    for each in sent:
        await stand.send(each)
    async with stand.broker.open_session(ORDERS, None) as session:
        found = await take(session, 3)
        for each in found:
            await session.settle(each, Complete())

    assert session.session_id == "s"
    assert [each.message for each in found] == sent
    assert await harness.secondary.ids(OWN) == []
    assert stand.done == [1, 1, 1]


async def test_a_session_in_the_outage_keeps_its_order_when_a_receive_is_cancelled_at_its_end(
    harness,
):
    stand = await made(harness)
    stand.lose_primary()
    for each in in_session("s", "1", "2", "3"):
        await stand.send(each)
    async with stand.broker.open_session(ORDERS, None) as session:
        with trio.CancelScope() as receiving:
            harness.secondary.broker.watch = lambda _: receiving.cancel()
            await session.receive(2)

        assert receiving.cancelled_caught
        assert await complete(session, 3) == ["1", "2", "3"]


async def test_a_named_session_is_received_in_the_outage(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1"))
    await stand.send(*in_session("t", "2"))
    async with stand.broker.open_session(ORDERS, "t") as session:
        assert await complete(session, 1) == ["2"]


@pytest.mark.parametrize("fault", [AWAY, Hang()], ids=["refuses", "hangs"])
async def test_a_session_is_there_within_seconds_of_the_outage(harness, fault):
    stand = await made(harness, attempt_timeout=3.0)
    harness.primary.fail(fault)
    await stand.send(*in_session("s", "1"))
    with trio.fail_after(3.0):
        async with stand.broker.open_session(ORDERS, None) as session:
            assert await complete(session, 1) == ["1"]


async def test_a_session_in_the_outage_has_one_receiver(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1", "2"))
    async with stand.broker.open_session(ORDERS, "s"):
        with pytest.raises(SessionNotAvailable):
            async with stand.broker.open_session(ORDERS, "s"):
                raise AssertionError("locked twice")


@pytest.mark.parametrize("wanted", ["s", None])
async def test_a_session_that_was_accepted_in_the_outage_isnt_given_to_another_after_it(
    harness, wanted
):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1", "2"))
    async with stand.broker.open_session(ORDERS, "s") as session:
        await take(session, 1)
        harness.primary.heal()
        await harness.primary.store.send(ORDERS, in_session("s", "new"))
        with trio.move_on_after(10.0) as waiting:
            with pytest.raises(SessionNotAvailable):
                async with stand.broker.open_session(ORDERS, wanted):
                    raise AssertionError("served at both sides")
    async with stand.broker.open_session(ORDERS, None) as session:
        assert session.session_id == "s"

    assert waiting.cancelled_caught is (wanted is None)


@pytest.mark.parametrize("wanted", ["s", None])
async def test_a_session_that_was_accepted_before_the_outage_isnt_given_to_another_in_it(
    harness, wanted
):
    stand = await made(harness, attempt_timeout=3.0)
    await stand.send(*in_session("s", "0"))
    async with stand.broker.open_session(ORDERS, "s") as session:
        assert await complete(session, 1) == ["0"]
        harness.primary.fail(Hang())  # its receiver hears nothing of that
        await stand.send(*in_session("s", "1", "2"))
        assert await complete(session, 1) == ["1"]
        with trio.move_on_after(10.0) as waiting:
            with pytest.raises(SessionNotAvailable):
                async with stand.broker.open_session(ORDERS, wanted):
                    raise AssertionError("served at both sides")

    assert waiting.cancelled_caught is (wanted is None)


async def test_a_session_has_the_messages_of_both_sides_after_the_outage(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1", "2"))
    harness.primary.heal()
    await harness.primary.store.send(ORDERS, in_session("s", "3", "4"))
    async with stand.broker.open_session(ORDERS, None) as session:
        await session.renew_session()
        got = await complete(session, 4)

    assert sorted(got) == ["1", "2", "3", "4"]
    assert [each for each in got if each in "12"] == ["1", "2"]
    assert [each for each in got if each in "34"] == ["3", "4"]
    assert stand.done == [1, 1]
    assert await harness.secondary.ids(OWN) == []
    assert await harness.primary.ids(ORDERS) == []


@pytest.mark.parametrize("away", [False, True])
async def test_a_message_of_a_session_that_goes_back_comes_before_later_ones(harness, away):
    stand = await made(harness)
    if away:
        stand.lose_primary()
    for each in in_session("s", "1", "2", "3"):
        await stand.send(each)
    async with stand.broker.open_session(ORDERS, None) as session:
        [first] = await session.receive(1)
        with trio.CancelScope() as receiving:
            side = harness.secondary if away else harness.primary
            side.broker.watch = lambda _: receiving.cancel()
            await session.receive(2)
        assert receiving.cancelled_caught
        await session.settle(first, Abandon())

        assert await complete(session, 3) == ["1", "2", "3"]


async def test_a_session_outlives_an_outage_of_the_secondary(harness):
    stand = await made(harness)
    async with stand.broker.open_session(ORDERS, "s") as session:
        harness.secondary.fail(AWAY)
        await stand.send(*in_session("s", "1"))
        await session.renew_session()
        assert await complete(session, 1) == ["1"]
        async with stand.broker.open_session(ORDERS, "t") as other:
            assert other.session_id == "t"


async def test_a_session_goes_home_once_the_primary_is_back_and_its_messages_are_settled(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1", "2"))
    async with stand.broker.open_session(ORDERS, None) as session:
        first = await take(session, 1)
        harness.primary.heal()
        await harness.primary.store.send(ORDERS, in_session("s", "new"))
        second = await take(session, 1)
        with trio.move_on_after(30.0) as holding:
            await session.receive(1)
        for each in (*first, *second):
            await session.settle(each, Complete())
        with pytest.raises(SessionLockLost, match="goes on at the primary"), trio.fail_after(3.0):
            await session.receive(1)
    async with stand.broker.open_session(ORDERS, None) as session:
        assert await complete(session, 1) == ["new"]

    assert holding.cancelled_caught
    assert await harness.secondary.ids(OWN) == []


async def test_a_session_that_nobody_received_comes_home_beside_one_that_is_received(harness):
    stand = await made(harness)
    stand.lose_primary()
    sent = [*in_session("s", "1", "2"), *in_session("t", "3")]
    for each in sent:
        await stand.send(each)
    await trio.sleep(30.0)
    harness.primary.heal()
    async with stand.broker.open_session(ORDERS, "s") as session:
        await harness.syphon()
        assert await complete(session, 2) == ["1", "2"]
    await trio.sleep(10.0)

    assert await harness.primary.messages() == in_session("t", "3")
    assert await harness.secondary.ids(OWN) == []


@pytest.mark.parametrize("fault", [AWAY, Hang()], ids=["refuses", "hangs"])
async def test_a_syphon_holds_no_session_while_the_primary_is_away(harness, fault):
    stand = await made(harness)
    await harness.syphon()
    await trio.sleep(1.0)
    harness.primary.fail(fault)
    for number in range(20):
        await stand.send(*in_session(f"s{number}", str(number)))
    await trio.sleep(60.0)
    with trio.fail_after(15.0):  # a primary that hangs costs each of them half a second
        async with AsyncExitStack() as stack:
            found = {
                (await stack.enter_async_context(stand.broker.open_session(ORDERS, f"s{number}")))
                for number in range(20)
            }

    assert len({each.session_id for each in found}) == 20


async def test_receivers_and_a_syphon_share_sessions_and_each_message_has_one_owner(harness):
    stand = await made(harness)
    stand.lose_primary()
    for number in range(100):
        await stand.send(*in_session(f"s{number % 7}", str(number)))
    got = list[tuple[str, int]]()

    async def consume() -> None:
        while True:
            try:
                async with stand.broker.open_session(ORDERS, None) as session:
                    while True:
                        with trio.move_on_after(2.0) as patience:
                            for delivery in await session.receive(5):
                                await trio.sleep(0.02)
                                await session.settle(delivery, Complete())
                                got.append((session.session_id, int(delivery.message.message_id)))
                        if patience.cancelled_caught:
                            break
            except SessionLockLost:
                continue

    for _ in range(2):
        harness.nursery.start_soon(consume)
    await trio.sleep(0.5)
    harness.primary.heal()
    await harness.syphon()
    await trio.sleep(300.0)

    assert sorted(number for _, number in got) == list(range(100))
    for session in {session for session, _ in got}:
        numbers = [number for name, number in got if name == session]
        assert numbers == sorted(numbers)


async def test_the_list_of_sessions_has_both_sides(harness):
    stand = await made(harness)
    sessions = required(stand.broker, Sessions)
    await stand.send(*in_session("b", "1"))
    await stand.send(*in_session("d", "2"))
    stand.lose_primary()
    with pytest.raises(Unavailable):
        await sessions.list_sessions(ORDERS)
    for name in ("a", "b", "c"):
        await stand.send(*in_session(name, name))

    assert await sessions.list_sessions(ORDERS) == ["a", "b", "c"]
    harness.primary.heal()
    assert await sessions.list_sessions(ORDERS) == ["a", "b", "c", "d"]
    assert await sessions.list_sessions(ORDERS, skip=1, top=2) == ["b", "c"]
    harness.secondary.fail(AWAY)
    assert await sessions.list_sessions(ORDERS) == ["b", "d"]


async def test_the_list_of_sessions_by_their_states_is_the_primarys(harness):
    stand = await made(harness)
    sessions = required(stand.broker, Sessions)
    async with stand.broker.open_session(ORDERS, "s") as session:
        await session.set_state(b"one")
    stand.lose_primary()
    await stand.send(*in_session("t", "1"))
    with pytest.raises(Unavailable):
        await sessions.list_sessions(ORDERS, updated_since=START)
    harness.primary.heal()
    assert await sessions.list_sessions(ORDERS, updated_since=START) == ["s"]


async def test_the_state_of_a_session_is_the_primarys(harness):
    stand = await made(harness)
    async with stand.broker.open_session(ORDERS, "s") as session:
        await session.set_state(b"one")
    stand.lose_primary()
    await stand.send(*in_session("s", "1"))
    async with stand.broker.open_session(ORDERS, None) as session:
        with pytest.raises(Unavailable, match="is at the primary"):
            await session.get_state()
    harness.primary.heal()
    async with stand.broker.open_session(ORDERS, None) as session:
        assert await complete(session, 1) == ["1"]
        assert await session.get_state() == b"one"


async def test_the_queue_for_sessions_is_made_before_the_outage(harness):
    await made(harness, has_queue=False)
    await trio.sleep(1.0)

    [info] = await harness.secondary.store.list_queues(OWN.name)
    assert info.requires_session


async def test_a_session_that_nobody_knows_to_be_required_waits_on_the_usual_backlog(harness):
    stand = await made(harness)
    stand.pair.entity_cache.remove(ORDERS)
    stand.lose_primary()
    await stand.send(*in_session("s", "1"))

    assert await harness.secondary.ids(OWN) == []
    assert await harness.secondary.ids(QUEUE) == ["1"]


async def test_peeks_and_counts_have_the_messages_of_sessions(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1"))
    harness.primary.heal()

    assert [each.message for each in await stand.broker.peek(ORDERS)] == in_session("s", "1")
    assert (await stand.broker.inspect(ORDERS)).active == 1


async def test_a_message_that_was_put_into_another_session_is_dead_lettered(harness):
    stand = await made(harness)
    stand.lose_primary()
    await stand.send(*in_session("s", "1"))
    async with harness.secondary.store.open_session(OWN, None) as session:
        [delivery] = await session.receive(1)
        await session.settle(delivery, Complete())
    moved = attrs.evolve(delivery.message, session_id="t")
    await harness.secondary.store.send(OWN, [moved])
    async with stand.broker.open_session(ORDERS, None) as session:
        with trio.move_on_after(5.0):
            await session.receive(1)

    assert (await harness.secondary.store.inspect(OWN)).dead_lettered == 1
