"""
The entities that a namespace should have, from its `queues` and from the file that `entities`
names.
"""

from collections.abc import Mapping, Sequence

import attrs

from gateway.config.options import Namespace
from gateway.domain.entity import EntityPath
from gateway.domain.plan import Plan, PlannedQueue, PlannedTopic
from gateway.extensions.sharding.table import ShardingRule
from gateway.wire.servicebus.emulator_config import MAX_BYTES, parse_emulator_config


def read_plan(namespace: Namespace) -> tuple[Plan, list[str]]:
    """The plan, and a line for each error in the file; each line begins with `entities`."""
    plan, problems = _plan_of_file(namespace)
    there = {queue.path for queue in plan.queues}
    paths = [EntityPath(name) for name in namespace.queues]
    more = (PlannedQueue(path=path) for path in paths if path not in there)
    return Plan(queues=(*plan.queues, *more), topics=plan.topics), problems


def with_topic(plan: Plan, name: str) -> Plan:
    """The plan, with that topic added if it is missing."""
    topic = PlannedTopic(path=EntityPath(name))
    there = any(each.path == topic.path for each in plan.topics)
    return plan if there else Plan(queues=plan.queues, topics=(*plan.topics, topic))


def with_shards(
    namespaces: Mapping[str, Namespace], rules: Sequence[ShardingRule], home: str
) -> dict[str, Namespace]:
    """
    The namespaces, of which those with shards plan them with the properties of their queue, if the
    primary plans the queue. `home`: the primary's name.
    """
    found = dict(namespaces)
    for rule in rules:
        path = EntityPath(rule.queue)
        planned = found[home].plan.queues if home in found else ()
        queue = next((queue for queue in planned if queue.path == path), None)
        if queue is None:
            continue
        for number in range(1, rule.shards):
            name = rule.namespace_of(number) or home
            if (namespace := found.get(name)) is not None:
                shard = attrs.evolve(queue, path=path.shard(number))
                queues = (*namespace.plan.queues, shard)
                plan = attrs.evolve(namespace.plan, queues=queues)
                found[name] = attrs.evolve(namespace, plan=plan)
    return found


def _plan_of_file(namespace: Namespace) -> tuple[Plan, list[str]]:
    file = namespace.entities
    if file is None:
        return Plan(), []
    try:
        with file.open("rb") as opened:
            body = opened.read(MAX_BYTES + 1)
    except OSError as error:
        return Plan(), [f"entities: {file}: {error.strerror}"]
    plan, problems = parse_emulator_config(body)
    return plan, [f"entities: {file.name}: {problem}" for problem in problems]
