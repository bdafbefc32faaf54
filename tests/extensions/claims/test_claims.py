"""Large bodies are sent, received and settled, and each step may fail."""

import random
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities import Peeks, Sessions, SettlesMany, Topology
from gateway.capabilities.settling import settle_all
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    OutcomeUnknown,
    QuotaExceeded,
    StorageFull,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DataBody,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    ReceiveMode,
    SequenceBody,
    ValueBody,
)
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.claim_check import LAST_STEP
from gateway.extensions.claims.events import (
    ClaimBackingOff,
    ClaimCopyDropped,
    ClaimLeftBehind,
    ClaimLost,
)
from gateway.offering import offered, required
from tests.extensions.claims.harness import (
    A_DAY,
    LARGE,
    ORDERS,
    Harness,
    claimed,
    open_harness,
    virtual_time,
)
from tests.harness.clocks import VirtualClock
from tests.harness.faults import LoseAnswer, Refuse, SwallowAnswer
from tests.harness.polled import PolledBroker

pytestmark = virtual_time


def failing(step: str, error: type[BrokerError] = Unavailable, moment: str = "before"):
    """Trouble of the store: that step raises."""

    def trouble(when: str, what: str, name: str) -> None:
        if (when, what) == (moment, step):
            raise error("the store is out")

    return trouble


def well(moment: str, step: str, name: str) -> None:
    return


# --- sending


async def test_a_large_body_lies_in_the_store_and_the_message_has_a_reference(
    harness: Harness,
) -> None:
    await harness.send(LARGE, properties={"colour": "red"}, time_to_live=None)

    (raw,) = await harness.raw()
    claim = claims.claim_of(raw)
    assert raw.body == b""
    assert raw.properties["colour"] == "red"
    assert raw.message_id == "m1"
    assert harness.store.bodies == {claim.id}
    assert claim.size > len(LARGE) > claim.stored


async def test_a_small_body_stays_where_it_is(harness: Harness) -> None:
    await harness.send(b"small")

    assert [raw.body for raw in await harness.raw()] == [b"small"]
    assert harness.store.kept == {}


async def test_the_body_is_in_the_store_before_anything_is_sent(harness: Harness) -> None:
    seen = []
    harness.faulty.fault = lambda operation, entity: seen.append(set(harness.store.bodies))

    await harness.send()

    assert len(seen[0]) == 1


@pytest.mark.parametrize("error", [Unavailable, StorageFull])
async def test_without_the_store_nothing_is_sent(
    harness: Harness, error: type[BrokerError]
) -> None:
    harness.store.trouble = failing("put", error)

    with pytest.raises(error):
        await harness.broker.send(ORDERS, [Message(body=b"small"), Message(body=LARGE)])

    assert await harness.raw() == []


async def test_a_store_that_hangs_is_no_endless_wait(harness: Harness) -> None:
    harness.store.latency = A_DAY

    with pytest.raises(Unavailable, match="within 10 s"):
        await harness.send()

    assert await harness.raw() == []


async def test_a_send_that_definitely_failed_leaves_no_body(harness: Harness) -> None:
    harness.faulty.fault = lambda operation, entity: Refuse()

    with pytest.raises(Unavailable):
        await harness.broker.send(ORDERS, [Message(body=LARGE), Message(body=LARGE)])

    assert harness.store.kept == {}


async def test_of_a_send_with_unknown_outcome_the_body_stays(harness: Harness) -> None:
    harness.faulty.fault = lambda operation, entity: LoseAnswer()

    with pytest.raises(OutcomeUnknown):
        await harness.send()

    harness.faulty.fault = lambda operation, entity: None
    assert (await harness.take()).message.body == LARGE


async def test_of_a_cancelled_send_the_body_stays(harness: Harness) -> None:
    harness.faulty.fault = lambda operation, entity: SwallowAnswer()
    with trio.move_on_after(1):
        await harness.send()

    harness.faulty.fault = lambda operation, entity: None
    assert (await harness.take()).message.body == LARGE


