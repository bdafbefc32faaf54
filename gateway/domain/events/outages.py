"""Events about a whole outage: a namespace is lost and returns, and its backlog is empty."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class NamespaceLost(Event):
    """A namespace can't be reached any more, for any of its entities."""

    level = "warning"

    namespace: str
    reason: str
    remedy: str = ""


@attrs.frozen(kw_only=True)
class NamespaceBack(Event):
    """A namespace answers again. The figures are for the time in which it was lost."""

    namespace: str
    seconds: float  # since the first failure
    entities: int = 0  # that failed over or were suspect
    diverted: int = 0  # messages
    twice: int = 0  # messages that the primary and the backlog both accepted
    possibly_twice: int = 0  # messages of producers that one accepted and the other may have
    # Messages that a syphon sent to the primary without an answer, and sends again.
    possibly_twice_by_syphon: int = 0


@attrs.frozen(kw_only=True)
class BacklogFound(Event):
    """A syphon has started on the backlog. `pending` None: the depth isn't known."""

    label: str
    pending: int | None


@attrs.frozen(kw_only=True)
class BacklogMoves(Event):
    """The backlog begins to move. `left` None: the depth isn't known."""

    label: str
    left: int | None  # messages that waited then


@attrs.frozen(kw_only=True)
class BacklogProgress(Event):
    """The backlog is still moving."""

    label: str
    moved: int  # since it began to
    left: int | None
    rate: float  # messages/s, in the last ten seconds
    seconds_left: float | None  # at that rate


@attrs.frozen(kw_only=True)
class BacklogEmpty(Event):
    """The backlog is empty."""

    label: str
    moved: int  # since it began to move
    seconds: float  # from the first move to the last
    dead_lettered: int
