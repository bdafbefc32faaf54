"""
The meaning of a status: the problems that an operator should solve, with advice, and their words.
The command `status`, the page and the JSON of the endpoint `admin` show them.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.abilities import Ability, AbilityState, AbilityStatus
from gateway.domain.health.expiry import Expiry, Urgency
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.problems import Problem, each_once
from gateway.domain.health.way_home import WayHome, progress_of
from gateway.domain.status.listening import Wake
from gateway.domain.status.pair import Cause, PairStatus, SpoolStatus, Waiting
from gateway.domain.status.process import Alarm, Status

_REMEDY: Final = "fix the cause, then run `pairgate redrive"
_START: Final = "start `pairgate syphon`, or set enable_syphon = true"
_REACH: Final = Ability.REACH.value
_LACKS: Final = {
    _REACH: "hasn't been reached",
    Ability.SEND.value: "has accepted no messages",
    Ability.RECEIVE.value: "has delivered no messages",
}
_LOOK: Final = "check the primary: the table below and `namespaces` show its answers"
_ADVICE: Final = {
    "suspect": _LOOK,
    "secondary": _LOOK,
    "half-open": "wait: they return by themselves when enough probes and sends succeed",
    "pinned": "an operator pinned them to the backlog: `pairgate failback` returns them",
}
_ALARM_ADVICE: Final = {
    "backlog_orphaned": _START,
    "left_untouched": "the text says whose messages these are, and how to move them",
    "primary_replaced": (
        "check the URL of the primary; if another took its place for good,"
        " start `pairgate serve --adopt` with the fingerprint that it was"
    ),
    "audit_failed": "free the disk, or fix the folder's permissions",
    "state_not_saved": "free the disk, or fix the folder's permissions",
    "syphon_stalled": (
        "check the primary, and the events `syphon_backed_off` and `syphon_failed` in the log"
    ),
}
_USUAL_ADVICE: Final = "see docs/reference/status.md"


def problems_of(status: Status) -> tuple[Problem, ...]:
    """
    The problems of the pair, or of this process alone, that an operator should look at; empty:
    healthy.
    """
    others = () if status.pair is None else status.pair.process_problems
    return each_once(_own_problems(status), others)


def words_of(problem: Problem, at: datetime) -> tuple[str, str]:
    """The problem at that date, and its remedy, if there is one, for people."""
    lasts = ""
    if problem.last is not None:
        lasts = f", {_between(problem.last, at)} ago"
    elif problem.since is not None:
        lasts = f" for {_between(problem.since, at)}"
    detail = f": {problem.detail}" if problem.detail else ""
    text, who = f"{problem.text}{lasts}{detail}", ", ".join(problem.processes)
    if not problem.here:
        text = f"at {who}: {text}"
    elif who:
        text = f"{text} (at {who} too)"
    remedy = problem.remedy
    if problem.deadline is not None:
        remedy += f", or they are dead-lettered in {_between(at, problem.deadline)}"
    return text, remedy


def line_of(problem: Problem, at: datetime) -> str:
    """The problem and its remedy in one line."""
    return "; ".join(filter(None, words_of(problem, at)))


def _own_problems(status: Status) -> Iterator[Problem]:
    """The problems of this process."""
    for section, value in status.sections.items():
        # A drill comes first: it explains what the namespaces lack.
        yield from section.problems(value)
    for each in status.namespaces:
        yield from namespace_problems(each.name, each.abilities)
    if status.pair is not None:
        yield from _problems_of(status.pair, _lost(status), status.at)
    yield from alarm_problems(status.alarms)
    for expiry in status.expiries:
        yield from expiry_problems(expiry)


def span(seconds: float) -> str:
    """A duration as `0:01:30`, without fractions."""
    return str(timedelta(seconds=max(0, round(seconds))))


def _between(begin: datetime, end: datetime) -> str:
    return span((end - begin).total_seconds())


def wake_text(wake: Wake) -> str:
    """The way that an idle listener learns of messages."""
    if wake.announced:
        return "every message has a trigger: an idle listener doesn't poll"
    if wake.poll_every is None:
        return "sweep is off: an idle listener misses messages without a trigger"
    return (
        "not every sender is known to send triggers:"
        f" an idle listener polls every {wake.poll_every:g} s"
    )


def syphons_text(pair: PairStatus, at: datetime) -> str:
    """The syphons of all processes."""
    if pair.syphon.running and not pair.backlog.syphons.count:
        return "that of this process; others aren't known"
    return pair.backlog.syphons.text(at)


def expiry_problems(expiry: Expiry) -> Iterator[Problem]:
    """The problems with a certificate or a revocation list."""
    if expiry.refused:
        yield Problem(
            kind="certificate-refused",
            entity=expiry.refused,
            text="changed certificate files can't be used, and the previous ones stay in use",
            detail=expiry.refused,
            remedy="correct the files",
        )
    if expiry.urgency >= Urgency.VERY_SOON:
        expires = "has expired" if expiry.urgency >= Urgency.EXPIRED else "expires"
        yield Problem(
            kind="certificate-expires",
            entity=f"{expiry.setting} {expiry.file} {expiry.certificate}",
            text=f"{expiry.setting} ({expiry.certificate}, {expiry.file}) {expires} at"
            f" {expiry.at:%Y-%m-%dT%H:%M:%SZ}",
            remedy="replace the file",
        )


def _lost(status: Status) -> bool:
    """True if some namespace can't be reached."""
    reached = (each.abilities.get(_REACH) for each in status.namespaces)
    return any(one is not None and one.state is AbilityState.NO for one in reached)


