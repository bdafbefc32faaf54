"""Makes the entities that the configuration names."""

from contextlib import suppress

import trio

from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityExists, NotSupported
from gateway.domain.plan import Plan, PlannedQueue, PlannedSubscription, PlannedTopic
from gateway.domain.topology import SubscriptionInfo
from gateway.ports import Broker


async def make_entities(broker: Broker, plan: Plan) -> list[EntityPath]:
    """
    Make what is missing, topics after queues; return what was made. What is there stays as it is.

    Raises:
        BrokerError: of the first that couldn't be made; the earlier ones stay.
        NotSupported: there are topics in the plan, and the namespace can't have any.
    """
    await trio.lowlevel.checkpoint()
    made = [queue.path for queue in plan.queues if await _make_queue(broker, queue)]
    if not plan.topics:
        return made
    if not isinstance(broker, Topology):
        raise NotSupported(f"topic {plan.topics[0].path}: this kind of namespace has no topics")
    for topic in plan.topics:
        if await _make_topic(broker, topic):
            made.append(topic.path)
        for subscription in topic.subscriptions:
            info = await _make_subscription(broker, topic.path, subscription)
            made += [info.path] if info else []
    return made


async def _make_queue(broker: Broker, queue: PlannedQueue) -> bool:
    await trio.lowlevel.checkpoint()
    try:
        await broker.create_queue(queue.path, queue.properties)
    except EntityExists:
        return False
    return True


async def _make_topic(broker: Topology, topic: PlannedTopic) -> bool:
    await trio.lowlevel.checkpoint()
    try:
        await broker.create_topic(topic.path, topic.properties)
    except EntityExists:
        return False
    return True


async def _make_subscription(
    broker: Topology, topic: EntityPath, subscription: PlannedSubscription
) -> SubscriptionInfo | None:
    """With its rules, those too that one that is there lacks: its maker may have been killed."""
    await trio.lowlevel.checkpoint()
    name, rules = subscription.name, subscription.rules
    first = rules[0] if rules else None
    info: SubscriptionInfo | None = None
    with suppress(EntityExists):
        info = await broker.create_subscription(topic, name, subscription.properties, first)
    for rule in rules[1:] if info else rules:
        with suppress(EntityExists):
            await broker.create_rule(topic, name, rule)
    return info
