"""The contract of brokers that forward messages."""

from datetime import timedelta
from typing import Any

import pytest
import trio

from gateway.capabilities import Peeks, Sessions, Updates
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import EntityDisabled, InvalidRequest, QuotaExceeded, SessionRequired
from gateway.domain.message import Abandon, Complete, DeadLetter, Message
from gateway.offering import required
from tests.brokers.contract import SOON, ids, make, numbered, take, take_one
from tests.brokers.kinds import Capability, needs, waits
from tests.harness.patience import PATIENCE


async def transfers(broker: Any, queue: EntityPath) -> list[str]:
    """Return the reasons for which messages of that queue couldn't be forwarded."""
    info = await broker.inspect(queue)
    shown = await required(broker, Peeks).peek(queue.transfer_dead_letter, limit=100)
    assert info.transfer_dead_lettered == len(shown)
    return [each.message.properties["DeadLetterReason"] for each in shown]


@needs(Capability.FORWARDING)
async def test_a_message_comes_to_where_its_queue_forwards(broker, orders):
    source = await make(broker, "source", forward_to="Orders")
    await broker.send(source, numbered(1, 2))
    async with broker.open_receiver(orders) as receiver:
        one, two = [await take_one(receiver) for _ in range(2)]

        assert ids([one, two]) == ["1", "2"]
        assert one.sequence_number < two.sequence_number
    assert (await broker.inspect(source)).size == 0


@needs(Capability.FORWARDING)
async def test_nobody_receives_from_a_queue_that_forwards(broker, orders):
    source = await make(broker, "source", forward_to="orders")
    with pytest.raises(InvalidRequest):
        async with broker.open_receiver(source) as receiver:
            await take(receiver)


@needs(Capability.FORWARDING | Capability.PEEK)
async def test_a_chain_ends_after_four_hops(broker):
    for number in range(5):
        await make(broker, f"q{number}", forward_to=f"q{number + 1}")
    await make(broker, "q5")
    await broker.send(EntityPath("q1"), numbered("near"))
    await broker.send(EntityPath("q0"), numbered("far"))

    assert ids(await required(broker, Peeks).peek(EntityPath("q5"), limit=10)) == ["near"]
    assert await transfers(broker, EntityPath("q4")) == ["MaxTransferHopCountExceeded"]


@needs(Capability.FORWARDING)
async def test_a_circle_is_refused(broker, orders):
    await make(broker, "a", forward_to="b")
    with pytest.raises(InvalidRequest):
        await make(broker, "b", forward_dead_lettered_messages_to="A")


@needs(Capability.FORWARDING | Capability.PEEK)
async def test_a_queue_that_forwards_to_itself_keeps_what_is_sent_to_it_aside(broker):
    queue = await make(broker, "c", forward_to="C", forward_dead_lettered_messages_to="c")
    await broker.send(queue, numbered(1))

    assert await transfers(broker, queue) == ["MaxTransferHopCountExceeded"]


@needs(Capability.FORWARDING | Capability.PEEK | Capability.SESSIONS)
async def test_an_entity_with_sessions_forwards_them(broker):
    source = await make(broker, "source", forward_to="sessions", requires_session=True)
    target = await make(broker, "sessions", requires_session=True)
    with pytest.raises(SessionRequired):
        await broker.send(source, numbered("none"))
    await broker.send(source, [Message(message_id="1", session_id="a")])

    assert ids(await required(broker, Peeks).peek(target, limit=10)) == ["1"]