async def test_a_send_that_is_cancelled_at_the_store_leaves_no_body(harness: Harness) -> None:
    harness.store.latency = 1.0
    with trio.move_on_after(1.5):
        await harness.broker.send(ORDERS, [Message(body=LARGE), Message(body=LARGE)])

    assert harness.store.kept == {}
    assert await harness.raw() == []


async def test_a_body_that_cannot_be_removed_is_told(harness: Harness) -> None:
    harness.faulty.fault = lambda operation, entity: Refuse()
    harness.store.trouble = failing("remove")

    with pytest.raises(Unavailable):
        await harness.send()

    assert [event.claim for event in harness.events.of(ClaimLeftBehind)] == list(
        harness.store.bodies
    )


async def test_nobody_forges_a_reference(harness: Harness) -> None:
    forged = Message(properties={claims.ID: f"{'0' * 32}.0"})

    with pytest.raises(InvalidRequest, match=claims.ID):
        await harness.broker.send(ORDERS, [forged])


async def test_a_body_above_the_limit_is_refused() -> None:
    async with open_harness(max_body=2000) as harness:
        with pytest.raises(MessageTooLarge, match=r"claims.max_body \(2000\)"):
            await harness.send()

        assert harness.store.kept == {}


async def test_a_body_that_compression_would_enlarge_is_stored_as_it_is(harness: Harness) -> None:
    body = random.Random(0).randbytes(5000)
    await harness.send(body)

    assert claims.claim_of((await harness.raw())[0]).codec == "none"
    assert (await harness.take()).message.body == body


# --- receiving


@pytest.mark.parametrize(
    "body",
    [
        DataBody((LARGE, b"", LARGE)),
        SequenceBody((("text" * 999, 1.5), (None,))),
        ValueBody({"key": ["x" * 5000, True]}),
    ],
)
async def test_a_large_body_of_any_kind_is_stored(harness: Harness, body: object) -> None:
    await harness.send(body)

    assert len(harness.store.bodies) == 1
    assert (await harness.take()).message.body == body


async def test_a_body_that_was_replaced_since_is_the_body(harness: Harness) -> None:
    """Storage Queue's clients change a message in its place."""
    await harness.send()
    reference = await harness.taken_raw()
    await harness.plain.send(ORDERS, [attrs.evolve(reference, body=b"another")])

    assert (await harness.take()).message.body == b"another"


async def test_while_the_store_is_out_messages_wait_and_others_go_on(harness: Harness) -> None:
    await harness.broker.send(ORDERS, [Message(body=LARGE), Message(body=b"small")])
    harness.store.trouble = failing("get")

    with trio.fail_after(A_DAY):
        async with harness.broker.open_receiver(ORDERS) as receiver:
            (first,) = await receiver.receive(10)
            await receiver.settle(first, Complete())
            with trio.move_on_after(3600):
                await receiver.receive(10)
            harness.store.trouble = well
            (second,) = await receiver.receive(10)
            await receiver.settle(second, Complete())

    assert first.message.body == b"small"
    assert second.message.body == LARGE
    assert second.delivery_count == 1  # the message was never released
    assert len(harness.events.of(ClaimBackingOff)) == 1


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
@pytest.mark.parametrize("is_set", ["before", "while it is held"])
async def test_an_outage_of_the_store_uses_up_no_delivery_whatever_the_clock_says(
    harness: Harness, ahead: float, is_set: str
) -> None:
    clock = VirtualClock()
    broker = claimed(harness.faulty, harness.store, clock, harness.events)
    await harness.send()
    harness.store.trouble = failing("get")

    async with broker.open_receiver(ORDERS) as receiver:
        if is_set == "before":
            clock.skew = timedelta(seconds=ahead)
        with trio.move_on_after(30):
            await receiver.receive(1)
        clock.skew = timedelta(seconds=ahead)
        with trio.move_on_after(3600):
            await receiver.receive(1)
        harness.store.trouble = well
        with trio.fail_after(60):
            (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, Complete())

    assert delivery.delivery_count == 1
    assert await harness.raw() == []


