"""Queues that match a pattern of `receive_in_outage` have a backlog queue before the outage."""

import trio

from gateway.domain.backlog import own_queue
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotSupported
from gateway.domain.events.gateway import Doubtful
from gateway.domain.topics.topology import TopicProperties
from tests.extensions.receive_in_outage.stand import AWAY, Stand, complete, two_sided
from tests.harness.faults import Operation
from tests.pairing.harness import BILLS, LABEL, ORDERS, message, refuse, virtual_time

pytestmark = virtual_time

OWN = own_queue(LABEL, ORDERS)


async def make(harness, *patterns):
    stand = await Stand.make(harness, has_queue=False, receive_in_outage=patterns)
    await trio.sleep(1.0)
    return stand


async def own_queues(harness):
    listed = await harness.secondary.broker.list_queues(f"{LABEL}/x-servicebus-transfer-of", top=99)
    return [each.path for each in listed]


async def test_queues_of_the_primary_that_match_have_backlog_queues_from_the_start(harness):
    await make(harness, "ord*")

    assert await own_queues(harness) == [OWN]


async def test_a_receiver_of_a_match_gets_in_the_outage_what_was_sent_in_it(harness):
    stand = await make(harness, "o*")
    async with stand.broker.open_receiver(ORDERS) as receiver:
        stand.lose_primary()
        await stand.send(message("a"))

        assert await complete(receiver, 1) == ["a"]


async def test_a_queue_that_is_made_later_has_a_backlog_queue_after_its_first_message(harness):
    stand, late = await make(harness, "late/*"), EntityPath("late/a")
    assert await own_queues(harness) == []
    await harness.primary.store.create_queue(late, QueueProperties())
    await stand.send(message("before"), entity=late)
    await trio.sleep(1.0)

    stand.lose_primary()
    await stand.send(message("meanwhile"), entity=late)

    assert await own_queues(harness) == [own_queue(LABEL, late)]
    async with stand.broker.open_receiver(late) as receiver:
        assert await complete(receiver, 1) == ["meanwhile"]


async def test_a_primary_that_is_away_at_the_start_is_asked_again(harness):
    harness.primary.fail(AWAY)
    await make(harness, "o*")
    assert await own_queues(harness) == []

    harness.primary.heal()
    await trio.sleep(60.0)

    assert await own_queues(harness) == [OWN]


async def test_a_match_that_requires_sessions_or_is_a_topic_has_none(harness):
    needing = QueueProperties(requires_session=True)
    await harness.primary.store.create_queue(EntityPath("jobs"), needing)
    await harness.primary.store.create_topic(EntityPath("news"), TopicProperties())
    stand = await make(harness, "j*", "n*")
    await stand.send(message("a"), entity=EntityPath("news"))
    await trio.sleep(1.0)

    assert await own_queues(harness) == []


async def test_other_queues_are_received_from_at_the_primary_alone(harness):
    stand = await make(harness, "o*")
    stand.lose_primary()
    await stand.send(message("a"), entity=BILLS)

    assert await own_queues(harness) == [OWN]
    assert await harness.secondary.ids(OWN) == []


async def test_a_secondary_without_a_list_has_no_queues_of_patterns_and_that_is_told(harness):
    harness.secondary.fail(refuse(NotSupported, "no list"), Operation.MANAGE)
    await make(harness, "o*")
    harness.secondary.heal()

    assert await own_queues(harness) == []
    [told] = harness.events.of(Doubtful)
    assert "the backlog queues of o* can't be made: no list" in told.text


async def test_a_match_without_its_backlog_queue_is_counted_by_the_primary_alone(harness):
    stand = await Stand.make(harness, has_queue=False)
    await stand.send(message("a"))

    assert (await two_sided(harness, stand.pair, []).inspect(ORDERS)).active == 1
