"""The syphons that a secondary knows of, by the heartbeats that they leave there."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import (
    gauge,
)

MISSED: Final = 3  # heartbeats that a syphon that is alive may miss
MOST_SHOWN: Final = 20  # syphons of one look
MOST_TOLD: Final = 3  # syphons in a text for people


@attrs.frozen(kw_only=True)
class Heartbeat:
    """The last sign of life of one syphon."""

    syphon: str  # an id, another one at each start
    host: str
    process: str  # that the syphon is part of: serve, or syphon
    pid: int
    started: datetime
    at: datetime  # by the secondary's clock, if it tells; else by the syphon's
    interval: float  # seconds to the next one
    moved: int  # messages, since the start
    paused: bool = False  # an operator has paused the whole syphon

    @property
    def place(self) -> str:
        """The place where the syphon runs, for people."""
        return f"{self.process} on {self.host} (process {self.pid})"

    @property
    def lifetime(self) -> timedelta:
        """The time for which the syphon counts as alive and the secondary keeps its heartbeat."""
        return timedelta(seconds=self.interval * MISSED)

    def text(self, now: datetime) -> str:
        """As `place`, with what the syphon does."""
        does = "paused" if self.paused else f"has moved {self.moved}"
        seen = timedelta(seconds=max(0, round((now - self.at).total_seconds())))
        return f"{self.place}, seen {seen} ago, {does}"


@attrs.frozen(kw_only=True)
class SyphonsSeen:
    """
    The syphons of all processes that were alive at the date `at`, when the secondary was last
    asked. `unknown` gives the reason if they aren't known; the other fields are empty then.
    """

    at: datetime | None = None
    alive: tuple[Heartbeat, ...] = ()  # at most `MOST_SHOWN`, the newest heartbeat first
    # Other processes that receive from the backlog, where the secondary tells no more.
    consumers: int = 0
    last: datetime | None = field(  # of the last sign of life that this process has seen
        default=None,
        metadata=gauge(
            "pairgate_syphons_last_seen_time_seconds",
            "Last sign of life of any syphon, in seconds since 1970.",
        ),
    )
    gone: Heartbeat | None = None  # the last one, if none is alive
    since: datetime | None = None  # of the first look of this process
    unknown: str = "nobody has asked the secondary yet"

    @property
    def count(self) -> int | None:
        """The number of syphons that were alive; None: not known."""
        return None if self.unknown else len(self.alive) + self.consumers

    @property
    def moves(self) -> bool:
        """True if a syphon is alive and not paused."""
        return bool(self.consumers) or any(not each.paused for each in self.alive)

    def text(self, now: datetime) -> str:
        """The answer for people, in one line."""
        if self.unknown:
            return f"not known: {self.unknown}"
        if self.alive:
            told = "; ".join(each.text(now) for each in self.alive[:MOST_TOLD])
            more = len(self.alive) - MOST_TOLD
            return f"{told}; and {more} more" if more > 0 else told
        if self.consumers:
            return "another process receives from the backlog (the secondary doesn't tell whose)"
        if self.last is not None:
            gone = "" if self.gone is None else f"; the last was {self.gone.place}"
            return f"no syphon has been seen since {date_text(self.last)}{gone}"
        since = "" if self.since is None else f" since the first look, {date_text(self.since)}"
        return f"no syphon has been seen{since}"


def newest_among(heartbeats: Sequence[Heartbeat]) -> tuple[Heartbeat, ...]:
    """The heartbeats that are shown, the newest first."""
    return tuple(sorted(heartbeats, key=lambda each: each.at, reverse=True)[:MOST_SHOWN])


def date_text(at: datetime) -> str:
    """The date for people."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
