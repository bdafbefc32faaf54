"""
The verdict of the pair: the problems of all its processes, each once, with the processes that have
it.

A process tells the others its problems in its record, without their durations, which change from
second to second: a problem of two processes has the same beginning then.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from gateway.domain.health.process_records import ProcessRecord, RecordedProblem
from gateway.domain.status.pair import ProcessProblem

_DURATION: Final = re.compile(r"(?:,| for| in)? (?:\d+ days?, )?\d+:\d\d:\d\d(?: ago| old)?")
_MOST: Final = 20  # problems of other processes


def recorded(problems: Iterable[str], at: datetime) -> tuple[RecordedProblem, ...]:
    """The problems of a status as the process's record has them; `at` is the date of the status."""
    return tuple(_recorded(each, at) for each in problems)


def of_others(records: Iterable[ProcessRecord], own: str) -> tuple[ProcessProblem, ...]:
    """The problems in these records, but for the process `own`."""
    found = [
        ProcessProblem(process=each.place, text=one.text, since=one.since, remedy=one.remedy)
        for each in records
        if each.process != own
        for one in each.problems
    ]
    return tuple(found[:_MOST])


def all_problems(
    own: Sequence[str], others: Sequence[ProcessProblem], at: datetime
) -> tuple[str, ...]:
    """A line for each problem; those that others have as well name them."""
    by_kind: dict[str, list[ProcessProblem]] = {}
    for each in others:
        by_kind.setdefault(kind_of(each.text), []).append(each)
    lines = [_also(each, by_kind.pop(kind_of(each), ())) for each in own]
    return (*lines, *(_line(found, at) for found in by_kind.values()))


def split_remedy(problem: str) -> tuple[str, str]:
    """The text of a problem, and its remedy; empty: the problem has none."""
    text, semicolon, remedy = problem.rpartition("; ")
    return (text, remedy) if semicolon else (problem, "")


def kind_of(problem: str) -> str:
    """The beginning of a problem, by which two processes, or two moments, have the same one."""
    return _DURATION.sub("", problem).partition(": ")[0]


def _recorded(problem: str, at: datetime) -> RecordedProblem:
    text, remedy = split_remedy(problem)
    lasts = re.search(r"(\d+):(\d\d):(\d\d)", text)
    since = None
    if lasts is not None:
        hours, minutes, seconds = map(int, lasts.groups())
        since = at - timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return RecordedProblem(text=_DURATION.sub("", text), since=since, remedy=remedy)


def _places(found: Sequence[ProcessProblem]) -> str:
    return ", ".join(dict.fromkeys(each.process for each in found))


def _also(problem: str, found: Sequence[ProcessProblem]) -> str:
    if not found:
        return problem
    text, remedy = split_remedy(problem)
    return f"{text} (at {_places(found)} too){f'; {remedy}' if remedy else ''}"


def _line(found: Sequence[ProcessProblem], at: datetime) -> str:
    """A problem that this process doesn't have."""
    dates = [each.since for each in found if each.since is not None]
    lasts = ""
    if dates:
        lasts = f", for {timedelta(seconds=max(0, round((at - min(dates)).total_seconds())))}"
    remedy = f"; {found[0].remedy}" if found[0].remedy else ""
    return f"at {_places(found)}{lasts}: {found[0].text}{remedy}"
