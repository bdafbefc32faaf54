"""
Counts the seconds for which a signal of a process was a lie.

An answer of a process states a depth and the depth's date. The depth must be one that the backlog
may have had from that date to the end of the answer: between two true counts it is at most the
first one and what was diverted until the second one, and at least the second one without that. A
depth that has what was diverted since its date may have so many messages more, as others may have
moved some meanwhile, and may lack those whose sends have no answer yet. An unknown figure is no
lie.
The verdict must be red from `NOTICED` after the begin of the trouble until the cure, and green from
`GREEN` after the cure on. A process that takes sends is ready. A page says what a status says that
it asked for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import attrs

NOTICED: Final = 5.0  # seconds from the first diverted message until each process says so
GREEN: Final = 5.0  # seconds after the cure
MOTION: Final = 0.5  # seconds from a message on the backlog until its producer knows


@attrs.frozen
class TrueCount:
    """The messages on the backlog queues, locked ones too, counted between two dates."""

    begin: float
    end: float
    messages: int


@attrs.frozen(kw_only=True)
class Answer:
    """A status and metrics of a process, and the seconds since the answer before."""

    process: str
    end: float  # the date at which the status was complete
    seconds: float
    status: Mapping[str, Any]  # `GET /status`
    metrics: Mapping[str, float]  # by name, asked next
    end_of_metrics: float
    history: float | None = None  # the newest depth that the page's chart has
    history_at: float | None = None  # its date
    ready: bool = True  # `GET /readyz`


@attrs.frozen(kw_only=True)
class Drawn:
    """The texts on the page of a process, and the statuses that the page asked for last."""

    process: str
    end: float
    verdict: str
    way_home: str
    waiting: str
    told: Sequence[Mapping[str, Any]]
    seconds: float = 1.0


@attrs.frozen(kw_only=True)
class Story:
    """The truth. Dates are seconds since 1970."""

    trouble: float  # the first message was diverted since the primary was taken away
    repaired: float  # the primary answers again
    cured: float  # all sends go to the primary, and the backlog is empty
    counts: Sequence[TrueCount]
    reading: float = 1.0  # seconds that a reading takes, or for which its counts may be late
    diverted: Sequence[float] = ()  # the dates at which a producer learned of it

    def around(self, begin: float, end: float) -> Sequence[TrueCount]:
        """The counts from the last one before the dates to the first one after; empty: not known"""
        before = [each for each in self.counts if each.end <= begin]
        after = [each for each in self.counts if each.begin >= end]
        if not before or not after:
            return ()
        return [each for each in self.counts if before[-1].end <= each.end <= after[0].end]

    def between(self, begin: float, end: float) -> tuple[int, int] | None:
        """The least and the most messages that may have waited between the dates; None: unknown"""
        found = self.around(begin, end)
        if not found:
            return None
        counts = [each.messages for each in found]
        came = [self._came_between(*each) for each in pairwise(found)]
        return (
            min([counts[0], *(count - more for count, more in zip(counts[1:], came, strict=True))]),
            max([counts[-1], *(count + more for count, more in zip(counts, came, strict=False))]),
        )

    def counted(self, begin: float, end: float) -> tuple[int, int] | None:
        """The same of a depth that has what was diverted between the dates."""
        hull = self.between(begin, end)
        if hull is None:
            return None
        counts = [each.messages for each in self.around(begin, end)]
        unanswered = sum(end < each <= end + MOTION for each in self.diverted)
        return (
            min(hull[0], min(counts) - unanswered),
            max(hull[1], max(counts) + self.diverted_in(begin, end)),
        )

    def _came_between(self, first: TrueCount, second: TrueCount) -> int:
        """The messages that may have come between two counts; others may have left meanwhile."""
        return sum(first.begin <= each <= second.end for each in self.diverted)

    def diverted_in(self, begin: float, end: float) -> int:
        """The messages that may have been diverted between the dates."""
        return sum(begin - MOTION <= each <= end for each in self.diverted)


def first_trouble(diverted: Sequence[float], taken: float, repaired: float) -> float:
    """
    The date of the first message diverted since the primary was taken away, or that of its return.
    On a busy machine a slow send is diverted before, and all is well again.
    """
    return next((date for date in diverted if date >= taken), repaired)


@attrs.frozen
class Lie:
    process: str
    signal: str
    at: float
    seconds: float
    text: str


def lies_of(story: Story, answers: Sequence[Answer], drawn: Sequence[Drawn] = ()) -> list[Lie]:
    """Each lie, in the order of the answers, then those of the pages."""
    return [
        Lie(answer.process, signal, answer.end, answer.seconds, text)
        for answer in answers
        for signal, text in _lies_in(story, answer)
    ] + [
        Lie(each.process, "page", each.end, each.seconds, _shown(each))
        for each in drawn
        if not any(_shows(each, status) for status in each.told)
    ]


def _shown(drawn: Drawn) -> str:
    return f"{drawn.verdict}, {drawn.waiting}, {drawn.way_home}"


def _shows(drawn: Drawn, status: Mapping[str, Any]) -> bool:
    """True if the page shows that status."""
    backlog, problems = status["pair"]["backlog"], len(status["problems"])
    figure = "".join(each for each in drawn.waiting if each.isdigit())
    return (
        drawn.verdict == ("All is well" if status["good"] else f"Needs attention: {problems}")
        and drawn.way_home == status["progress"]["state"].replace("-", " ")
        and figure == ("" if backlog["pending"] is None else str(backlog["pending"]))
        and backlog["counted"] is drawn.waiting.startswith("about")
    )


def seconds_of(lies: Sequence[Lie]) -> Counter[tuple[str, str]]:
    """Seconds of lies by process and signal."""
    found: Counter[tuple[str, str]] = Counter()
    for lie in lies:
        found[lie.process, lie.signal] += lie.seconds  # type: ignore[assignment]  # of seconds
    return found


def _lies_in(story: Story, answer: Answer) -> Iterator[tuple[str, str]]:
    backlog, metrics = answer.status["pair"]["backlog"], answer.metrics
    as_of = None if backlog["as_of"] is None else _date(backlog["as_of"])
    told_at = metrics.get("pairgate_backlog_time_seconds")
    depth, end = metrics.get("pairgate_backlog_messages"), answer.end_of_metrics
    chart = answer.history_at
    figures = {
        "depth": (backlog["pending"], as_of, answer.end, backlog["counted"]),
        # A metric doesn't say whether messages were counted since.
        "metric": (depth, told_at, end, True),
        "chart": (answer.history, chart, _after(chart, story.reading), False),
    }
    for signal, (told, since, end, counted) in figures.items():
        if told is None or since is None or end is None:
            continue
        hull = story.counted(since, end) if counted else story.between(since, end)
        if hull is not None and not hull[0] <= told <= hull[1]:
            yield signal, f"{told:g} since {end - since:.1f} s, true: {hull}"
    yield from _contradictions(backlog)
    yield from _way_home(story, answer, as_of)
    yield from _verdict(story, answer)
    if not answer.ready:
        yield "readyz", "not ready"


def _after(date: float | None, seconds: float) -> float | None:
    return None if date is None else date + seconds


def _date(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _contradictions(backlog: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The status must agree with itself."""
    by_entity, pending = backlog["by_entity"], backlog["pending"]
    if by_entity is not None and sum(by_entity.values()) != pending:
        yield "by entity", f"{by_entity}, {pending} in all"