async def test_a_message_that_nobody_asked_for_in_time_is_not_handed_over() -> None:
    async with open_harness(QueueProperties(lock_duration=timedelta(seconds=5))) as harness:
        await harness.send()
        harness.store.trouble = failing("get")
        async with harness.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(1):
                await receiver.receive(1)
            await trio.sleep(10)
            harness.store.trouble = well
            (delivery,) = await receiver.receive(1)
            await receiver.settle(delivery, Complete())

    assert delivery.delivery_count == 2


async def test_while_the_store_is_out_receive_and_delete_deletes_nothing(harness: Harness) -> None:
    await harness.send()
    harness.store.trouble = failing("get")
    mode = ReceiveMode.RECEIVE_AND_DELETE

    async with harness.broker.open_receiver(ORDERS, mode) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    harness.store.trouble = well
    async with harness.broker.open_receiver(ORDERS, mode) as receiver:
        (delivery,) = await receiver.receive(1)
    assert delivery.message.body == LARGE
    assert delivery.lock_token is None
    assert await harness.raw() == []


async def test_a_receive_that_is_cancelled_at_the_store_loses_nothing(harness: Harness) -> None:
    await harness.send()
    harness.store.latency = 5.0

    async with harness.broker.open_receiver(ORDERS) as receiver:
        for _ in range(3):
            with trio.move_on_after(1):
                await receiver.receive(1)
        (delivery,) = await receiver.receive(1)

    assert delivery.message.body == LARGE
    assert delivery.delivery_count == 1


async def test_receives_that_are_shorter_than_the_store_wait_for_the_same_read(
    harness: Harness,
) -> None:
    """As those of a drain, or of an endpoint that looks for a second."""
    await harness.send()
    harness.store.latency, received = 5.0, []

    async with harness.broker.open_receiver(ORDERS) as receiver:
        for _ in range(6):
            with trio.move_on_after(1):
                received += await receiver.receive(1)

    assert [delivery.message.body for delivery in received] == [LARGE]


async def test_bodies_are_fetched_up_to_a_limit_at_once() -> None:
    async with open_harness(max_fetched=3 * len(LARGE)) as harness:
        await harness.broker.send(
            ORDERS, [Message(message_id=str(n), body=LARGE) for n in range(5)]
        )

        async with harness.broker.open_receiver(ORDERS) as receiver:
            taken = [await receiver.receive(100) for _ in range(3)]

    ids = [[each.message.message_id for each in together] for together in taken]
    assert ids == [["0", "1"], ["2", "3"], ["4"]]  # a third one would be a few bytes above


async def test_a_message_that_one_task_leaves_is_for_others_that_wait() -> None:
    found: list[Delivery] = []

    async def take(receiver: Any) -> None:
        found.extend(await receiver.receive(5))

    async with (
        open_harness(max_fetched=3 * len(LARGE)) as harness,
        harness.broker.open_receiver(ORDERS) as receiver,
        trio.open_nursery() as nursery,
    ):
        for _ in range(4):
            nursery.start_soon(take, receiver)
        await trio.sleep(1)
        await harness.broker.send(
            ORDERS, [Message(message_id=str(n), body=LARGE) for n in range(5)]
        )
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert [each.message.message_id for each in found] == ["0", "1", "2", "3", "4"]


async def test_a_body_held_by_a_task_that_gives_up_is_kept_for_another_that_waits(
    harness: Harness,
) -> None:
    found: list[Delivery] = []

    async def take(receiver: Any, gives_up_after: float) -> None:
        with trio.move_on_after(gives_up_after):
            found.extend(await receiver.receive(1))

    async with harness.broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
        harness.store.trouble = failing("get")
        nursery.start_soon(take, receiver, 20)
        await trio.sleep(1)
        nursery.start_soon(take, receiver, A_DAY)
        await trio.sleep(1)
        await harness.send()
        await trio.sleep(600)
        harness.store.trouble = well
        await trio.sleep(40)
        nursery.cancel_scope.cancel()

    (delivery,) = found
    assert delivery.delivery_count == 1


