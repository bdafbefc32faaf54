"""`[[sharding]]`: the namespaces of the shards, their plans, and what is wrong with the rules."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from gateway.config.options import Config, Namespace
from gateway.config.problems import no_namespace, twice
from gateway.domain.backlog import is_backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.plan import Plan
from gateway.extensions.sharding.table import ShardingRule
from gateway.extensions.tables import Table

SHARDING: Final = Table[tuple[ShardingRule, ...]](
    name="sharding", kind=tuple[ShardingRule, ...], missing=()
)


def namespaces_with_shards(config: Config) -> Iterator[str]:
    """The names of the namespaces that have shards."""
    yield from (name for rule in config.of(SHARDING) for name in rule.namespaces)


def planned(config: Config, _: Path) -> Config:
    """
    The configuration in which the namespaces with shards plan them with the properties of their
    queue, if the primary plans the queue.
    """
    found = dict(config.namespaces)
    for rule in config.of(SHARDING):
        path = EntityPath(rule.queue)
        queues = found[config.home_name].plan.queues if config.home_name in found else ()
        queue = next((queue for queue in queues if queue.path == path), None)
        if queue is None:
            continue
        for number in range(1, rule.shards):
            name = rule.namespace_of(number) or config.home_name
            if (namespace := found.get(name)) is not None:
                shard = attrs.evolve(queue, path=path.shard(number))
                plan = attrs.evolve(namespace.plan, queues=(*namespace.plan.queues, shard))
                found[name] = attrs.evolve(namespace, plan=plan)
    return attrs.evolve(config, namespaces=found)


def reloaded(before: Config, after: Config) -> Config:
    """
    The configuration `before` with the shards of `after`; without them, if `after` shards other
    queues, or needs a namespace for a shard that isn't open: then a restart is needed.
    """
    queues = [rule.queue.lower() for rule in before.of(SHARDING)]
    is_open = {before.home.name, *before.further_namespaces}.issuperset
    same = queues == [rule.queue.lower() for rule in after.of(SHARDING)]
    if not same or not all(is_open(rule.namespaces) for rule in after.of(SHARDING)):
        return before
    namespaces = {
        name: _with_plan_of(namespace, after.namespaces.get(name))
        for name, namespace in before.namespaces.items()
    }
    return attrs.evolve(before, namespaces=namespaces).with_table(SHARDING, after.of(SHARDING))


def _with_plan_of(namespace: Namespace, other: Namespace | None) -> Namespace:
    """The namespace, with the plan of the other if only shards differ."""
    if other is None or _without_shards(namespace.plan) != _without_shards(other.plan):
        return namespace
    return attrs.evolve(namespace, plan=other.plan)


def _without_shards(plan: Plan) -> Plan:
    return attrs.evolve(plan, queues=tuple(q for q in plan.queues if not q.path.shard_number))


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    if config.home_name not in config.namespaces:
        return  # reported elsewhere
    for index, rule in enumerate(config.of(SHARDING)):
        for problem in _of_rule(config, rule):
            yield f"sharding[{index}].{problem}"
    for queue in twice([rule.queue.lower() for rule in config.of(SHARDING)]):
        yield f"sharding: the queue {queue!r} is given twice"


def sharded_queues(config: Config) -> Iterator[tuple[str, str]]:
    """The sharded queues, of which each shard leaves the primary alone, each with its key."""
    for index, rule in enumerate(config.of(SHARDING)):
        yield rule.queue, f"sharding[{index}].queue"


def warnings(config: Config) -> Iterator[str]:
    """Yield a line for each sharded queue that the primary doesn't plan."""
    if config.home_name not in config.namespaces:
        return
    planned = {queue.path.key for queue in config.home.plan.queues}
    for index, rule in enumerate(config.of(SHARDING)):
        if rule.shards > 1 and EntityPath(rule.queue).key not in planned:
            yield (
                f"sharding[{index}]: namespaces.{config.home_name} has no queue {rule.queue!r} in"
                " queues or entities: `provision` doesn't make its shards, and `serve` makes them"
                " if its credentials may"
            )


def _of_rule(config: Config, rule: ShardingRule) -> Iterator[str]:
    yield from _sharded_name(rule)
    if rule.namespaces and len(rule.namespaces) != rule.shards:
        found = len(rule.namespaces)
        yield f"namespaces: one for each of {rule.shards} shards expected, got {found}"
    yield from _places_of_shards(config, rule)
    for number in rule.drain:
        if number >= rule.shards:
            yield f"drain: numbers of shards expected, 0 to {rule.shards - 1}, got {number}"
    if set(range(rule.shards)) <= set(rule.drain):
        yield "drain: at least one shard must get messages"


def _sharded_name(rule: ShardingRule) -> Iterator[str]:
    try:
        path = EntityPath.parse(rule.queue)
    except InvalidRequest as error:
        yield f"queue: {error}"
        return
    if path.is_dead_letter or path.is_subscription or path.shard_number or is_backlog(path):
        yield "queue: a queue expected, not a sub-queue, a subscription, a shard or a backlog"


def _places_of_shards(config: Config, rule: ShardingRule) -> Iterator[str]:
    for name in dict.fromkeys(rule.namespaces):
        if name not in config.namespaces:
            yield f"namespaces: {no_namespace(name, config.namespaces)}"
        elif config.pairing is not None and name == config.pairing.secondary:
            yield f"namespaces: {name!r} is the secondary, which has the backlog of all shards"
    if rule.namespaces and rule.namespaces[0] != config.home_name:
        yield (
            f"namespaces: {config.home_name!r} expected first, because the first shard is the queue"
            " itself, in the primary"
        )
