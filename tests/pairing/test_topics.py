"""Topics behind a pair: a diverted message comes to the subscriptions as one that wasn't."""

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.events import Parked
from gateway.domain.message import Leg
from gateway.domain.rules import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topology import SubscriptionProperties, TopicProperties
from gateway.testing.faults import Operation, Refuse
from tests.pairing.lab import QUEUE, Lab, message, virtual_time

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
async def news(lab: Lab) -> EntityPath:
    """A topic with one subscription for all messages, and one for those where n > 1."""
    store = lab.primary.store
    await store.create_topic(NEWS, TopicProperties())
    await store.create_subscription(NEWS, "all", SubscriptionProperties())
    many = Rule(name="many", filter=SqlFilter(expression="n > 1"))
    await store.create_subscription(NEWS, "many", SubscriptionProperties(), many)
    return NEWS


def numbered(*numbers: int, **fields):
    return [message(str(n), properties={"n": n}, **fields) for n in numbers]


async def test_a_diverted_message_comes_to_the_subscriptions_that_its_rules_name(lab, news):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), Operation.SEND)
    legs = [await pair.broker.send(news, [each]) for each in numbered(1, 2, 3)]
    lab.primary.heal()
    await lab.syphon()

    await trio.sleep(60.0)

    assert legs == [Leg.BACKLOG] * 3
    assert await lab.primary.ids(of("all")) == ["1", "2", "3"]
    assert await lab.primary.ids(of("many")) == ["2", "3"]
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_topic_fails_over_and_comes_back_by_itself(lab, news):
    pair = await lab.pair(failover_interval=5.0)
    lab.primary.fail(Refuse(), entity=news)
    for number in range(10):
        await pair.broker.send(news, numbered(number))
        await trio.sleep(1.0)
    failed_over = pair.standings.state_of(news).value
    lab.primary.heal()

    await trio.sleep(120.0)

    assert failed_over == "secondary"
    assert await pair.broker.send(news, numbered(11)) is Leg.PRIMARY
    assert pair.standings.state_of(news).value == "primary"


async def test_what_an_action_would_have_to_change_is_no_outage(lab, news):
    pair = await lab.pair()
    await lab.primary.store.create_rule(news, "all", PAINT)

    with pytest.raises(NotSupported, match="paint"):
        await pair.broker.send(news, numbered(1, subject="red"))

    assert pair.standings.state_of(news).value == "primary"
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_diverted_message_that_an_action_would_have_to_change_is_parked(lab, news):
    await lab.primary.store.create_rule(news, "all", PAINT)
    await lab.divert(*numbered(1), *numbered(2, subject="red"), *numbered(3), entity=news)
    await lab.syphon()

    await trio.sleep(60.0)

    assert await lab.primary.ids(of("all")) == ["1", "3"]
    [event] = lab.events.of(Parked)
    assert (event.message_id, event.reason) == ("2", "NotSupported")
    assert "'paint'" in event.description
    [dead] = await lab.secondary.messages(QUEUE.dead_letter)
    assert dead.message_id == "2"


async def test_a_subscription_with_sessions_asks_no_more_of_the_topic_than_in_health(lab, news):
    # The topic takes it, and that subscription keeps it among its dead letters.
    chats = SubscriptionProperties(requires_session=True)
    await lab.primary.store.create_subscription(news, "chats", chats)
    pair = await lab.pair()
    await pair.broker.send(news, numbered(1))
    pair.standings.force_over(news)
    await pair.broker.send(news, numbered(2))
    await lab.syphon()

    await trio.sleep(60.0)

    assert await lab.primary.ids(of("chats").dead_letter) == ["1", "2"]
    assert await lab.primary.ids(of("all")) == ["1", "2"]


async def test_a_topic_that_is_made_anew_without_subscriptions_drops_as_it_would_in_health(
    lab, news
):
    await lab.divert(*numbered(1), entity=news)
    await lab.primary.store.delete_topic(news)
    await lab.primary.store.create_topic(news, TopicProperties())
    await lab.primary.store.create_subscription(
        news, "none", SubscriptionProperties(), Rule(name="none", filter=FalseFilter())
    )
    await lab.syphon()

    await trio.sleep(60.0)

    assert await lab.secondary.ids(QUEUE) == []
    assert (await lab.primary.store.inspect_topic(news)).size == 0
    assert lab.events.of(Parked) == []
