import random
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, NotAuthorized, NotSupported, Unavailable
from gateway.domain.topics.topology import TopicProperties
from gateway.pairing.entity_cache import (
    EntityCache,
    KnownEntity,
    list_known,
    list_known_topics,
)
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import BILLS, ORDERS, refuse, virtual_time

pytestmark = virtual_time

MANAGE = Operation.MANAGE


@pytest.fixture
async def entity_cache(harness):
    entity_cache = EntityCache(primary=harness.primary.broker)
    await harness.nursery.start(entity_cache.run)
    return entity_cache


async def test_an_entity_that_took_a_message_exists(entity_cache):
    unknown = entity_cache.of(ORDERS)

    entity_cache.record_accepted(ORDERS)

    assert unknown is None
    assert entity_cache.of(EntityPath("ORDERS")) == KnownEntity(entity=ORDERS)


async def test_the_primary_is_asked_about_an_entity_that_was_seen(harness, entity_cache):
    small = EntityPath("small")
    await harness.primary.store.create_queue(small, QueueProperties(max_message_size=500))
    entity_cache.record_accepted(small)
    await wait_all_tasks_blocked()

    known = entity_cache.of(small)

    assert known == KnownEntity(entity=small, requires_session=False, max_message_size=500)


async def test_a_topic_is_known_as_a_queue_is(autojump_clock, nursery):
    news, plain = EntityPath("news"), EntityPath("plain")
    async with MemoryBroker(VirtualClock(), random.Random(0)) as primary:
        await primary.create_topic(news, TopicProperties(max_message_size=500))
        await primary.create_topic(plain, TopicProperties())
        entity_cache = EntityCache(primary=primary)
        await nursery.start(entity_cache.run)
        entity_cache.record_accepted(news)
        entity_cache.record_accepted(plain)
        await wait_all_tasks_blocked()

    assert entity_cache.of(news) == KnownEntity(
        entity=news, requires_session=False, max_message_size=500
    )
    assert entity_cache.of(plain) == KnownEntity(
        entity=plain, requires_session=False, max_message_size=LocalOptions().max_message_size
    )


async def test_the_primary_is_asked_once_and_again_after_an_hour(harness, entity_cache):
    for _ in range(5):
        entity_cache.record_accepted(ORDERS)
        await wait_all_tasks_blocked()
    once = len(harness.primary.times(MANAGE))

    await trio.sleep(3600.0)
    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert once == 1
    assert len(harness.primary.times(MANAGE)) == 2


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_primary_that_didnt_answer_is_asked_again_soon(harness, entity_cache, fault):
    harness.primary.fail(fault, MANAGE)
    entity_cache.record_accepted(ORDERS)
    await trio.sleep(59.0)
    harness.primary.heal()
    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()
    too_early = entity_cache.of(ORDERS)

    await trio.sleep(1.0)
    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert too_early == KnownEntity(entity=ORDERS)
    assert entity_cache.of(ORDERS).requires_session is False


async def test_without_the_right_to_ask_it_is_known_to_exist(harness, entity_cache):
    harness.primary.fail(refuse(NotAuthorized, "no"), MANAGE)

    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert entity_cache.of(ORDERS) == KnownEntity(entity=ORDERS)


async def test_an_entity_that_was_restored_is_asked_about_when_it_is_used(harness, entity_cache):
    entity_cache.restore([KnownEntity(entity=ORDERS)])

    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert entity_cache.of(ORDERS).requires_session is False


async def test_an_entity_that_is_gone_isnt_known_any_more(harness, entity_cache):
    entity_cache.record_accepted(EntityPath("gone"))
    await wait_all_tasks_blocked()

    assert entity_cache.of(EntityPath("gone")) is None


async def test_only_what_is_new_is_a_change(harness, entity_cache):
    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()
    version = entity_cache.changes.version

    entity_cache.record_accepted(ORDERS)
    await trio.sleep(3601.0)
    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert entity_cache.changes.version == version


