"""The properties of planned entities that are only named."""

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.plan import PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties


def test_an_entity_that_is_only_named_has_the_usual_properties() -> None:
    path = EntityPath("orders")

    assert PlannedQueue(path=path).properties == QueueProperties()
    assert PlannedTopic(path=path).properties == TopicProperties()
    assert PlannedSubscription(name="s").properties == SubscriptionProperties()
