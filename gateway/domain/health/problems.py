"""
The problems that an operator should look at, each of one process or of several of a pair.

Problems are values from where they arise until somebody reads them. `wire/pairgate/advice.py`
makes those of a status, and their words.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import attrs


@attrs.frozen(kw_only=True)
class Problem:
    """
    `text` says what is wrong, without dates, and `detail` what changes meanwhile: an error, a
    number. `since` is the problem's begin, `last` the date of an event that may be over; None: not
    known. `processes` names the other processes that have the problem, and `here` is false if this
    one doesn't.
    """

    text: str
    kind: str = ""  # with `entity` that by which two processes have the same problem
    entity: str = ""  # the namespace, entity, key or event that it is about
    detail: str = ""
    since: datetime | None = None
    last: datetime | None = None
    deadline: datetime | None = None  # of the messages that it concerns: dead letters after it
    remedy: str = ""
    processes: tuple[str, ...] = ()
    here: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same problem, in another process or at another time."""
        return (self.kind, self.entity) if self.kind else ("", self.text)


def each_once(own: Iterable[Problem], others: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems of this process, then those that only others have; each has all its places."""
    found: dict[tuple[str, str], list[Problem]] = {}
    for each in (*own, *others):
        found.setdefault(each.key, []).append(each)
    return tuple(map(_as_one, found.values()))


def _as_one(same: Sequence[Problem]) -> Problem:
    own, *others = same
    if not others:
        return own
    places = dict.fromkeys(place for each in same for place in each.processes)
    if own.here:
        return attrs.evolve(own, processes=tuple(places))
    dates = [each.since for each in same if each.since is not None]
    return attrs.evolve(own, processes=tuple(places), since=min(dates, default=None))
