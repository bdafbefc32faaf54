"""
Values in the XML of Service Bus's management: durations, dates, numbers, flags.

Functions that parse a text raise ValueError, which says what is expected.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.domain.entity import EntityStatus

FOREVER: Final = "P10675199DT2H48M5.4775807S"  # .NET's TimeSpan.MaxValue
MAX_INT: Final = 2**31 - 1  # of .NET's int, as Service Bus has these numbers
_FOREVER: Final = timedelta(days=10675199)
_NEVER: Final = "0001-01-01T00:00:00Z"
_KILOBYTE: Final = 1024  # bytes: the unit of MaxMessageSizeInKilobytes
_MAX_TEXT: Final = 1024  # characters of user metadata; Service Bus's limit
_DURATION: Final = re.compile(
    r"P(?:(\d{1,8})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?", re.ASCII
)
_INTEGER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


def duration_text(span: timedelta | None) -> str:
    """The duration in ISO 8601, as `PT1M`; the longest one that .NET knows for None."""
    if span is None or span >= _FOREVER:
        return FOREVER
    minutes, seconds = divmod(span.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{span.microseconds:06}".rstrip("0") if span.microseconds else ""
    parts = [f"{hours}H" if hours else "", f"{minutes}M" if minutes else ""]
    parts.append(f"{seconds}{fraction}S" if seconds or fraction else "")
    time = "".join(parts)
    days = f"{span.days}D" if span.days else ""
    return f"P{days}T{time}" if time else f"P{days or 'T0S'}"


def parse_duration(text: str) -> timedelta | None:
    """The duration (ISO 8601, days and below), None for forever. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError("a duration as in P1DT2H3M4.5S expected")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    span = timedelta(
        days=days,
        hours=hours,
        minutes=minutes,
        seconds=seconds,
        microseconds=int((match[5] or "").ljust(6, "0")[:6]),
    )
    return None if span >= _FOREVER else span


def bounded_duration(most: timedelta, text: str) -> timedelta:
    span = parse_duration(text)
    if span is None or not timedelta(0) < span <= most:
        raise ValueError(f"a duration of more than 0 and up to {duration_text(most)} expected")
    return span


def positive_duration(text: str) -> timedelta | None:
    span = parse_duration(text)
    if span is not None and span <= timedelta(0):
        raise ValueError("a duration of more than 0 expected")
    return span


def parse_number(least: int, most: int, text: str) -> int:
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"a number from {least} to {most} expected")
    return int(text)


def parse_flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false expected")
    return text.lower() == "true"


def flag_text(value: bool) -> str:
    return "true" if value else "false"


def parse_status(text: str) -> EntityStatus:
    for status in EntityStatus:
        if status.value.lower() == text.lower():
            return status
    raise ValueError("Active, Disabled, SendDisabled or ReceiveDisabled expected")


def short_text(text: str) -> str | None:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"up to {_MAX_TEXT} characters expected")
    return text or None


def optional_text(text: str | None) -> str:
    return text or ""


def date_text(date: datetime | None) -> str:
    if date is None:
        return _NEVER
    return date.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def parse_date(text: str) -> datetime | None:
    """The date in ISO 8601, None for .NET's year 1. Raises ValueError."""
    date = datetime.fromisoformat(text)
    utc = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return None if utc.year == 1 else utc


def kilobytes_text(size: int | None) -> str:
    return "" if size is None else str(size // _KILOBYTE)


def parse_kilobytes(text: str) -> int | None:
    return parse_number(1, MAX_INT, text) * _KILOBYTE if text else None


def parse_count(text: str) -> int:
    return parse_number(0, 2**63 - 1, text)


def count_text(count: int | None) -> str:
    return str(count or 0)
