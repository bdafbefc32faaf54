"""Dates as HTTP writes them (RFC 9110, 5.6.7): whole seconds, always UTC."""

import functools
import re
from datetime import UTC, datetime, timedelta
from typing import Final

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_DATE: Final = re.compile(
    rf"({'|'.join(_DAYS)}), (\d\d) ({'|'.join(_MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT",
    re.ASCII,
)
_LENGTH: Final = len("Fri, 02 Jan 2026 00:00:00 GMT")


def format_http_date(date: datetime) -> str:
    """`Fri, 02 Jan 2026 00:00:00 GMT`; fractions of a second are truncated."""
    utc = date.astimezone(UTC)
    day, month = _DAYS[utc.weekday()], _MONTHS[utc.month - 1]
    # Not strftime, which is slower: a receive has three dates.
    return (
        f"{day}, {utc.day:02} {month} {utc.year:04}"
        f" {utc.hour:02}:{utc.minute:02}:{utc.second:02} GMT"
    )


def parse_http_date(text: str) -> datetime | None:
    """The date; None if the text isn't one, or its weekday is wrong."""
    return _parse(text) if len(text) == _LENGTH else None


@functools.lru_cache(maxsize=256)  # thousands of messages have the same second
def _parse(text: str) -> datetime | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    _, day, month, year, hour, minute, second = match.groups()
    try:
        date = datetime(
            int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second),
            tzinfo=UTC,
        )  # fmt: skip
    except ValueError:
        return None
    return date if format_http_date(date) == text else None


def round_up(date: datetime) -> datetime:
    """The first whole second that isn't before the date."""
    whole = date.replace(microsecond=0)
    return whole if whole == date or whole.year == 9999 else whole + timedelta(seconds=1)
