"""Parts of the tests of checksums that other tests need, too."""

from pathlib import Path

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.topics.filters import Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.store.embedded.stores import ORDERS, embedded, numbered

NEWS = EntityPath("news")


async def make(folder: Path) -> None:
    """A store with rows of every kind."""
    rule = Rule(name="some", filter=SqlFilter(expression="a = 1"))
    async with embedded(folder) as broker:
        await broker.create_topic(NEWS, TopicProperties())
        await broker.create_subscription(NEWS, "reader", SubscriptionProperties(), rule)
        await broker.create_queue(EntityPath("gone"), QueueProperties())
        await broker.delete_queue(EntityPath("gone"))
        await broker.send(ORDERS, numbered(1))
