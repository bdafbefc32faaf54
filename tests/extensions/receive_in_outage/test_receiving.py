"""Receivers of an entity get its diverted messages from the backlog, as they were sent."""

from datetime import timedelta

import pytest
import trio

from gateway.capabilities import Peeks, Polls, ReceivesAvailable, ReceivesDeferred, SettlesMany
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import (
    EntityNotFound,
    LockLost,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.events.gateway import DeadLettered, LeftUntouched
from gateway.domain.message import (
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    ReceiveMode,
)
from gateway.extensions.receive_in_outage.events import BacklogNotReceived
from gateway.extensions.redrive.order import Selection
from gateway.extensions.redrive.redrive import Redrive
from gateway.offering import offered, required
from tests.extensions.receive_in_outage.stand import AWAY, OWN, Stand, complete, take, two_sided
from tests.harness.faults import Hang, LoseAnswer, Operation
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    Harness,
    envelope,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time


async def test_a_receiver_gets_in_the_outage_what_was_sent_in_it(harness):
    stand = await Stand.make(harness)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        stand.lose_primary()
        await stand.send(message("a"), message("b"))

        assert await complete(receiver, 2) == ["a", "b"]
    assert await stand.backlog() == []
    assert sum(stand.done) == 2


async def test_a_message_from_the_backlog_is_as_it_was_sent(harness):
    stand = await Stand.make(harness)
    sent = message(
        "a",
        properties={"own": 1},
        session_id=None,
        partition_key="p",
        subject="s",
        time_to_live=timedelta(minutes=5),
    )
    stand.lose_primary()
    await stand.send(sent)

    async with stand.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await take(receiver, 1)

    assert delivery.message == sent
    assert delivery.delivery_count == 1
    assert delivery.expires == harness.after(300.0) - timedelta(seconds=trio.current_time() % 1)


async def test_any_gateway_of_the_pair_gives_them(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    other = two_sided(harness, await harness.pair(receive_in_outage=("orders",)), [])

    async with other.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["a"]


async def test_a_receiver_gets_both_when_the_primary_is_back(harness):
    stand = await Stand.make(harness)
    await stand.send(message("before"))
    stand.lose_primary()
    await stand.send(message("meanwhile"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["meanwhile"]
        stand.lose_primary()
        await stand.send(message("later"))
        harness.primary.heal()
        began = trio.current_time()

        assert sorted(await complete(receiver, 2)) == ["before", "later"]
    assert trio.current_time() - began <= 1.0


async def test_a_primary_that_hangs_holds_up_no_message_of_the_backlog(harness):
    stand = await Stand.make(harness)
    harness.primary.fail(Hang())
    await stand.send(message("a"))

    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["a"]


async def test_a_secondary_that_is_down_harms_no_receiver(harness):
    stand = await Stand.make(harness)
    harness.secondary.fail(AWAY)
    await stand.send(message("a"))

    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["a"]
        available = required(receiver, ReceivesAvailable)
        assert await available.receive_available(1) == []


async def test_a_queue_isnt_called_empty_while_its_primary_cant_say_so(harness):
    stand = await Stand.make(harness)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        available = required(receiver, ReceivesAvailable)
        assert await available.receive_available(1) == []
        stand.lose_primary()

        with pytest.raises(Unavailable):
            await available.receive_available(1)
        await stand.send(message("a"))
        [delivery] = await available.receive_available(1)
        assert delivery.message.message_id == "a"


async def test_an_entity_that_the_primary_doesnt_have_is_refused(harness):
    stand = await Stand.make(harness)
    await harness.primary.store.delete_queue(ORDERS)

    with pytest.raises(EntityNotFound):
        async with stand.broker.open_receiver(ORDERS) as receiver:
            await receiver.receive(1)


async def test_the_primarys_loss_of_the_queue_ends_a_receive_that_waits(harness):
    stand = await Stand.make(harness)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        harness.nursery.start_soon(harness.primary.store.delete_queue, ORDERS)

        with pytest.raises(EntityNotFound):
            await receiver.receive(1)


async def test_other_entities_are_the_primarys_alone(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"), entity=BILLS)

    with pytest.raises(Unavailable):
        async with stand.broker.open_receiver(BILLS) as receiver:
            await receiver.receive(1)


# Settling


async def test_the_lock_of_the_secondary_holds_renews_and_ends(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await take(receiver, 1)
        assert delivery.locked_until is not None
        await trio.sleep(50.0)
        until = await receiver.renew(delivery)
        assert until > delivery.locked_until
        await trio.sleep(70.0)

        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())
        [again] = await take(receiver, 1)
        assert again.delivery_count == 2


async def test_a_message_is_abandoned_deferred_and_dead_lettered_at_the_backlog(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        [first] = await take(receiver, 1)
        await receiver.settle(first, Abandon())
        [second] = await take(receiver, 1)
        assert second.delivery_count == 2
        await receiver.settle(second, Defer())
        deferred = required(receiver, ReceivesDeferred)
        [third] = await deferred.receive_deferred([second.sequence_number])
        assert third.message == message("a")
        await receiver.settle(third, DeadLetter(reason="bad", description="why"))

    assert await stand.backlog() == []
    [dead] = await harness.secondary.messages(OWN.dead_letter)
    assert dead.properties[DEAD_LETTER_REASON] == "bad"


async def test_a_dead_letter_of_the_backlog_is_redriven_to_receivers(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await take(receiver, 1)
        await receiver.settle(delivery, DeadLetter(reason="bad", description="why"))
        redrive = Redrive(
            source=harness.secondary.broker,
            label=LABEL,
            queues=1,
            envelope=envelope(),
            deducts=True,
            clock=harness.clock,
            new_id=harness.new_id,
            observer=harness.events,
        )
        await redrive.run(Selection(reasons=("bad",)), add=lambda _: None)

        [again] = await take(receiver, 1)
    assert again.message == message("a")


@pytest.mark.parametrize("settle", [Abandon, Defer])
async def test_a_settlement_changes_no_property_of_a_signed_message(harness, settle):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"), message("b"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        first, second = await take(receiver, 2)
        changed = settle(properties={"tries": 1})

        with pytest.raises(NotSupported):
            await receiver.settle(first, changed)
        many = required(receiver, SettlesMany)
        refused, settled = await many.settle_many([(first, changed), (second, Complete())])
        assert isinstance(refused, NotSupported)
        assert settled is None


async def test_a_settlement_without_an_answer_is_unknown(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await take(receiver, 1)
        harness.secondary.fail(LoseAnswer(), Operation.SETTLE, times=1)

        with pytest.raises(OutcomeUnknown):
            await receiver.settle(delivery, Complete())
        with pytest.raises(OutcomeUnknown):
            await receiver.settle(delivery, Complete())  # the lock is gone: it was done, perhaps


async def test_receive_and_delete_completes_at_the_backlog(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        [delivery] = await take(receiver, 1)

    assert delivery.lock_token is None
    assert await stand.backlog() == []


# Messages that no receiver gets


async def test_an_expired_message_is_dead_lettered(harness):
    stand = await Stand.make(harness)
    stand.lose_primary()
    await stand.send(message("old", time_to_live=timedelta(seconds=10)), message("b"))
    await trio.sleep(11.0)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["b"]
        await trio.sleep(1.0)

    assert [event.reason for event in harness.events.of(DeadLettered)] == ["TTLExpiredException"]
    assert len(await harness.secondary.messages(OWN.dead_letter)) == 1


async def test_a_message_of_another_pair_is_left_untouched(harness):
    stand = await Stand.make(harness)
    stranger = envelope(keys=(EnvelopeKey(id="2", key=b"another key"),))
    await harness.divert(message("theirs"), queue=OWN, envelope=stranger)
    await harness.divert(message("elsewhere"), queue=OWN, entity=BILLS)
    await harness.divert(message("ours"), queue=OWN)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["ours"]

    assert len(await stand.backlog()) == 2
    assert sum(event.messages for event in harness.events.of(LeftUntouched)) == 2


async def test_a_backlog_queue_that_is_missing_is_told_once(harness):
    stand = await Stand.make(harness, has_queue=False)
    await stand.send(message("a"))
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert await complete(receiver, 1) == ["a"]
        with trio.move_on_after(60.0):
            await receiver.receive(1)

    [told] = harness.events.of(BacklogNotReceived)
    assert (told.entity, told.queue) == (ORDERS, OWN)


# Seeing


async def with_peeks(harness: Harness) -> Stand:
    """A stand whose namespaces show messages."""
    harness.primary = await harness.namespace(kind=FaultySessionsBroker)
    harness.secondary = await harness.namespace(kind=FaultySessionsBroker)
    await harness.primary.store.create_queue(ORDERS, QueueProperties())
    return await Stand.make(harness)


async def test_a_peek_shows_both_sides(harness):
    stand = await with_peeks(harness)
    await stand.send(message("a"))
    stand.lose_primary()
    await stand.send(message("b"))
    peeks = required(stand.broker, Peeks)

    [shown] = await peeks.peek(ORDERS, limit=10)
    assert shown.message == message("b")
    harness.primary.heal()
    [first] = await peeks.peek(ORDERS, limit=10)
    [second] = await peeks.peek(ORDERS, from_sequence=first.sequence_number + 1, limit=10)
    assert [each.message.message_id for each in (first, second)] == ["a", "b"]
    assert await peeks.peek(ORDERS, from_sequence=second.sequence_number + 1) == []


async def test_a_peek_shows_no_empty_queue_while_the_primary_cant_be_asked(harness):
    stand = await with_peeks(harness)
    stand.lose_primary()

    with pytest.raises(Unavailable):
        await required(stand.broker, Peeks).peek(ORDERS)


async def test_the_count_of_an_entity_has_both_sides(harness):
    stand = await Stand.make(harness)
    await stand.send(message("a"))
    await harness.divert(message("b"), message("c"), queue=OWN)

    assert (await stand.broker.inspect(ORDERS)).active == 3
    harness.secondary.fail(refuse(Unavailable), Operation.MANAGE)
    assert (await stand.broker.inspect(ORDERS)).active is None


async def test_the_counts_of_a_list_have_both_sides(harness):
    stand = await Stand.make(harness)
    other = EntityPath("others")
    await harness.primary.store.create_queue(other, QueueProperties())
    await harness.primary.store.send(other, [message("x")])
    await stand.send(message("a"))
    await harness.divert(message("b"), message("c"), queue=OWN)

    async def counts() -> dict[EntityPath, int | None]:
        found = await stand.broker.list_queues()
        return {each.path: each.active for each in found if each.path in {ORDERS, other}}

    assert await counts() == {ORDERS: 3, other: 1}
    for fault in (AWAY, Hang()):
        harness.secondary.fail(fault, Operation.MANAGE)
        with trio.fail_after(6.0):
            assert await counts() == {ORDERS: None, other: 1}


async def test_two_kinds_of_namespaces_arent_polled_as_one(harness):
    stand = await Stand.make(harness)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        assert offered(receiver, Polls) is None


async def test_both_sides_keep_their_queue_open_only_while_a_receiver_is(harness):
    stand = await Stand.make(harness)
    async with stand.broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(5.0):
            await receiver.receive(1)
    harness.secondary.asked.clear()
    await trio.sleep(100.0)

    assert harness.secondary.times(Operation.RECEIVE) == []
