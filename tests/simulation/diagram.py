"""Draws the way of one message as a sequence of arrows between the processes that took part."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gateway.checker.history import Attempted, Settled, Way
from gateway.checker.operations import (
    Acked,
    Completed,
    Delivered,
    Failed,
    Found,
    Invoked,
    Record,
    Unknown,
)

LANES: Final = ("client", "gateway", "primary", "backlog", "syphon", "consumer")
WAYS: Final = {
    Way.PRIMARY: ("gateway", "primary"),
    Way.BACKLOG: ("gateway", "backlog"),
    Way.SYPHON: ("syphon", "primary"),
}
Arrow = tuple[str, str, str]  # from, to, and what it says
ARROWS: Final[dict[type[Record], Callable[[Any], Arrow]]] = {
    Invoked: lambda record: ("client", "gateway", f"send to {record.entity}"),
    Acked: lambda record: ("gateway", "client", f"accepted: {record.accepted_by}"),
    Failed: lambda record: ("gateway", "client", "not sent"),
    Unknown: lambda record: ("gateway", "client", "unknown"),
    Settled: lambda record: ("syphon", "backlog", f"completes copy {record.copy}"),
    Delivered: lambda record: ("primary", "consumer", f"copy {record.copy}"),
    Found: lambda record: ("primary", "primary", f"found: {record.place.value} {record.reason}"),
}
_WIDTH: Final = 11
_ID: Final = re.compile(r"\b(?:\d+-\d+-\d+|last-[\w/]+)")  # as `Producer` makes them


def message_in(text: str) -> str | None:
    """The first message that is named there."""
    found = _ID.search(text)
    return found[0] if found else None


def diagram(records: Sequence[Record], message_id: str) -> str:
    """The way of that message, a line for each step."""
    head = " " * 10 + "".join(f"{lane:^{_WIDTH}}" for lane in LANES)
    return "\n".join([f"message {message_id}", head, *_lines(records, message_id)])


def _lines(records: Iterable[Record], message_id: str) -> Iterable[str]:
    copies: set[tuple[str, str]] = set()  # of the primary: of its completion nothing says whose
    for record in records:
        if isinstance(record, Completed):
            if (record.entity, record.copy) in copies:
                yield _line(record.at, "consumer", "primary", f"completes copy {record.copy}")
        elif message_id in _ids(record):
            if isinstance(record, Delivered):
                copies.add((record.entity, record.copy))
            yield _line(record.at, *_arrow(record))


def _ids(record: Record) -> Sequence[str | None]:
    if isinstance(record, Attempted):
        return record.message_ids
    return [getattr(record, "message_id", None)]


def _arrow(record: Record) -> Arrow:
    if isinstance(record, Attempted):
        source, target = WAYS[record.way]
        return source, target, f"send by {record.process}: {record.end.value}"
    draw = ARROWS.get(type(record))
    return ("client", "client", type(record).__name__) if draw is None else draw(record)


def _line(at: float, source: str, target: str, text: str) -> str:
    begin, end = LANES.index(source), LANES.index(target)
    left, right = sorted((begin * _WIDTH + _WIDTH // 2, end * _WIDTH + _WIDTH // 2))
    lane = [" "] * (len(LANES) * _WIDTH)
    for number in range(len(LANES)):
        lane[number * _WIDTH + _WIDTH // 2] = "|"
    lane[left : right + 1] = "-" * (right + 1 - left)
    lane[right if begin < end else left] = "*" if begin == end else (">" if begin < end else "<")
    return f"{at:9.3f} {''.join(lane)} {text}"