async def test_no_message_of_a_session_overtakes_one_whose_body_is_late() -> None:
    async with open_harness(QueueProperties(requires_session=True)) as harness:
        broker = harness.broker.claim_check
        claimed = attrs.evolve(harness.broker, broker=harness.plain, claim_check=broker)
        bodies = [b"1", LARGE, b"3"]
        await claimed.send(ORDERS, [Message(body=body, session_id="s") for body in bodies])
        harness.store.trouble = failing("get")

        with trio.fail_after(A_DAY):
            async with required(claimed, Sessions).open_session(ORDERS, "s") as session:
                found = list(await session.receive(10))
                with trio.move_on_after(20):
                    found += await session.receive(10)
                assert [each.message.body for each in found] == [b"1"]
                harness.store.trouble = well
                await session.renew_session()
                while len(found) < 3:
                    found += await session.receive(10)

    assert [each.message.body for each in found] == bodies


async def test_a_peek_sees_the_body_or_else_the_reference(harness: Harness) -> None:
    claimed = attrs.evolve(harness.broker, broker=harness.plain)
    await harness.send()

    (peeked,) = await required(claimed, Peeks).peek(ORDERS)
    assert peeked.message.body == LARGE

    harness.store.kept.clear()
    (peeked,) = await required(claimed, Peeks).peek(ORDERS)
    assert peeked.message.body == b""
    assert claims.ID in peeked.message.properties


async def test_a_peek_and_a_receive_of_deferred_messages_get_bodies_up_to_a_limit() -> None:
    async with open_harness(max_fetched=3 * len(LARGE)) as harness:
        claimed = attrs.evolve(harness.broker, broker=harness.plain)
        await claimed.send(ORDERS, [Message(message_id=str(n), body=LARGE) for n in range(5)])

        peeked = await required(claimed, Peeks).peek(ORDERS, limit=5)
        async with claimed.open_receiver(ORDERS) as receiver:
            numbers = []
            while len(numbers) < 5:
                for each in await receiver.receive(5):
                    await receiver.settle(each, Defer())
                    numbers.append(each.sequence_number)
            with pytest.raises(QuotaExceeded, match="receive fewer messages"):
                await receiver.receive_deferred(numbers)
            taken = await receiver.receive_deferred(numbers[:2])

    assert [each.message.body for each in (*peeked, *taken)] == [LARGE] * 4


async def test_a_deferred_message_has_its_body_or_stays_deferred(harness: Harness) -> None:
    claimed = attrs.evolve(harness.broker, broker=harness.plain)
    await harness.send()
    async with claimed.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, Defer())
        harness.store.trouble = failing("get")
        with pytest.raises(Unavailable):
            await receiver.receive_deferred([delivery.sequence_number])
        harness.store.trouble = well
        (again,) = await receiver.receive_deferred([delivery.sequence_number])

    assert again.message.body == LARGE


# --- a body that is gone or damaged


async def test_a_body_that_was_found_again_has_its_grace_anew(harness: Harness) -> None:
    await harness.send()
    kept = dict(harness.store.kept)

    async with harness.broker.open_receiver(ORDERS) as receiver:
        for _ in range(2):
            harness.store.kept.clear()
            with trio.move_on_after(30):  # of a grace of 60 s
                await receiver.receive(1)
            harness.store.kept.update(kept)
            (found,) = await receiver.receive(1)
            await receiver.settle(found, Abandon())
            await trio.sleep(3600)

    assert await harness.raw(ORDERS.dead_letter) == []
    assert found.message.body == LARGE


@pytest.mark.parametrize("reason", ["ClaimMissing", "ClaimCorrupt"])
async def test_a_message_without_its_body_is_dead_lettered_with_the_reason(
    harness: Harness, reason: str
) -> None:
    await harness.send(properties={"colour": "red"})
    ((name, (data, date)),) = harness.store.kept.items()
    if reason == "ClaimMissing":
        harness.store.kept.clear()
    else:
        harness.store.kept[name] = bytes([*data[:-1], data[-1] ^ 1]), date

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert dead.properties["DeadLetterReason"] == reason
    assert dead.properties["colour"] == "red"
    assert dead.properties[claims.ID] == name
    assert [event.reason for event in harness.events.of(ClaimLost)] == [reason]


