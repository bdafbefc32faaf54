"""
Reports of a listener process to its agent: one JSON object per line.

    {"calls": 120, "seconds": 3.5, "running": 2}

`calls` counts the handlers that have ended since the start of the process, `seconds` is their total
time; `running` counts the handlers that are still running.
"""

import json
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire.http import strict_json

MAX_LINE: Final = 4096  # bytes: a pipe's atomic write (pipe(7)); a report has a few numbers


@attrs.frozen(kw_only=True)
class Report:
    """Totals of one or several processes, and the handlers that are running now."""

    calls: int = 0
    seconds: float = 0.0
    running: int = 0

    def __add__(self, other: "Report") -> "Report":
        return Report(
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
            running=self.running + other.running,
        )


def build_report(report: Report) -> bytes:
    """The line, with its line end."""
    return json.dumps(attrs.asdict(report)).encode() + b"\n"


def parse_report(line: bytes) -> Report:
    """
    Parse a line; unknown fields are ignored.

    Raises:
        InvalidRequest: the line is malformed.
    """
    fields = strict_json.as_object(strict_json.load(line, "report", max_bytes=MAX_LINE), "report")
    calls, seconds = fields.get("calls"), fields.get("seconds")
    running = fields.get("running", 0)
    if type(calls) is not int or calls < 0:
        raise InvalidRequest("report: a whole number `calls` expected")
    if type(running) is not int or running < 0:
        raise InvalidRequest("report: a whole number `running` expected")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise InvalidRequest("report: a number `seconds` expected")
    return Report(calls=calls, seconds=float(seconds), running=running)