@needs(Capability.FORWARDING | Capability.PEEK | Capability.SIZES)
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        (None, "EntityNotFound"),
        (QueueProperties(status=EntityStatus.SEND_DISABLED), "EntityDisabled"),
        (QueueProperties(max_message_size=1024), "MessageTooLarge"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_message_that_cannot_go_on_is_kept_with_the_reason(broker, properties, reason):
    source = await make(broker, "source", forward_to="target")
    if properties is not None:
        await broker.create_queue(EntityPath("target"), properties)
    await broker.send(source, [Message(message_id="1", body=b"x" * 2000)])

    assert await transfers(broker, source) == [reason]
    async with broker.open_receiver(source.transfer_dead_letter) as receiver:
        delivery = await take_one(receiver)
        await receiver.settle(delivery, Complete())

        assert delivery.message.message_id == "1"
    assert await transfers(broker, source) == []


@needs(Capability.FORWARDING | Capability.UPDATE | Capability.PEEK)
async def test_an_earlier_message_that_cannot_go_on_is_kept(broker, orders):
    await broker.send(orders, numbered(1, 2))
    await required(broker, Updates).update_queue(orders, QueueProperties(forward_to="nowhere"))

    assert await transfers(broker, orders) == ["EntityNotFound"] * 2
    assert ids(await required(broker, Peeks).peek(orders.transfer_dead_letter, limit=10)) == [
        "1",
        "2",
    ]


@needs(Capability.FORWARDING | Capability.QUOTA | Capability.PEEK)
async def test_a_full_target_takes_no_more(broker):
    source = await make(broker, "source", forward_to="target")
    target = await make(broker, "target", max_size_in_megabytes=1)
    big = Message(message_id="big", body=b"x" * 600_000)
    await broker.send(source, [big, big])

    assert await transfers(broker, source) == ["QuotaExceeded"]
    with pytest.raises(QuotaExceeded):
        await broker.send(target, [big])


@needs(Capability.FORWARDING)
async def test_a_source_that_is_disabled_takes_nothing(broker, orders):
    source = await make(broker, "source", forward_to="orders", status=EntityStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabled):
        await broker.send(source, numbered(1))


@needs(Capability.FORWARDING | Capability.DEAD_LETTER)
async def test_dead_letters_are_forwarded_with_the_reason_and_where_from(broker, orders):
    source = await make(broker, "source", forward_dead_lettered_messages_to="orders")
    await broker.send(source, numbered(1))
    async with broker.open_receiver(source) as receiver:
        await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
    async with broker.open_receiver(orders) as receiver:
        delivery = await take_one(receiver)

        assert delivery.message.properties["DeadLetterReason"] == "bad"
        assert delivery.dead_letter_source.endswith("source")
        assert delivery.delivery_count == 1
    assert (await broker.inspect(source)).dead_lettered == 0


@needs(Capability.FORWARDING | Capability.DEAD_LETTER | Capability.PEEK)
async def test_a_dead_letter_that_cannot_go_on_keeps_its_reason(broker):
    source = await make(broker, "source", forward_dead_lettered_messages_to="nowhere")
    await broker.send(source, numbered(1))
    async with broker.open_receiver(source) as receiver:
        await receiver.settle(
            await take_one(receiver), DeadLetter(reason="bad", description="very")
        )
    [kept] = await required(broker, Peeks).peek(source.transfer_dead_letter)

    assert kept.delivery_count == 0
    assert kept.message.properties["DeadLetterReason"] == "EntityNotFound"
    assert "bad: very" in kept.message.properties["DeadLetterErrorDescription"]


@needs(Capability.FORWARDING | Capability.SESSIONS | Capability.PEEK)
async def test_a_message_without_session_is_a_dead_letter_where_one_is_needed(broker):
    source = await make(broker, "source", forward_to="chats")
    chats = await make(broker, "chats", requires_session=True)
    await broker.send(source, [*numbered(1), Message(message_id="2", session_id="a")])
    [dead] = await required(broker, Peeks).peek(chats.dead_letter)
    async with required(broker, Sessions).open_session(chats, None) as receiver:
        assert ids(await take(receiver)) == ["2"]

    assert dead.message.properties["DeadLetterReason"] == "Session ID is null."


@needs(Capability.FORWARDING | Capability.SESSIONS | Capability.PEEK)
async def test_a_dead_letter_for_want_of_a_session_is_forwarded_too(broker, orders):
    source = await make(broker, "source", forward_to="chats")
    await make(
        broker, "chats", requires_session=True, forward_dead_lettered_messages_to=orders.name
    )
    await broker.send(source, numbered(1))
    [dead] = await required(broker, Peeks).peek(orders, limit=10)

    assert dead.message.properties["DeadLetterReason"] == "Session ID is null."
    assert dead.dead_letter_source == "chats"


@needs(Capability.FORWARDING | Capability.DUPLICATES | Capability.PEEK)
async def test_a_forwarded_duplicate_is_dropped_at_its_target(broker):
    source = await make(broker, "source", forward_to="target")
    target = await make(broker, "target", requires_duplicate_detection=True)
    await broker.send(source, numbered(1, 1, 2))

    assert ids(await required(broker, Peeks).peek(target, limit=10)) == ["1", "2"]


@needs(Capability.FORWARDING | Capability.UPDATE | Capability.PEEK)
async def test_an_earlier_message_goes_on_too(broker, orders):
    target = await make(broker, "target")
    await broker.send(orders, numbered(1, 2))
    await required(broker, Updates).update_queue(orders, QueueProperties(forward_to="target"))

    assert ids(await required(broker, Peeks).peek(target, limit=10)) == ["1", "2"]


@needs(Capability.FORWARDING | Capability.SCHEDULE)
@waits
async def test_a_scheduled_message_goes_on_when_it_is_due(broker):
    source = await make(broker, "source", forward_to="target")
    target = await make(broker, "target")
    await broker.send(target, numbered("clock"))
    async with broker.open_receiver(target) as receiver:
        clock = await take_one(receiver)
        await receiver.settle(clock, Complete())
        due = (clock.enqueued + SOON).replace(microsecond=0)
        await broker.send(source, [Message(message_id="later", scheduled=due)])
        delivery = await take_one(receiver)

        assert delivery.message.message_id == "later"
        assert delivery.enqueued >= due


@needs(Capability.FORWARDING | Capability.TIME_TO_LIVE | Capability.DEAD_LETTER)
@waits
async def test_an_expired_message_is_forwarded_as_a_dead_letter_in_time(broker):
    source = await make(
        broker,
        "source",
        forward_dead_lettered_messages_to="target",
        dead_lettering_on_expiration=True,
    )
    target = await make(broker, "target")
    async with broker.open_receiver(target) as receiver, trio.open_nursery() as nursery:
        short = Message(message_id="1", time_to_live=timedelta(seconds=0.5))
        nursery.start_soon(broker.send, source, [short])
        with trio.fail_after(PATIENCE):
            delivery = await take_one(receiver)

        assert delivery.message.properties["DeadLetterReason"] == "TTLExpiredException"


@needs(Capability.PEEK | Capability.MANAGEMENT)
async def test_to_peek_is_to_use_an_entity(broker, orders):
    before = (await broker.inspect(orders)).accessed
    await required(broker, Peeks).peek(orders)

    assert before is None
    assert (await broker.inspect(orders)).accessed is not None


@needs(Capability.FORWARDING | Capability.PEEK | Capability.UPDATE)
async def test_a_message_that_is_given_back_to_a_queue_that_forwards_by_now_goes_on(broker, orders):
    source = await make(broker, "source")
    await broker.send(source, [Message(message_id="1")])
    async with broker.open_receiver(source) as receiver:
        await take_one(receiver)
        await required(broker, Updates).update_queue(source, QueueProperties(forward_to="orders"))
    async with broker.open_receiver(orders) as receiver:
        arrived = await take_one(receiver)

    assert arrived.message.message_id == "1"


@needs(Capability.FORWARDING | Capability.PEEK | Capability.SESSIONS | Capability.DEAD_LETTER)
async def test_a_queue_with_sessions_forwards_its_dead_letters(broker, orders):
    source = await make(
        broker, "source", forward_dead_lettered_messages_to="orders", requires_session=True
    )
    await broker.send(source, [Message(message_id="1", session_id="a")])
    async with required(broker, Sessions).open_session(source, "a") as session:
        await session.settle(await take_one(session), DeadLetter(reason="Bad"))
    [dead] = await required(broker, Peeks).peek(orders, limit=10)

    assert ids([dead]) == ["1"]
    assert dead.dead_letter_source == "source"


@needs(Capability.FORWARDING | Capability.PEEK | Capability.SESSIONS | Capability.UPDATE)
async def test_a_session_keeps_what_its_receiver_has_locked_when_forwarding_begins(broker, orders):
    source = await make(broker, "source", requires_session=True)
    messages = [Message(message_id=name, session_id="a") for name in ("1", "2", "3")]
    await broker.send(source, messages)
    async with required(broker, Sessions).open_session(source, "a") as session:
        first, second = await session.receive(1), await session.receive(1)
        wish = QueueProperties(requires_session=True, forward_to="orders")
        await required(broker, Updates).update_queue(source, wish)
        moved = ids(await required(broker, Peeks).peek(orders, limit=10))
        await session.settle(first[0], Complete())
        await session.settle(second[0], Abandon())

    assert moved == ["3"]
    assert ids(await required(broker, Peeks).peek(orders, limit=10)) == ["3", "2"]
