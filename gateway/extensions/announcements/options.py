"""`[triggers]`, and what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from attrs import validators

from gateway.config.kinds import cannot
from gateway.config.options import Config
from gateway.config.problems import no_namespace
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.plan import Plan, PlannedTopic
from gateway.extensions.tables import Table


@attrs.frozen(kw_only=True)
class TriggerTopic:
    """
    `[triggers]`: the gateway announces new messages over a topic, which `pairgate listen` reads.
    Without it, listeners get announcements only from `admin` endpoints.
    """

    topic: str = attrs.field(validator=validators.min_len(1))
    namespace: str | None = None  # the namespace with the topic; None: the primary
    # All messages of a queue within this time, in seconds, after a trigger become one further
    # trigger.
    window: float = attrs.field(default=0.02, validator=validators.ge(0.001))
    time_to_live: float = attrs.field(default=60.0, validator=validators.ge(1.0))  # of a trigger


TRIGGERS: Final = Table[TriggerTopic | None](
    name="triggers", kind=TriggerTopic | None, missing=None
)


def keepers(config: Config) -> Iterator[str]:
    """The namespace that `[triggers]` names: it may have nothing else than the topic."""
    triggers = config.of(TRIGGERS)
    if triggers is not None and triggers.namespace is not None:
        yield triggers.namespace


def completed(config: Config, _: Path) -> Config:
    """The configuration in which the topic's namespace plans the topic."""
    triggers = config.of(TRIGGERS)
    if triggers is None:
        return config
    name = triggers.namespace or config.home_name
    namespace = config.namespaces.get(name)
    if namespace is None:
        return config
    planned = attrs.evolve(namespace, plan=_with_topic(namespace.plan, triggers.topic))
    return attrs.evolve(config, namespaces={**config.namespaces, name: planned})


def _with_topic(plan: Plan, name: str) -> Plan:
    """The plan, with that topic added if it is missing."""
    topic = PlannedTopic(path=EntityPath(name))
    there = any(each.path == topic.path for each in plan.topics)
    return plan if there else Plan(queues=plan.queues, topics=(*plan.topics, topic))


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    triggers = config.of(TRIGGERS)
    if triggers is None:
        return
    try:
        EntityPath.parse(triggers.topic)
    except InvalidRequest as error:
        yield f"triggers.topic: {error}"
    name = triggers.namespace
    if name is not None and name not in config.namespaces:
        yield f"triggers.namespace: {no_namespace(name, config.namespaces)}"
        return
    if config.home_name not in config.namespaces:
        return  # reported elsewhere
    keeper = config.home if name is None else config.namespaces[name]
    if "topics" in cannot(keeper.url):
        kind = keeper.url.partition(":")[0]
        yield (
            f"triggers.namespace: {keeper.name!r} is of the kind {kind}, which"
            " doesn't support topics; use one of kind embedded, servicebus or servicebus+http(s)"
        )
