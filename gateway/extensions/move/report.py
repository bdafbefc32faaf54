"""A report tells what the mover has moved of an entity, what it left and what it doesn't know."""

from datetime import datetime
from typing import Final

import attrs

from gateway.domain.entity import EntityPath

MOST: Final = 1000  # ids of each list, as the newest: a report is one small file


@attrs.frozen(kw_only=True)
class MoveReport:
    """
    The messages of one entity that the mover has moved; those that receivers have taken from either
    side aren't among them.

    `interrupted` counts the movers that were killed: each may have moved messages in its last
    seconds that aren't counted, and may have left copies of them on both sides.
    """

    active: int = 0
    scheduled: int = 0
    dead_lettered: int = 0
    deferred: int = 0  # that stay, where the namespace doesn't count them
    moved: tuple[str, ...] = ()  # the newest ids
    doubtful: tuple[str, ...] = ()  # may be on both sides: no answer came to the send or completion
    left: tuple[str, ...] = ()  # ids with the reason for which they stay on the side that is left
    interrupted: int = 0
    problem: str = ""  # of the last look; empty: there was none
    updated: datetime | None = None

    def plus(self, *, kind: str, ids: tuple[str, ...]) -> "MoveReport":
        """With further messages of that kind, which were moved."""
        count = getattr(self, kind) + len(ids)
        return attrs.evolve(self, **{kind: count}, moved=(*self.moved, *ids)[-MOST:])

    def doubting(self, *ids: str) -> "MoveReport":
        """With further ids whose outcome is unknown, each once."""
        known = dict.fromkeys((*self.doubtful, *ids))
        return attrs.evolve(self, doubtful=tuple(known)[-MOST:])

    def leaving(self, *lines: str) -> "MoveReport":
        """With these lines about messages that stay."""
        known = dict.fromkeys((*self.left, *lines))
        return attrs.evolve(self, left=tuple(known)[-MOST:])


def report_key(entity: EntityPath) -> str:
    """The key of the entity's report among the values that processes share."""
    return f"report/{entity.key}"
