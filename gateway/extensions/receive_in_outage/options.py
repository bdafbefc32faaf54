"""The option `receive_in_outage` in `[pairing]`, and what is wrong with it."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import attrs

from gateway.config.options import Config, Pairing
from gateway.config.places import HAVE_SESSIONS, has_sessions
from gateway.domain.backlog import is_of_pair, own_queue
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.extensions.listing import parts
from gateway.extensions.tables import Table

_WILDCARDS: Final = frozenset("*?[")  # of `fnmatch`
_SET: Final = re.compile(r"\[!?\]?[^\]]*\]")  # the same


@attrs.frozen(kw_only=True)
class ReceiveInOutageOptions:
    """The queues that are received from in an outage, too."""

    receive_in_outage: tuple[str, ...] = ()  # names, and patterns such as `payments/*`

    @property
    def queues(self) -> tuple[EntityPath, ...]:
        """The queues that are given by their names."""
        return tuple(EntityPath(each) for each in self.receive_in_outage if not is_pattern(each))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Each other text of the option, in lower case."""
        return tuple(each.lower() for each in self.receive_in_outage if is_pattern(each))

    def queue_of(
        self, label: str, entity: EntityPath, *, sessions: bool = False
    ) -> EntityPath | None:
        """
        The backlog queue that the entity has for itself; None: it has none. `sessions`: the entity
        requires sessions.
        """
        if not self.receive_in_outage:
            return None
        for each in self.queues:
            if each == entity:
                return own_queue(label, each, sessions=sessions)
        if not any(fnmatchcase(entity.key, each) for each in self.patterns):
            return None
        return None if _fault_of(label, entity) else own_queue(label, entity, sessions=sessions)


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
    seen: set[str] = set()
    for index, name in enumerate(pairing.options.of(RECEIVE_IN_OUTAGE).receive_in_outage):
        key = f"pairing.receive_in_outage[{index}]"
        problem = _taken_by_another(config, name)
        if problem is None and not is_pattern(name):
            problem = _wrong_name(pairing, name) or _wrong_entity(config, pairing, name)
        if problem is None and name.lower() in seen:
            problem = f"{name!r} is given twice"
        if problem is not None:
            yield f"{key}: {problem}"
        seen.add(name.lower())


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


def is_pattern(name: str) -> bool:
    """True if the text stands for each queue that it matches."""
    return not _WILDCARDS.isdisjoint(name)


def _wrong_name(pairing: Pairing, name: str) -> str | None:
    try:
        path = EntityPath.parse(name)
    except InvalidRequest as error:
        return str(error)
    return _fault_of(pairing.options.label, path)


def _fault_of(label: str, path: EntityPath) -> str | None:
    """The reason why the entity can't have a backlog queue for itself; None: it can."""
    if path.is_dead_letter or path.is_subscription or path.shard_number or is_of_pair(path):
        return (
            "a queue expected, not a sub-queue, a subscription, a shard or a backlog:"
            f" {path.name!r}"
        )
    try:
        EntityPath.parse(own_queue(label, path, sessions=True).name)
    except InvalidRequest as error:
        return str(error)
    return None


def _taken_by_another(config: Config, name: str) -> str | None:
    """The other feature that chooses the backlog queue of such an entity; None: there is none."""
    for part in parts("exclusive"):
        for pattern, key in part(config):
            if overlap(name.lower(), pattern.lower()):
                return f"{name!r} is in {key}, and can't be received from the backlog as well"
    return None


def overlap(one: str, other: str) -> bool:
    """True if some name matches both patterns. A set of characters counts as any character."""
    return _overlap(_SET.sub("?", one), _SET.sub("?", other))


@cache
def _overlap(one: str, other: str) -> bool:
    if not one or not other:
        return not (one or other).strip("*")
    if "*" in (one[0], other[0]):
        return any(
            starred[0] == "*" and (_overlap(starred[1:], rest) or _overlap(starred, rest[1:]))
            for starred, rest in ((one, other), (other, one))
        )
    return (one[0] == other[0] or "?" in (one[0], other[0])) and _overlap(one[1:], other[1:])


def _wrong_entity(config: Config, pairing: Pairing, name: str) -> str | None:
    """The reason why that queue's messages can't be received from the backlog; None: they can."""
    path = EntityPath(name)
    primary = config.namespaces.get(pairing.primary)
    if primary is None:
        return None
    if any(topic.path == path for topic in primary.plan.topics):
        return topic_refused(path)
    for queue in primary.plan.queues:
        if queue.path == path and queue.properties.requires_session:
            return sessions_refused(config, path)
    return None


def topic_refused(path: EntityPath) -> str:
    """The words about a topic."""
    return (
        f"{path} is a topic: its messages go to subscriptions at the primary, and can't be received"
        " from the backlog"
    )


def sessions_refused(config: Config, path: EntityPath) -> str | None:
    """The words about a queue that requires sessions; None: it can be received from."""
    pairing = config.pairing
    assert pairing is not None, "the queue is a pair's"
    if pairing.encrypt:
        return (
            f"{path} requires sessions, whose ids the backlog must be able to read: its messages"
            " can't be received from there if they are encrypted"
        )
    secondary = config.namespaces[pairing.secondary]
    if has_sessions(secondary):
        return None
    return (
        f"{path} requires sessions, which the secondary {secondary.name} doesn't have:"
        f" {', '.join(sorted(HAVE_SESSIONS))} have them"
    )
