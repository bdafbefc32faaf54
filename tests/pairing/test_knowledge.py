import random
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.brokers.local import LocalOptions
from gateway.brokers.memory import MemoryBroker
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized
from gateway.domain.topology import TopicProperties
from gateway.pairing import knowledge as module
from gateway.pairing.knowledge import Knowledge, KnownEntity
from gateway.testing.clocks import VirtualClock
from gateway.testing.faults import Hang, Operation, Refuse
from tests.pairing.lab import BILLS, ORDERS, refuse, virtual_time

pytestmark = virtual_time

MANAGE = Operation.MANAGE


@pytest.fixture
async def knowledge(lab):
    knowledge = Knowledge(primary=lab.primary.broker)
    await lab.nursery.start(knowledge.run)
    return knowledge


async def test_an_entity_that_took_a_message_exists(knowledge):
    unknown = knowledge.of(ORDERS)

    knowledge.saw(ORDERS)

    assert unknown is None
    assert knowledge.of(EntityPath("ORDERS")) == KnownEntity(entity=ORDERS)


async def test_the_primary_is_asked_about_an_entity_that_was_seen(lab, knowledge):
    small = EntityPath("small")
    await lab.primary.store.create_queue(small, QueueProperties(max_message_size=500))
    knowledge.saw(small)
    await wait_all_tasks_blocked()

    known = knowledge.of(small)

    assert known == KnownEntity(entity=small, requires_session=False, max_message_size=500)


async def test_a_topic_is_known_as_a_queue_is(autojump_clock, nursery):
    news, plain = EntityPath("news"), EntityPath("plain")
    async with MemoryBroker(VirtualClock(), random.Random(0)) as primary:
        await primary.create_topic(news, TopicProperties(max_message_size=500))
        await primary.create_topic(plain, TopicProperties())
        knowledge = Knowledge(primary=primary)
        await nursery.start(knowledge.run)
        knowledge.saw(news)
        knowledge.saw(plain)
        await wait_all_tasks_blocked()

    assert knowledge.of(news) == KnownEntity(
        entity=news, requires_session=False, max_message_size=500
    )
    assert knowledge.of(plain) == KnownEntity(
        entity=plain, requires_session=False, max_message_size=LocalOptions().max_message_size
    )


async def test_the_primary_is_asked_once_and_again_after_an_hour(lab, knowledge):
    for _ in range(5):
        knowledge.saw(ORDERS)
        await wait_all_tasks_blocked()
    once = len(lab.primary.times(MANAGE))

    await trio.sleep(3600.0)
    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert once == 1
    assert len(lab.primary.times(MANAGE)) == 2


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_primary_that_didnt_answer_is_asked_again_soon(lab, knowledge, fault):
    lab.primary.fail(fault, MANAGE)
    knowledge.saw(ORDERS)
    await trio.sleep(59.0)
    lab.primary.heal()
    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()
    too_early = knowledge.of(ORDERS)

    await trio.sleep(1.0)
    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert too_early == KnownEntity(entity=ORDERS)
    assert knowledge.of(ORDERS).requires_session is False


async def test_without_the_right_to_ask_it_is_known_to_exist(lab, knowledge):
    lab.primary.fail(refuse(NotAuthorized, "no"), MANAGE)

    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert knowledge.of(ORDERS) == KnownEntity(entity=ORDERS)


async def test_an_entity_that_was_restored_is_asked_about_when_it_is_used(lab, knowledge):
    knowledge.restore([KnownEntity(entity=ORDERS)])

    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert knowledge.of(ORDERS).requires_session is False


async def test_an_entity_that_is_gone_isnt_known_any_more(lab, knowledge):
    knowledge.saw(EntityPath("gone"))
    await wait_all_tasks_blocked()

    assert knowledge.of(EntityPath("gone")) is None


async def test_only_what_is_new_is_a_change(lab, knowledge):
    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()
    version = knowledge.changes.version

    knowledge.saw(ORDERS)
    await trio.sleep(3601.0)
    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert knowledge.changes.version == version


async def test_the_longest_unused_is_forgotten(knowledge, monkeypatch):
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    first, second = EntityPath("first"), EntityPath("second")
    for entity in (first, second, first, BILLS):
        knowledge.learn(KnownEntity(entity=entity))
        if knowledge.of(entity):
            knowledge.saw(entity)

    assert knowledge.of(first) is not None
    assert knowledge.of(second) is None
    assert [known.entity for known in knowledge.all()] == [first, BILLS]


async def test_what_is_restored_is_known_before_it_is_used(lab):
    knowledge = Knowledge(primary=lab.primary.broker)

    knowledge.restore([KnownEntity(entity=ORDERS, requires_session=True)])

    assert knowledge.of(ORDERS) == KnownEntity(entity=ORDERS, requires_session=True)


async def test_what_is_new_or_gone_is_a_change(lab):
    knowledge = Knowledge(primary=lab.primary.broker)
    versions = [knowledge.changes.version]
    for change in (
        lambda: knowledge.learn(KnownEntity(entity=ORDERS)),
        lambda: knowledge.learn(KnownEntity(entity=ORDERS, requires_session=True)),
        lambda: knowledge.gone(ORDERS),
        lambda: knowledge.gone(ORDERS),
    ):
        change()
        versions.append(knowledge.changes.version)

    assert [after - before for before, after in pairwise(versions)] == [1, 1, 1, 0]


async def test_the_first_that_was_seen_is_asked_about_first(lab):
    knowledge = Knowledge(primary=lab.primary.broker)
    knowledge.saw(BILLS)
    knowledge.saw(ORDERS)

    await lab.nursery.start(knowledge.run)
    await wait_all_tasks_blocked()

    asked = [each.entity for each in lab.primary.asked if each.operation is MANAGE]
    assert asked == [BILLS, ORDERS]


async def test_what_was_told_is_asked_again_after_an_hour_and_no_earlier(lab, knowledge):
    knowledge.saw(ORDERS)
    await trio.sleep(3599.0)

    knowledge.saw(ORDERS)
    await wait_all_tasks_blocked()

    assert len(lab.primary.times(MANAGE)) == 1


async def test_a_question_without_an_answer_puts_the_next_one_off_for_ten_seconds(lab, knowledge):
    lab.primary.fail(Hang(), MANAGE, entity=ORDERS)
    knowledge.saw(ORDERS)
    knowledge.saw(BILLS)

    await trio.sleep(11.0)

    first, second = lab.primary.times(MANAGE)
    assert second - first == 10.0