async def test_a_body_that_was_not_compressed_is_checked_too(harness: Harness) -> None:
    await harness.send(random.Random(0).randbytes(5000))
    ((name, (data, date)),) = harness.store.kept.items()
    harness.store.kept[name] = bytes([*data[:-1], data[-1] ^ 1]), date

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert dead.properties["DeadLetterReason"] == "ClaimCorrupt"


async def test_a_body_that_comes_back_in_time_is_handed_over(harness: Harness) -> None:
    await harness.send()
    kept = dict(harness.store.kept)
    harness.store.kept.clear()

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(30):
            await receiver.receive(1)
        harness.store.kept.update(kept)
        with trio.fail_after(60):
            (delivery,) = await receiver.receive(1)

    assert delivery.message.body == LARGE


async def test_a_dead_letter_without_a_body_can_be_seen_and_removed(harness: Harness) -> None:
    await harness.send()
    harness.store.kept.clear()
    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    dead = await harness.take(ORDERS.dead_letter, lambda delivery: Complete())

    assert dead.message.body == b""
    assert claims.ID in dead.message.properties
    assert await harness.raw(ORDERS.dead_letter) == []


async def test_a_reference_to_another_store_is_no_body(harness: Harness) -> None:
    await harness.send()
    reference = await harness.taken_raw()
    other = {**reference.properties, claims.STORE: "another"}
    await harness.plain.send(ORDERS, [attrs.evolve(reference, properties=other)])

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert "'another'" in dead.properties["DeadLetterErrorDescription"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (claims.ID, "../../etc/passwd"),
        (claims.ID, 5),
        (claims.SIZE, "-1"),
        (claims.SIZE, "9" * 17),
        (claims.STORED, "1"),
        (claims.CODEC, "lzma"),
        (claims.SHA256, ""),
        (claims.ENTITY, None),
    ],
)
async def test_a_reference_that_makes_no_sense_is_a_dead_letter(
    harness: Harness, name: str, value: object
) -> None:
    await harness.send()
    reference = await harness.taken_raw()
    changed = {**reference.properties, name: value}
    await harness.plain.send(ORDERS, [attrs.evolve(reference, properties=changed)])

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(600):
            await receiver.receive(1)

    (dead,) = await harness.raw(ORDERS.dead_letter)
    assert dead.properties["DeadLetterReason"] == "ClaimCorrupt"


# --- settling


async def test_a_completion_is_told_to_the_store(harness: Harness) -> None:
    await harness.send()
    (name,) = harness.store.bodies
    await harness.take(settle=lambda delivery: Complete())

    assert set(harness.store.kept) == {name, f"{name}.done"}


@pytest.mark.parametrize("settlement", [Abandon(), DeadLetter(reason="bad"), Defer()])
async def test_a_message_that_is_settled_otherwise_keeps_its_body(
    harness: Harness, settlement: object
) -> None:
    await harness.send()
    (name,) = harness.store.bodies
    await harness.take(settle=lambda delivery: settlement)

    assert set(harness.store.kept) == {name}


async def test_a_dead_letter_has_its_body_until_it_is_completed(harness: Harness) -> None:
    await harness.send()
    await harness.take(settle=lambda delivery: DeadLetter(reason="bad"))

    dead = await harness.take(ORDERS.dead_letter, lambda delivery: Complete())

    assert dead.message.body == LARGE
    assert any(name.endswith(".done") for name in harness.store.kept)


async def test_a_settlement_that_failed_tells_the_store_nothing(harness: Harness) -> None:
    await harness.send()
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        harness.faulty.fault = lambda operation, entity: Refuse()
        with pytest.raises(Unavailable):
            await receiver.settle(delivery, Complete())
        assert len(harness.store.kept) == 1
        harness.faulty.fault = lambda operation, entity: None
        await receiver.settle(delivery, Complete())

    assert len(harness.store.kept) == 2


async def test_a_store_that_is_out_spoils_no_settlement(harness: Harness) -> None:
    await harness.send()
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        harness.store.trouble = failing("put")
        await receiver.settle(delivery, Complete())

    assert await harness.raw() == []
    assert len(harness.events.of(ClaimLeftBehind)) == 1


