"""Topics behind a pair: a diverted message arrives at the subscriptions like any other."""

import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import DeadLettered
from gateway.domain.message import AcceptedBy
from gateway.domain.topics.filters import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import QUEUE, Harness, message, virtual_time

pytestmark = virtual_time

NEWS = EntityPath("eu/news")
PAINT = Rule(
    name="paint",
    filter=CorrelationFilter(label="red"),
    action=SqlAction(expression="SET color = 'red'"),
)


def of(subscription: str) -> EntityPath:
    return EntityPath(f"eu/news/subscriptions/{subscription}")


@pytest.fixture
async def news(harness: Harness) -> EntityPath:
    """A topic with one subscription for all messages, and one for those where n > 1."""
    store = harness.primary.store
    await store.create_topic(NEWS, TopicProperties())
    await store.create_subscription(NEWS, "all", SubscriptionProperties())
    many = Rule(name="many", filter=SqlFilter(expression="n > 1"))
    await store.create_subscription(NEWS, "many", SubscriptionProperties(), many)
    return NEWS


def numbered(*numbers: int, **fields):
    return [message(str(n), properties={"n": n}, **fields) for n in numbers]


async def test_a_diverted_message_comes_to_the_subscriptions_that_its_rules_name(harness, news):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), Operation.SEND)
    accepted_by = [await send_accepted_by(pair.broker, news, [each]) for each in numbered(1, 2, 3)]
    harness.primary.heal()
    await harness.syphon()

    await trio.sleep(60.0)

    assert accepted_by == [AcceptedBy.BACKLOG] * 3
    assert await harness.primary.ids(of("all")) == ["1", "2", "3"]
    assert await harness.primary.ids(of("many")) == ["2", "3"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_topic_fails_over_and_comes_back_by_itself(harness, news):
    pair = await harness.pair(failover_interval=5.0)
    harness.primary.fail(Refuse(), entity=news)
    for number in range(10):
        await pair.broker.send(news, numbered(number))
        await trio.sleep(1.0)
    failed_over = pair.states.state_of(news).value
    harness.primary.heal()

    await trio.sleep(120.0)

    assert failed_over == "secondary"
    assert await send_accepted_by(pair.broker, news, numbered(11)) is AcceptedBy.PRIMARY
    assert pair.states.state_of(news).value == "primary"


async def test_an_action_changes_a_diverted_message_when_it_comes_home(harness, news):
    await harness.primary.store.create_rule(news, "all", PAINT)
    await harness.divert(*numbered(1), *numbered(2, subject="red"), entity=news)
    await harness.syphon()

    await trio.sleep(60.0)

    found = await harness.primary.messages(of("all"))
    painted = [(each.message_id, dict(each.properties)) for each in found]
    assert ("2", {"n": 2, "color": "red", "RuleName": "paint"}) in painted
    assert [message_id for message_id, _ in painted] == ["1", "2", "2"]
    assert await harness.secondary.ids(QUEUE.dead_letter) == []


async def test_a_subscription_with_sessions_asks_no_more_of_the_topic_than_in_health(harness, news):
    # The topic takes it, and that subscription keeps it among its dead letters.
    chats = SubscriptionProperties(requires_session=True)
    await harness.primary.store.create_subscription(news, "chats", chats)
    pair = await harness.pair()
    await pair.broker.send(news, numbered(1))
    pair.states.force_over(news)
    await pair.broker.send(news, numbered(2))
    await harness.syphon()

    await trio.sleep(60.0)

    assert await harness.primary.ids(of("chats").dead_letter) == ["1", "2"]
    assert await harness.primary.ids(of("all")) == ["1", "2"]


async def test_a_topic_that_is_made_anew_without_subscriptions_drops_as_it_would_in_health(
    harness, news
):
    await harness.divert(*numbered(1), entity=news)
    await harness.primary.store.delete_topic(news)
    await harness.primary.store.create_topic(news, TopicProperties())
    await harness.primary.store.create_subscription(
        news, "none", SubscriptionProperties(), Rule(name="none", filter=FalseFilter())
    )
    await harness.syphon()

    await trio.sleep(60.0)

    assert await harness.secondary.ids(QUEUE) == []
    assert (await harness.primary.store.inspect_topic(news)).size == 0
    assert harness.events.of(DeadLettered) == []