def _way_home(story: Story, answer: Answer, as_of: float | None) -> Iterator[tuple[str, str]]:
    backlog, state = answer.status["pair"]["backlog"], answer.status["progress"]["state"]
    is_empty = backlog["pending"] == 0 and not backlog["counted"]
    if (state == "empty") is not is_empty:
        yield "way home", f"{state}, {backlog['pending']} wait"
    hull = None if as_of is None else story.between(min(as_of, answer.end), answer.end)
    if hull is not None and state == "empty" and hull[0] > 0:
        yield "way home", f"empty, true: {hull}"
    since = min(answer.end - GREEN, answer.end if as_of is None else as_of)
    if state == "moving" and story.between(since, answer.end) == (0, 0):
        yield "way home", f"{state}, nothing waits since {answer.end - since:.1f} s"


def _verdict(story: Story, answer: Answer) -> Iterator[tuple[str, str]]:
    good, at = answer.status["good"], answer.end
    if good and story.trouble + NOTICED < at < story.repaired:
        yield "verdict", "all is well, in the outage"
    if at <= story.cured + GREEN:
        return
    if not good:
        yield "verdict", f"red after the cure: {'; '.join(answer.status['problems'])[:200]}"
    old = [
        f"{space['name']} {name}"
        for space in answer.status["namespaces"]
        for name, ability in space["abilities"].items()
        if ability["state"] == "no"
    ]
    if old:
        yield "abilities", f"no after the cure: {', '.join(old)}"
    if answer.metrics.get("pairgate_alarm"):
        yield "alarm", "red after the cure"
