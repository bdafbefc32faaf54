"""
The changes of the backlog since the last reading that the other processes of the pair tell.

A record tells how much, but not when: what its process changed before the first record that is of
after the reading may be in the reading.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs

# From the figures of a record to its place on the secondary, by whose clock it is dated.
LATE: Final = timedelta(milliseconds=200)
HELD_FOR: Final = timedelta(seconds=60)  # for which it counts what a syphon told to hold


@attrs.frozen(kw_only=True)
class ToldChanges:
    """
    The messages that another process tells to have left on the backlog, and moved from there, from
    its start until `at`. `held` are in its syphon's hands then.
    """

    at: datetime
    diverted: int = 0
    moved: int = 0
    held: int = 0
    runs: bool = True  # False: it has ended, so that it tells no more


@attrs.frozen
class _Heard:
    """The newest that a process has told, and the first that it told of after the last reading."""

    newest: ToldChanges
    first: ToldChanges | None
    at: datetime  # of the newest: never later than it was heard

    @property
    def has_told(self) -> bool:
        """True if it has told what it changed since."""
        return not self.newest.runs or self.first not in {None, self.newest}


@attrs.define(eq=False)
class OthersChanges:
    """Fed with records, and with the date of each reading."""

    # When a process last told of more diverted messages than before; None: never.
    news_at: datetime | None = attrs.field(default=None, init=False)
    _heard: dict[str, _Heard] = attrs.field(factory=dict, init=False)  # by process
    _since: datetime | None = attrs.field(default=None, init=False)  # the date of the last reading

    def hear(self, told: Mapping[str, ToldChanges], at: datetime) -> None:
        """
        Take what each process tells. What those have told that are left out now counts until the
        next reading.
        """
        for process, newest in told.items():
            before = self._heard.get(process)
            date = min(newest.at, at)  # whatever the clock says by which it is dated
            if before is None and self._is_past(newest, date):
                continue
            if before is not None and newest == before.newest:
                continue
            if newest.diverted > (0 if before is None else before.newest.diverted):
                self.news_at = at
            first = None if before is None else before.first
            self._heard[process] = _Heard(newest, first or self._first_of(newest, date), date)
        for process in self._heard.keys() - told.keys():
            known = self._heard[process]
            ended = attrs.evolve(known.newest, runs=False)
            self._heard[process] = attrs.evolve(known, newest=ended)

    def begin(self, since: datetime) -> None:
        """Count from a reading of that date on."""
        self._since = since
        self._heard = {
            process: attrs.evolve(each, first=self._first_of(each.newest, each.at))
            for process, each in self._heard.items()
            if each.newest.runs
        }

    @property
    def are_known(self) -> bool:
        """True if each process has told what it changed since."""
        return bool(self._heard) and all(each.has_told for each in self._heard.values())

    @property
    def diverted(self) -> int:
        """The messages that they have left on the backlog since, as far as they have told."""
        return sum(newest.diverted - first.diverted for first, newest in self._spans())

    @property
    def moved(self) -> int:
        """The messages that they have moved since, as far as they have told."""
        return sum(newest.moved - first.moved for first, newest in self._spans())

    def held(self, at: datetime, moved_since: Callable[[datetime], int]) -> int:
        """
        The most messages that a syphon among them holds, as far as nobody has moved them:
        `moved_since` are those that this process has moved.
        """
        moved = self.moved
        return max(
            (
                each.newest.held - moved - moved_since(each.at - LATE)
                for each in self._heard.values()
                if each.first is not None and at - each.at <= HELD_FOR
            ),
            default=0,
        )

    def _spans(self) -> Iterator[tuple[ToldChanges, ToldChanges]]:
        for each in self._heard.values():
            if each.first is not None:
                yield each.first, each.newest

    def _is_past(self, told: ToldChanges, at: datetime) -> bool:
        """True if the process had ended before the last reading, which has all that it changed."""
        return not told.runs and self._since is not None and at < self._since

    def _first_of(self, told: ToldChanges, at: datetime) -> ToldChanges | None:
        """The record to count from; None: it may tell of what the last reading has."""
        return told if self._since is not None and at - LATE >= self._since else None
