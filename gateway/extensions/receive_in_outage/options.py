"""The option `receive_in_outage` in `[pairing]`, and what is wrong with it."""

import fnmatch
from collections.abc import Iterator
from typing import Final

import attrs

from gateway.config.options import Config, Pairing
from gateway.domain.backlog import is_of_pair, own_queue
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.extensions.listing import parts
from gateway.extensions.tables import Table


@attrs.frozen(kw_only=True)
class ReceiveInOutageOptions:
    """The queues that are received from in an outage, too."""

    receive_in_outage: tuple[str, ...] = ()  # by their names

    @property
    def queues(self) -> tuple[EntityPath, ...]:
        return tuple(EntityPath(name) for name in self.receive_in_outage)


RECEIVE_IN_OUTAGE: Final = Table[ReceiveInOutageOptions](
    name="receive_in_outage",
    kind=ReceiveInOutageOptions,
    missing=ReceiveInOutageOptions(),
    keys=True,
)


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    pairing = config.pairing
    if pairing is None:
        return
    seen: set[EntityPath] = set()
    for index, name in enumerate(pairing.options.of(RECEIVE_IN_OUTAGE).receive_in_outage):
        key = f"pairing.receive_in_outage[{index}]"
        problem = _wrong_name(pairing, name) or _wrong_entity(config, pairing, name)
        if problem is None and EntityPath(name) in seen:
            problem = f"the queue {name!r} is given twice"
        if problem is not None:
            yield f"{key}: {problem}"
        seen.add(EntityPath(name))


def warnings(config: Config) -> Iterator[str]:
    """Yield a line if the backlog of such a queue would never come home from this gateway."""
    pairing = config.pairing
    if pairing is None or not pairing.options.of(RECEIVE_IN_OUTAGE).receive_in_outage:
        return
    if pairing.accept_legacy_backlog:
        yield (
            "pairing.receive_in_outage: a legacy client neither diverts to these queues nor moves"
            " their messages home; a syphon of Pairgate does"
        )


def _wrong_name(pairing: Pairing, name: str) -> str | None:
    if "*" in name or "?" in name:
        return (
            f"the name of one queue expected, without a pattern, got {name!r}: each has a backlog"
            " queue of its own, which `pairgate provision` makes"
        )
    try:
        path = EntityPath.parse(name)
        EntityPath.parse(own_queue(pairing.options.label, path).name)
    except InvalidRequest as error:
        return str(error)
    if path.is_dead_letter or path.is_subscription or path.shard_number or is_of_pair(path):
        return f"a queue expected, not a sub-queue, a subscription, a shard or a backlog: {name!r}"
    return None


def _wrong_entity(config: Config, pairing: Pairing, name: str) -> str | None:
    """The reason why that queue's messages can't be received from the backlog; None: they can."""
    path = EntityPath(name)
    for part in parts("exclusive"):
        for pattern, key in part(config):
            if fnmatch.fnmatchcase(path.key, pattern.lower()):
                return f"{name!r} is in {key}, and can't be received from the backlog as well"
    primary = config.namespaces.get(pairing.primary)
    if primary is None:
        return None
    if any(topic.path == path for topic in primary.plan.topics):
        return topic_refused(path)
    for queue in primary.plan.queues:
        if queue.path == path and queue.properties.requires_session:
            return sessions_refused(path)
    return None


def topic_refused(path: EntityPath) -> str:
    """The words about a topic."""
    return (
        f"{path} is a topic: its messages go to subscriptions at the primary, and can't be received"
        " from the backlog"
    )


def sessions_refused(path: EntityPath) -> str:
    """The words about a queue that requires sessions."""
    return (
        f"{path} requires sessions: a session is served at one side at a time, so that its messages"
        " can't be received from the backlog"
    )
