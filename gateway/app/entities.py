"""Creates the entities that the configuration names."""

from contextlib import suppress

from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityExists, NotSupported
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topics.topology import SubscriptionInfo
from gateway.offering import offered
from gateway.ports import Broker


async def make_entities(broker: Broker, plan: Plan) -> list[EntityPath]:
    """
    Create missing entities, topics after queues; return the created ones. Existing entities stay as
    they are.

    Raises:
        BrokerError: an entity couldn't be created; those created before stay.
        NotSupported: the plan has topics, and the namespace doesn't support topics.
    """
    made = [queue.path for queue in plan.queues if await _make_queue(broker, queue)]
    if not plan.topics:
        return made
    topology = offered(broker, Topology)
    if topology is None:
        raise NotSupported(
            f"topic {plan.topics[0].path}: this kind of namespace doesn't support topics"
        )
    for topic in plan.topics:
        if await _make_topic(topology, topic):
            made.append(topic.path)
        for subscription in topic.subscriptions:
            info = await _make_subscription(topology, topic.path, subscription)
            made += [info.path] if info else []
    return made


async def _make_queue(broker: Broker, queue: PlannedQueue) -> bool:
    try:
        await broker.create_queue(queue.path, queue.properties)
    except EntityExists:
        return False
    return True


async def _make_topic(broker: Topology, topic: PlannedTopic) -> bool:
    try:
        await broker.create_topic(topic.path, topic.properties)
    except EntityExists:
        return False
    return True


async def _make_subscription(
    broker: Topology, topic: EntityPath, subscription: PlannedSubscription
) -> SubscriptionInfo | None:
    """
    Create the subscription and its rules. Missing rules of an existing subscription are added: the
    process that created it may have been killed.
    """
    name, rules = subscription.name, subscription.rules
    first = rules[0] if rules else None
    info: SubscriptionInfo | None = None
    with suppress(EntityExists):
        info = await broker.create_subscription(topic, name, subscription.properties, first)
    for rule in rules[1:] if info else rules:
        with suppress(EntityExists):
            await broker.create_rule(topic, name, rule)
    return info
