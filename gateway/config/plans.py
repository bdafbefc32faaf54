"""
The entities that a namespace should have, from its `queues` and from the file that `entities`
names.
"""

from gateway.config.options import Namespace
from gateway.domain.entity import EntityPath
from gateway.domain.plan import Plan, PlannedQueue
from gateway.wire.servicebus.emulator_config import MAX_BYTES, parse_emulator_config


def read_plan(namespace: Namespace) -> tuple[Plan, list[str]]:
    """The plan, and a line for each error in the file; each line begins with `entities`."""
    plan, problems = _plan_of_file(namespace)
    there = {queue.path for queue in plan.queues}
    paths = [EntityPath(name) for name in namespace.queues]
    more = (PlannedQueue(path=path) for path in paths if path not in there)
    return Plan(queues=(*plan.queues, *more), topics=plan.topics), problems


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