def alarm_problems(alarms: Iterable[Alarm]) -> Iterator[Problem]:
    """The alarms whose cause isn't known to have ended."""
    for each in alarms:
        if not each.over:
            yield Problem(
                kind="alarm",
                entity=each.event,
                text=each.event,
                detail=each.text,
                last=each.last,
                remedy=_ALARM_ADVICE.get(each.event, _USUAL_ADVICE),
            )


def namespace_problems(namespace: str, abilities: Mapping[str, AbilityStatus]) -> Iterator[Problem]:
    """The missing abilities, except management, which a gateway can do without."""
    troubled = {
        name: ability
        for name, ability in abilities.items()
        if ability.state is AbilityState.NO and name in _LACKS
    }
    if _REACH in troubled:
        troubled = {_REACH: troubled[_REACH]}  # the cause of the others
    for name, one in troubled.items():
        if one.since is not None:
            yield Problem(
                kind=f"namespace-{name}",
                entity=namespace,
                text=f"namespace {namespace} {_LACKS[name]}",
                detail=one.error or "",
                since=one.since,
                remedy=one.remedy or "",
            )


def waiting_problem(waiting: Waiting, at: datetime) -> Problem:
    """The cause of a wait, and until when an operator can end it."""
    # A second is as much as is told, and a record changes with what it tells.
    found = (at - timedelta(seconds=waiting.seconds)).replace(microsecond=0)
    deadline = found + timedelta(seconds=waiting.seconds + waiting.left)
    if waiting.cause is Cause.GONE:
        text = f"messages wait for {waiting.name}, which is missing or disabled on the primary"
        remedy = "create or enable it"
    else:
        text = f"messages with the key {waiting.name!r} have had a wrong MAC"
        remedy = "add their gateway's secret to envelope_keys"
    return Problem(
        kind=f"waiting-{waiting.cause.value}",
        entity=waiting.name,
        text=text,
        since=found,
        deadline=deadline,
        remedy=remedy,
    )


def entity_problems(states: Mapping[str, int]) -> Iterator[Problem]:
    """The states in which entities are in trouble."""
    for state, count in states.items():
        if state in _ADVICE and count:
            yield Problem(
                kind="entities",
                entity=state,
                text=f"entities that are {state}",
                detail=str(count),
                remedy=_ADVICE[state],
            )