async def test_a_settlement_cancelled_after_it_was_done_still_tells_the_store(
    harness: Harness,
) -> None:
    await harness.send()
    async with harness.broker.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        harness.store.latency = 2.0
        with trio.move_on_after(1):
            await receiver.settle(delivery, Complete())

    assert len(harness.store.kept) == 2


async def test_nobody_forges_a_reference_by_settling(harness: Harness) -> None:
    await harness.send(b"small")
    forged = Abandon(properties={claims.ID: "x"})

    with pytest.raises(InvalidRequest):
        await harness.take(settle=lambda delivery: forged)


# --- copies


async def test_a_second_copy_has_its_body_too(harness: Harness) -> None:
    await harness.send()
    await harness.plain.send(ORDERS, await harness.raw())

    first = await harness.take(settle=lambda delivery: Complete())
    second = await harness.take(settle=lambda delivery: Complete())

    assert first.message == second.message


async def test_a_copy_that_comes_when_the_body_is_gone_is_completed_not_poison(
    harness: Harness,
) -> None:
    await harness.send()
    (copy,) = await harness.raw()
    await harness.take(settle=lambda delivery: Complete())
    del harness.store.kept[claims.claim_of(copy).id]  # as the collector does it after a while
    await harness.plain.send(ORDERS, [copy])

    async with harness.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(5):
            await receiver.receive(1)

    assert await harness.raw() == []
    assert await harness.raw(ORDERS.dead_letter) == []
    assert len(harness.events.of(ClaimCopyDropped)) == 1


async def test_one_subscription_never_takes_the_body_from_another(harness: Harness) -> None:
    topic = EntityPath("news")
    claimed = attrs.evolve(harness.broker, broker=harness.plain)
    await required(claimed, Topology).create_topic(topic, TopicProperties())
    for name in ("a", "b"):
        await required(claimed, Topology).create_subscription(topic, name, SubscriptionProperties())
    await claimed.send(topic, [Message(body=LARGE)])

    for name in ("a", "b"):
        path = EntityPath(f"news/Subscriptions/{name}")
        async with claimed.open_receiver(path) as receiver:
            (delivery,) = await receiver.receive(1)
            await receiver.settle(delivery, Complete())
        assert delivery.message.body == LARGE

    assert len(harness.store.kept) == 1


async def test_a_queue_that_messages_were_forwarded_to_takes_no_body_from_others(
    harness: Harness,
) -> None:
    claimed = attrs.evolve(harness.broker, broker=harness.plain)
    first = EntityPath("first")
    await claimed.create_queue(first, QueueProperties(forward_to="orders"))
    await claimed.send(first, [Message(body=LARGE)])

    async with claimed.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, Complete())

    assert delivery.message.body == LARGE
    assert len(harness.store.kept) == 1


async def test_a_silent_store_delays_many_settlements_no_longer_than_one(harness: Harness) -> None:
    for _ in range(5):
        await harness.send()
    async with harness.broker.open_receiver(ORDERS) as receiver:
        deliveries = await receiver.receive(5)
        harness.store.latency, begin = A_DAY, trio.current_time()
        verdicts = await receiver.settle_many([(each, Complete()) for each in deliveries])

    assert len(deliveries) == 5
    assert verdicts == [None] * 5
    assert trio.current_time() - begin < 2 * LAST_STEP
    assert len(harness.events.of(ClaimLeftBehind)) == 5


async def test_many_are_settled_also_where_the_namespace_settles_one_at_a_time(
    harness: Harness,
) -> None:
    claimed = attrs.evolve(harness.broker, broker=PolledBroker(inner=harness.plain))
    for _ in range(5):
        await harness.send()
    async with claimed.open_receiver(ORDERS) as receiver:
        deliveries = await receiver.receive(5)
        await receiver.settle(deliveries[0], Complete())
        asked = [(each, Complete()) for each in deliveries]
        verdicts = await settle_all(receiver, asked, A_DAY)

    assert offered(receiver, SettlesMany) is None
    assert [type(each) for each in verdicts] == [LockLost] + [type(None)] * 4
    assert await harness.raw() == []
