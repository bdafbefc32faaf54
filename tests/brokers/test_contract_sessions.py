"""The contract of brokers with sessions."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import trio

from gateway.capabilities import PeeksState, ReceivesDeferred, Sessions, SettlesMany, Updates
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    SessionLockLost,
    SessionNotAvailable,
    SessionRequired,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message, ReceiveMode
from gateway.offering import required
from gateway.ports import Broker
from tests.brokers.contract import (
    HELD,
    LOCKED,
    SECOND,
    SHORTLY,
    held_longer,
    ids,
    numbered,
    take,
    take_all,
    take_one,
)
from tests.brokers.contract_sessions import make_sessions, of_session
from tests.brokers.kinds import Capability, needs, waits
from tests.harness.patience import PATIENCE


async def accepted(broker: Any, queue: EntityPath, *sessions: str | None) -> list[str]:
    """
    Accept each session and release it before the next; return the session ids. None: any session.
    """
    found = []
    for session in sessions:
        with trio.fail_after(PATIENCE):
            async with required(broker, Sessions).open_session(queue, session) as receiver:
                found.append(receiver.session_id)
    return found


async def nobody_waits(broker: Any, queue: EntityPath) -> bool:
    """True if no session can be accepted."""
    with trio.move_on_after(SHORTLY):
        async with required(broker, Sessions).open_session(queue, None):
            return False
    return True


async def cancelled_receive(receiver: Any, limit: int, *, checkpoints: int) -> list[Any]:
    """Cancel a receive when other tasks have run so often; return what it has returned before."""
    taken = list[Any]()

    async def receive() -> None:
        taken.extend(await receiver.receive(limit))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return taken


@needs(Capability.SESSIONS)
async def test_a_session_queue_takes_no_message_without_one(broker):
    queue = await make_sessions(broker)
    with pytest.raises(SessionRequired):
        await broker.send(queue, [*of_session("a", 1), *numbered(2)])

    assert (await broker.inspect(queue)).active == 0


@needs(Capability.SESSIONS)
async def test_a_session_queue_has_no_plain_receivers(broker):
    queue = await make_sessions(broker)
    with pytest.raises(SessionRequired):
        async with broker.open_receiver(queue):
            pytest.fail("opened")


@needs(Capability.SESSIONS)
async def test_a_session_of_an_unknown_queue_is_refused_when_it_is_entered(broker):
    with pytest.raises(EntityNotFound):
        async with required(broker, Sessions).open_session(EntityPath("nowhere"), "a"):
            pytest.fail("opened")


@needs(Capability.SESSIONS)
async def test_a_plain_queue_has_no_sessions(broker, orders):
    with pytest.raises(InvalidRequest):
        async with required(broker, Sessions).open_session(orders, "a"):
            pytest.fail("opened")


@needs(Capability.SESSIONS)
async def test_a_receiver_gets_its_session_only_and_in_order(broker):
    queue = await make_sessions(broker)
    for number in range(5):
        await broker.send(queue, [*of_session("a", number), *of_session("b", number)])
    async with required(broker, Sessions).open_session(queue, "b") as receiver:
        taken = await take_all(receiver, 5)

        assert ids(taken) == ["b0", "b1", "b2", "b3", "b4"]
        assert receiver.session_id == "b"
        assert receiver.locked_until > taken[0].enqueued


@needs(Capability.SESSIONS)
async def test_a_session_is_held_by_one_only(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a"):
        with pytest.raises(SessionNotAvailable):
            async with required(broker, Sessions).open_session(queue, "a"):
                pytest.fail("opened twice")
        assert await nobody_waits(broker, queue)

    assert await accepted(broker, queue, "a") == ["a"]


@needs(Capability.SESSIONS)
async def test_the_session_with_the_oldest_message_is_next(broker):
    queue = await make_sessions(broker)
    for session in ("c", "a", "b", "c"):
        await broker.send(queue, of_session(session, 1))

    async with required(broker, Sessions).open_session(queue, None) as first:
        assert first.session_id == "c"
        async with required(broker, Sessions).open_session(queue, None) as second:
            assert second.session_id == "a"
            async with required(broker, Sessions).open_session(queue, None) as third:
                assert third.session_id == "b"
    assert await accepted(broker, queue, None, None) == ["c", "c"]


@needs(Capability.SESSIONS)
async def test_an_empty_session_can_be_held_by_its_name(broker):
    queue = await make_sessions(broker)
    async with required(broker, Sessions).open_session(queue, "") as receiver:
        await broker.send(queue, of_session("", 1))
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())

        assert receiver.session_id == ""
    assert await nobody_waits(broker, queue)


@needs(Capability.SESSIONS)
async def test_messages_of_a_session_are_settled_like_others(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1, 2, 3, 4))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        one, two, three, four = await take_all(receiver, 4)
        await receiver.settle(three, Defer())
        await receiver.settle(two, Abandon())
        await receiver.settle(one, Complete())
        await receiver.settle(four, DeadLetter(reason="bad"))
        [again] = await take(receiver, 4)
        [late] = await required(receiver, ReceivesDeferred).receive_deferred(
            [three.sequence_number]
        )

        assert (again.message.message_id, again.delivery_count) == ("a2", 2)
        assert late.message.message_id == "a3"
        with pytest.raises(LockLost):
            await receiver.settle(one, Complete())
    async with broker.open_receiver(queue.dead_letter) as receiver:
        assert ids(await take(receiver)) == ["a4"]


@needs(Capability.SESSIONS | Capability.SETTLES_MANY)
async def test_several_messages_of_a_session_are_settled_at_once(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1, 2, 3))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        one, two, three = await take_all(receiver, 3)

        verdicts = await required(receiver, SettlesMany).settle_many(
            [(one, Complete()), (one, Complete()), (two, Abandon()), (three, Defer())]
        )

        assert [type(verdict) for verdict in verdicts] == [
            type(None),
            LockLost,
            type(None),
            type(None),
        ]
        assert ids(await take(receiver, 3)) == ["a2"]
        assert ids(
            await required(receiver, ReceivesDeferred).receive_deferred([three.sequence_number])
        ) == ["a3"]


@needs(Capability.SESSIONS | Capability.SETTLES_MANY | Capability.SHORT_LOCKS)
@waits
async def test_settling_several_in_a_session_that_is_lost_is_too_late_for_each(broker):
    queue = await make_sessions(broker, lock_duration=HELD)
    await broker.send(queue, of_session("a", 1, 2))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        one, two = await take_all(receiver, 2)
        await trio.sleep(HELD.total_seconds() + 0.2)

        verdicts = await required(receiver, SettlesMany).settle_many(
            [(one, Complete()), (two, Complete())]
        )

        assert [type(verdict) for verdict in verdicts] == [SessionLockLost, SessionLockLost]


@needs(Capability.SESSIONS)
async def test_a_deferred_message_belongs_to_its_session(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Defer())
    async with required(broker, Sessions).open_session(queue, "b") as receiver:
        with pytest.raises(MessageNotFound):
            await required(receiver, ReceivesDeferred).receive_deferred([delivery.sequence_number])


@needs(Capability.SESSIONS)
async def test_leaving_a_session_gives_it_back_with_its_messages(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1, 2))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        await take(receiver, 1)
    async with required(broker, Sessions).open_session(queue, None) as receiver:
        taken = await take_all(receiver, 2)

        assert [(each.message.message_id, each.delivery_count) for each in taken] == [
            ("a1", 1),
            ("a2", 1),
        ]


@needs(Capability.SESSIONS)
async def test_later_messages_overtake_none_that_a_cancelled_receive_took(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", *range(20)))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        taken = []
        while len(taken) < 10:
            taken += await cancelled_receive(receiver, 2, checkpoints=len(taken))
            taken += await take(receiver, 1)

        assert ids(taken)[:10] == [f"a{number}" for number in range(10)]


@needs(Capability.SESSIONS)
@pytest.mark.parametrize("settlement", [Abandon(), Abandon(delivered=False)], ids=str)
async def test_later_messages_overtake_none_that_was_given_back(broker, settlement):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", *range(20)))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        taken = await take_all(receiver, 4)
        taken += await cancelled_receive(receiver, 10, checkpoints=6)
        await trio.sleep(SHORTLY)  # more may be on their way
        async with trio.open_nursery() as nursery:
            for each in reversed(taken[1:]):
                nursery.start_soon(receiver.settle, each, settlement)
        again = await take_all(receiver, 19)

        assert ids(again) == [f"a{number}" for number in range(1, 20)]


@needs(Capability.SESSIONS)
async def test_later_messages_overtake_none_that_goes_back_while_a_receive_waits(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", *range(3)))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        taken, again = await take_all(receiver, 3), []

        async def receive() -> None:
            while len(again) < 3:
                again.extend(await receiver.receive(10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.sleep(SHORTLY)
            for each in reversed(taken[1:]):
                await receiver.settle(each, Abandon())
            await broker.send(queue, of_session("a", 3))

        numbers = ids(again)
        assert sorted(numbers[:2]) == ["a1", "a2"]
        assert numbers[2:] == ["a3"]


@needs(Capability.SESSIONS)
async def test_a_session_receiver_can_receive_and_delete(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(
        queue, "a", ReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        delivery = await take_one(receiver)

        assert delivery.lock_token is None
    assert (await broker.inspect(queue)).active == 0


@needs(Capability.SESSIONS)
async def test_the_state_of_a_session_outlives_its_receivers(broker):
    queue = await make_sessions(broker)
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        before = await receiver.get_state()
        await receiver.set_state(b"\x00half done")
    async with required(broker, Sessions).open_session(queue, "b") as receiver:
        other = await receiver.get_state()
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        after = await receiver.get_state()
        await receiver.set_state(None)
        removed = await receiver.get_state()

    assert (before, other, after, removed) == (None, None, b"\x00half done", None)


@needs(Capability.SESSIONS)
async def test_a_state_above_the_limit_is_refused(broker):
    queue = await make_sessions(broker)
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        with pytest.raises(InvalidRequest):
            await receiver.set_state(b"x" * 300_000)


@needs(Capability.SESSIONS)
@pytest.mark.parametrize("session", ["x" * 129, "half \ud800"], ids=["long", "no text"])
async def test_a_session_that_cannot_be_is_refused(broker, session):
    queue = await make_sessions(broker)
    with pytest.raises(InvalidRequest):
        async with required(broker, Sessions).open_session(queue, session):
            pytest.fail("opened")


@needs(Capability.SESSIONS)
async def test_sessions_with_messages_are_listed_in_pages(broker):
    queue = await make_sessions(broker)
    for session in ("c", "a", "b"):
        await broker.send(queue, of_session(session, 1))
    async with required(broker, Sessions).open_session(queue, "state") as receiver:
        await receiver.set_state(b"1")
        until = receiver.locked_until

    assert await required(broker, Sessions).list_sessions(queue) == ["a", "b", "c"]
    assert await required(broker, Sessions).list_sessions(queue, skip=1, top=1) == ["b"]
    long_ago = until - timedelta(days=1)
    assert await required(broker, Sessions).list_sessions(queue, updated_since=long_ago) == [
        "state"
    ]
    assert await required(broker, Sessions).list_sessions(queue, updated_since=until) == []


@needs(Capability.SESSIONS | Capability.PEEKED_STATE)
async def test_a_state_is_peeked_while_a_receiver_holds_the_session(broker):
    queue = await make_sessions(broker)
    peeks = required(broker, PeeksState)
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        await receiver.set_state(b"1")
        held = await peeks.peek_state(queue, "a")

    assert held == await peeks.peek_state(queue, "a") == b"1"
    assert await peeks.peek_state(queue, "b") is None


@needs(Capability.PEEKED_STATE)
async def test_a_queue_without_sessions_has_no_state_to_peek(broker, orders):
    with pytest.raises(InvalidRequest):
        await required(broker, PeeksState).peek_state(orders, "a")


@needs(Capability.SESSIONS)
async def test_a_disabled_session_queue_gives_nothing(broker):
    queue = await make_sessions(broker, status=EntityStatus.RECEIVE_DISABLED)
    with pytest.raises(EntityDisabled):
        async with required(broker, Sessions).open_session(queue, "a"):
            pytest.fail("opened")


@needs(Capability.SESSIONS | Capability.DEFERRAL | Capability.UPDATE)
async def test_a_session_of_a_disabled_queue_gives_no_deferred_message(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Defer())
        disabled = QueueProperties(requires_session=True, status=EntityStatus.RECEIVE_DISABLED)
        await required(broker, Updates).update_queue(queue, disabled)
        with pytest.raises(EntityDisabled):
            await required(receiver, ReceivesDeferred).receive_deferred([delivery.sequence_number])


# --- time


@needs(Capability.SESSIONS)
@waits
async def test_a_receiver_that_waits_for_a_session_gets_the_next_one(broker):
    queue = await make_sessions(broker)
    found: list[Sequence[str]] = []

    async def wait_for_one() -> None:
        with trio.fail_after(PATIENCE):
            async with required(broker, Sessions).open_session(queue, None) as receiver:
                found.append([receiver.session_id, *ids(await take(receiver))])
                await trio.sleep(SHORTLY)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait_for_one)
        await trio.sleep(SHORTLY)
        await broker.send(queue, [*of_session("a", 1), *of_session("b", 1)])

    assert sorted(found) == [["a", "a1"], ["b", "b1"]]


@needs(Capability.SESSIONS)
@waits
async def test_a_waiting_receiver_gets_a_session_that_is_given_back(broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    found: list[str] = []

    async def wait_for_one() -> None:
        found.extend(await accepted(broker, queue, None))

    async with trio.open_nursery() as nursery, required(broker, Sessions).open_session(queue, "a"):
        nursery.start_soon(wait_for_one)
        await trio.sleep(SHORTLY)
        assert found == []

    assert found == ["a"]


@needs(Capability.SESSIONS)
@waits
async def test_a_receiver_in_a_session_learns_that_the_queue_is_gone(broker):
    queue = await make_sessions(broker)
    opened = trio.Event()

    async def wait_in_vain() -> None:
        async with required(broker, Sessions).open_session(queue, "a") as receiver:
            opened.set()
            with trio.fail_after(PATIENCE), pytest.raises(EntityNotFound):
                await receiver.receive(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        await opened.wait()
        await trio.sleep(SHORTLY)
        await broker.delete_queue(queue)


@needs(Capability.SESSIONS)
@waits
async def test_a_receiver_in_a_session_is_woken_by_a_message(broker):
    queue = await make_sessions(broker)
    async with (
        required(broker, Sessions).open_session(queue, "a") as receiver,
        trio.open_nursery() as nursery,
    ):

        async def send_later() -> None:
            await trio.sleep(SHORTLY)
            await broker.send(queue, [*of_session("b", 1), *of_session("a", 1)])

        nursery.start_soon(send_later)

        assert ids(await take(receiver)) == ["a1"]


@needs(Capability.SESSIONS | Capability.SHORT_LOCKS)
@waits
async def test_a_session_lock_that_runs_out_frees_the_session(broker):
    queue = await make_sessions(broker, lock_duration=HELD)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a") as slow:
        delivery = await take_one(slow)
        with trio.fail_after(PATIENCE):
            async with required(broker, Sessions).open_session(queue, None) as receiver:
                again = await take_one(receiver)

                assert (again.message.message_id, again.delivery_count) == ("a1", 2)
                with pytest.raises(SessionLockLost):
                    await slow.settle(delivery, Complete())
                with pytest.raises(SessionLockLost):
                    await slow.renew_session()
                with pytest.raises(SessionLockLost):
                    await slow.get_state()


@needs(Capability.SESSIONS | Capability.SHORT_LOCKS)
@waits
async def test_a_receiver_that_waits_learns_that_its_session_is_lost(broker):
    queue = await make_sessions(broker, lock_duration=SECOND)
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        with pytest.raises(SessionLockLost), trio.fail_after(PATIENCE):
            await receiver.receive(1)


@needs(Capability.SESSIONS | Capability.SHORT_LOCKS)
@waits
async def test_the_holder_of_a_session_is_told_when_its_lock_ends(broker):
    queue = await make_sessions(broker, lock_duration=HELD)
    began, held = trio.current_time(), HELD.total_seconds()
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        await trio.sleep(0.5)
        await receiver.renew_session()
        with pytest.raises(SessionLockLost), trio.fail_after(PATIENCE):
            await receiver.wait_lost()

    assert trio.current_time() - began > held + 0.4


@needs(Capability.SESSIONS | Capability.SHORT_LOCKS)
@waits
async def test_a_renewed_session_is_held_longer(broker):
    queue = await make_sessions(broker, lock_duration=LOCKED * SECOND)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        delivery = await take_one(receiver)
        first = receiver.locked_until
        second = await held_longer(receiver.renew_session)
        await receiver.settle(delivery, Complete())

        assert first < second == receiver.locked_until
    assert (await broker.inspect(queue)).active == 0


@needs(Capability.SESSIONS | Capability.TIME_TO_LIVE)
@waits
async def test_a_session_whose_messages_have_expired_is_not_next(broker):
    queue = await make_sessions(broker)
    short = Message(message_id="x", session_id="a", time_to_live=timedelta(seconds=0.5))
    await broker.send(queue, [short])
    await trio.sleep(0.7)
    await broker.send(queue, of_session("b", 1))

    assert await accepted(broker, queue, None) == ["b"]


@needs(Capability.SESSIONS)
@waits
async def test_a_cancelled_wait_for_a_session_holds_none(broker):
    queue = await make_sessions(broker)
    for number in range(10):
        with trio.move_on_after(0.001 * (number % 4)):
            async with required(broker, Sessions).open_session(queue, None):
                pytest.fail("there is none")
    await broker.send(queue, of_session("a", 1))

    assert await accepted(broker, queue, None) == ["a"]


@needs(Capability.SESSIONS)
@waits
async def test_a_scheduled_message_wakes_who_waits_for_its_session(broker: Broker):
    queue = await make_sessions(broker)
    await broker.send(queue, of_session("a", 1))
    async with required(broker, Sessions).open_session(queue, "a") as receiver:
        first = await take_one(receiver)
        due = (first.enqueued or first.locked_until) + SECOND
        await broker.send(queue, [Message(message_id="later", session_id="a", scheduled=due)])

        assert ids(await take(receiver)) == ["later"]
