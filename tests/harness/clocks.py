"""Dates that follow virtual time, so that messages and tokens expire on it as well."""

from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import trio

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define(eq=False)
class VirtualClock:
    """A `WallClock` that runs with Trio's clock, ahead of it by `skew`, which may be changed."""

    skew: timedelta = timedelta()

    def __call__(self) -> datetime:
        return START + timedelta(seconds=trio.current_time()) + self.skew


def seconds(date: datetime) -> float:
    """Return `date` on Trio's clock, if the skew is zero."""
    return (date - START).total_seconds()
