"""
The entities that a namespace should have, from its `queues` and from the file that `entities`
names.
"""

from gateway.config.options import Namespace
from gateway.domain.entity import EntityPath
from gateway.domain.plan import Plan, PlannedQueue, PlannedTopic
from gateway.wire.servicebus.emulator_config import MAX_BYTES, parse_emulator_config


def read_plan(namespace: Namespace) -> tuple[Plan, list[str]]:
    """The plan, and one line for each error in the file; each begins with `entities`."""
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