def _problems_of(pair: PairStatus, lost: bool, at: datetime) -> Iterator[Problem]:
    found = list(_entity_problems(pair))
    yield from found
    if not found and not lost:
        yield from _left(pair, at)
    for text in pair.pins:
        yield Problem(
            kind="pinned",
            entity=text,
            text="pinned to the backlog",
            detail=text,
            remedy="`pairgate failback`",
        )
    for text in pair.syphon.pauses:
        yield Problem(
            kind="paused",
            entity=text,
            text="the syphon is paused",
            detail=text,
            remedy="`pairgate resume`",
        )
    for each in pair.syphon.waiting:
        yield waiting_problem(each, at)
    yield from _dead_letter_problems(pair)
    if pair.spool is not None:
        yield from _spool_problems(pair.spool)


def _entity_problems(pair: PairStatus) -> Iterator[Problem]:
    """The entities in trouble, and the backlog queues that should have their messages."""
    told = {"pinned"} if pair.pins else set()  # by name, as an order
    yield from entity_problems(
        {name: count for name, count in pair.troubled.items() if name not in told}
    )
    if missing := [each.entity for each in pair.entities if each.missing]:
        yield Problem(
            kind="missing",
            text="missing or disabled on the primary",
            detail=", ".join(missing),
            remedy="create them (`pairgate provision` makes the planned ones) or enable them, their"
            " sends go to the backlog",
        )
    if pair.busy:
        each = max(pair.busy, key=lambda busy: busy.seconds)
        yield Problem(
            kind="busy",
            text="busy for longer than their failover interval",
            detail=f"{len(pair.busy)} entities, {each.entity} for {span(each.seconds)}"
            f" ({each.text})",
            remedy="sends wait or fail: raise the limits of the primary, or set"
            " throttle_failover_after",
        )
    if pair.backlog.usable == 0:
        yield Problem(
            kind="no-backlog",
            text="no backlog queue can be used",
            remedy="check the secondary, or run `pairgate provision`",
        )


def _spool_problems(spool: SpoolStatus) -> Iterator[Problem]:
    yield from _dead_letters_in("spool", spool.dead_letters, f"{_REMEDY} --spool`")
    if spool.free_bytes == 0:
        yield Problem(
            kind="spool-full",
            text="the spool has no room",
            detail="sends that both namespaces refuse fail",
            remedy="free space on its disk",
        )


def _left(pair: PairStatus, at: datetime) -> Iterator[Problem]:
    """
    Messages wait, and no syphon moves them. A syphon of this process that can't move them reports
    that itself (`syphon_stalled`), and so do the orders of operators that this process has.
    """
    way_home, backlog = progress_of(pair, at).state, pair.backlog
    if not backlog.pending or pair.pins or pair.syphon.pauses:
        return
    why = {
        WayHome.HELD_BACK: ("the syphons are paused", "`pairgate resume` at their processes"),
        WayHome.ABSENT: ("no syphon moves them", _START),
    }
    if way_home in why:
        text, remedy = why[way_home]
        yield Problem(
            kind="left",
            text=f"{backlog.pending} messages wait on the backlog, the primary is healthy, and"
            f" {text}{_seen(backlog.syphons, at)}",
            remedy=remedy,
        )


def _seen(syphons: SyphonsSeen, at: datetime) -> str:
    """The syphons of other processes, in brackets; empty if nothing is known of them."""
    return "" if syphons.unknown else f" ({syphons.text(at)})"


def _dead_letter_problems(pair: PairStatus) -> Iterator[Problem]:
    dead = pair.backlog.dead_letters
    if dead.messages is None and pair.syphon.dead_lettered:
        yield Problem(
            kind="dead-letters",
            entity="backlog",
            text=f"{pair.syphon.dead_lettered} backlog messages were dead-lettered since the start,"
            " and the secondary doesn't report how many are still there",
            remedy=f"{_REMEDY}`",
        )
    yield from _dead_letters_in("backlog", dead, f"{_REMEDY}`")


def _dead_letters_in(place: str, dead: DeadLetters, remedy: str) -> Iterator[Problem]:
    if dead.to_look_at:
        age = "" if dead.oldest_age is None else f", the oldest is {span(dead.oldest_age)} old"
        yield Problem(
            kind="dead-letters",
            entity=place,
            text=f"dead letters of the {place}",
            detail=f"{dead.text}{age}",
            remedy=remedy,
        )