async def test_the_longest_unused_is_forgotten(entity_cache):
    entity_cache = EntityCache(primary=entity_cache.primary, most=2)
    first, second = EntityPath("first"), EntityPath("second")
    for entity in (first, second, first, BILLS):
        entity_cache.store(KnownEntity(entity=entity))
        if entity_cache.of(entity):
            entity_cache.record_accepted(entity)

    assert entity_cache.of(first) is not None
    assert entity_cache.of(second) is None
    assert [known.entity for known in entity_cache.all()] == [first, BILLS]


async def test_a_restored_description_is_known_before_it_is_used(harness):
    entity_cache = EntityCache(primary=harness.primary.broker)

    entity_cache.restore([KnownEntity(entity=ORDERS, requires_session=True)])

    assert entity_cache.of(ORDERS) == KnownEntity(entity=ORDERS, requires_session=True)


async def test_a_new_entity_and_one_that_is_gone_are_a_change(harness):
    entity_cache = EntityCache(primary=harness.primary.broker)
    versions = [entity_cache.changes.version]
    for change in (
        lambda: entity_cache.store(KnownEntity(entity=ORDERS)),
        lambda: entity_cache.store(KnownEntity(entity=ORDERS, requires_session=True)),
        lambda: entity_cache.remove(ORDERS),
        lambda: entity_cache.remove(ORDERS),
    ):
        change()
        versions.append(entity_cache.changes.version)

    assert [after - before for before, after in pairwise(versions)] == [1, 1, 1, 0]


async def test_the_first_that_was_seen_is_asked_about_first(harness):
    entity_cache = EntityCache(primary=harness.primary.broker)
    entity_cache.record_accepted(BILLS)
    entity_cache.record_accepted(ORDERS)

    await harness.nursery.start(entity_cache.run)
    await wait_all_tasks_blocked()

    asked = [each.entity for each in harness.primary.asked if each.operation is MANAGE]
    assert asked == [BILLS, ORDERS]


async def test_a_told_description_is_asked_again_after_an_hour_and_no_earlier(
    harness, entity_cache
):
    entity_cache.record_accepted(ORDERS)
    await trio.sleep(3599.0)

    entity_cache.record_accepted(ORDERS)
    await wait_all_tasks_blocked()

    assert len(harness.primary.times(MANAGE)) == 1


async def test_a_question_without_an_answer_puts_the_next_one_off_for_ten_seconds(
    harness, entity_cache
):
    harness.primary.fail(Hang(), MANAGE, entity=ORDERS)
    entity_cache.record_accepted(ORDERS)
    entity_cache.record_accepted(BILLS)

    await trio.sleep(11.0)

    first, second = harness.primary.times(MANAGE)
    assert second - first == 10.0


# Lists


@attrs.define
class Lists:
    """A namespace that lists so many queues, and as many topics."""

    number: int = 0
    error: BrokerError | None = None
    asked: list = attrs.field(factory=list)

    async def list_queues(self, prefix="", *, skip=0, top=7):
        self.asked.append((prefix, skip, top))
        if self.error is not None:
            raise self.error
        return [*range(self.number)][skip : skip + top]

    list_topics = list_queues


@pytest.mark.parametrize("listed", [list_known, list_known_topics])
@pytest.mark.parametrize(("number", "pages"), [(0, 1), (99, 1), (100, 2), (250, 3), (1500, 10)])
async def test_entities_are_listed_by_the_hundred_up_to_a_thousand(listed, number, pages):
    broker = Lists(number)

    assert await listed(broker) == [*range(min(number, 1000))]
    assert broker.asked == [("", 100 * page, 100) for page in range(pages)]


@pytest.mark.parametrize("listed", [list_known, list_known_topics])
@pytest.mark.parametrize("error", [NotAuthorized("no"), NotSupported("no")])
async def test_a_namespace_that_lists_nothing_to_us_has_no_known_entities(listed, error):
    assert await listed(Lists(error=error)) == ()


@pytest.mark.parametrize("listed", [list_known, list_known_topics])
async def test_a_namespace_that_doesnt_answer_to_a_list_is_an_error(listed):
    with pytest.raises(Unavailable):
        await listed(Lists(error=Unavailable("out")))
