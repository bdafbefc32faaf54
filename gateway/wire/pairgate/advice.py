"""
The meaning of a status in words: the problems that an operator should solve, with advice. The
command `status`, the page and the JSON of the endpoint `admin` show them.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.abilities import Ability, AbilityState, AbilityStatus
from gateway.domain.health.expiry import Expiry, Urgency
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.way_home import WayHome, progress_of
from gateway.domain.status.listening import Wake
from gateway.domain.status.pair import Cause, PairStatus, SpoolStatus, Waiting
from gateway.domain.status.process import Alarm, Status
from gateway.wire.pairgate.verdict import all_problems

_REMEDY: Final = "fix the cause, then run `pairgate redrive"
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
    "backlog_orphaned": "start `pairgate syphon`, or set enable_syphon = true",
    "left_untouched": "the text says whose messages these are, and how to move them",
    "primary_replaced": "check the URL of the primary; if it was replaced, use --adopt",
    "audit_failed": "free the disk, or fix the folder's permissions",
    "state_not_saved": "free the disk, or fix the folder's permissions",
    "syphon_stalled": (
        "check the primary, and the events `syphon_backed_off` and `syphon_failed` in the log"
    ),
}
_USUAL_ADVICE: Final = "see docs/reference/status.md"


def problems_of(status: Status) -> tuple[str, ...]:
    """
    The problems of the pair, or of this process alone, that an operator should look at, one line
    each; empty: healthy.
    """
    others = () if status.pair is None else status.pair.process_problems
    return all_problems(own_problems(status), others, status.at)


def own_problems(status: Status) -> tuple[str, ...]:
    """The problems of this process."""
    at = status.at
    namespaces = (
        text
        for each in status.namespaces
        for text in namespace_problems(each.name, each.abilities, at)
    )
    ends = dict.fromkeys(text for each in status.expiries for text in expiry_problems(each))
    pair = _problems_of(status.pair, _lost(status), at)
    sections = (text for each, value in status.sections.items() for text in each.problems(value))
    alarms = alarm_problems(status.alarms, at)
    # A drill comes first: it explains what the namespaces lack.
    return (*sections, *namespaces, *pair, *alarms, *ends)


def span(seconds: float) -> str:
    """A duration as `0:01:30`, without fractions."""
    return str(timedelta(seconds=max(0, round(seconds))))


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


def expiry_problems(expiry: Expiry) -> Iterator[str]:
    """A line for each problem with a certificate or a revocation list."""
    if expiry.refused:
        yield (
            f"changed certificate files can't be used, and the previous ones stay in use:"
            f" {expiry.refused}; correct the files"
        )
    named = f"{expiry.setting} ({expiry.certificate}, {expiry.file})"
    if expiry.urgency >= Urgency.EXPIRED:
        yield f"{named} has expired at {expiry.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"
    elif expiry.urgency >= Urgency.VERY_SOON:
        yield f"{named} expires at {expiry.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"


def _lost(status: Status) -> bool:
    """True if some namespace can't be reached."""
    reached = (each.abilities.get(_REACH) for each in status.namespaces)
    return any(one is not None and one.state is AbilityState.NO for one in reached)


def alarm_problems(alarms: Iterable[Alarm], at: datetime) -> list[str]:
    """A line for each alarm whose cause isn't known to have ended."""
    return [
        f"{each.event}, {span((at - each.last).total_seconds())} ago: {each.text};"
        f" {_ALARM_ADVICE.get(each.event, _USUAL_ADVICE)}"
        for each in alarms
        if not each.over
    ]


def namespace_problems(
    namespace: str, abilities: Mapping[str, AbilityStatus], at: datetime
) -> list[str]:
    """A line per missing ability, except management, which a gateway can do without."""
    troubled = {
        name: ability
        for name, ability in abilities.items()
        if ability.state is AbilityState.NO and name in _LACKS
    }
    if _REACH in troubled:
        troubled = {_REACH: troubled[_REACH]}  # the cause of the others
    return [
        f"namespace {namespace} {_LACKS[name]} for {span((at - one.since).total_seconds())}:"
        f" {one.error}; {one.remedy}"
        for name, one in troubled.items()
        if one.since is not None
    ]


def waiting_problem(waiting: Waiting) -> str:
    """The cause, for how long, and the remedy."""
    lasts, left = span(waiting.seconds), span(waiting.left)
    if waiting.cause is Cause.GONE:
        return (
            f"messages have waited for {lasts} for {waiting.name}, which is missing or disabled on"
            f" the primary: create or enable it, or they are dead-lettered in {left}"
        )
    return (
        f"messages with the key {waiting.name!r} have had a wrong MAC for {lasts}: add their"
        f" gateway's secret to envelope_keys, or they are dead-lettered in {left}"
    )


def entity_problems(states: Mapping[str, int]) -> list[str]:
    """A line for each state in which entities are in trouble."""
    return [
        f"entities that are {state}: {count}; {_ADVICE[state]}"
        for state, count in states.items()
        if state in _ADVICE and count
    ]


def _problems_of(pair: PairStatus | None, lost: bool, at: datetime) -> list[str]:
    if pair is None:
        return []
    told = {"pinned"} if pair.pins else set()  # by name, below
    states = {name: count for name, count in pair.states.items() if name not in told}
    found = entity_problems(states)
    if missing := [each.entity for each in pair.entities if each.missing]:
        found.append(
            f"missing or disabled on the primary: {', '.join(missing)}; create them (`pairgate"
            " provision` makes the planned ones) or enable them, their sends go to the backlog"
        )
    if pair.busy:
        each = max(pair.busy, key=lambda busy: busy.seconds)
        found.append(
            f"busy for longer than their failover interval: {len(pair.busy)} entities,"
            f" {each.entity} for {span(each.seconds)} ({each.text}); sends wait or fail: raise the"
            " limits of the primary, or set throttle_failover_after"
        )
    if pair.backlog.usable == 0:
        found.append(
            "no backlog queue can be used; check the secondary, or run `pairgate provision`"
        )
    if not found and not lost:
        found += _left(pair, at)
    found += [f"pinned to the backlog: {each}; `pairgate failback`" for each in pair.pins]
    found += [f"the syphon is paused: {each}; `pairgate resume`" for each in pair.syphon.pauses]
    found += map(waiting_problem, pair.syphon.waiting)
    found += _dead_letter_problems(pair)
    if pair.spool is not None:
        found += _spool_problems(pair.spool)
    return found


def _spool_problems(spool: SpoolStatus) -> list[str]:
    found = _dead_letters_in("spool", spool.dead_letters, f"{_REMEDY} --spool`")
    if spool.free_bytes == 0:
        found.append(
            "the spool has no room: sends that both namespaces refuse fail; free space on its disk"
        )
    return found


def _left(pair: PairStatus, at: datetime) -> list[str]:
    """
    Messages wait, and no syphon moves them. A syphon of this process that can't move them reports
    that itself (`syphon_stalled`), and so do the orders of operators that this process has.
    """
    way_home, backlog = progress_of(pair, at).state, pair.backlog
    if not backlog.pending or pair.pins or pair.syphon.pauses:
        return []
    waits = f"{backlog.pending} messages wait on the backlog, the primary is healthy, and"
    seen = _seen(backlog.syphons, at)
    if way_home is WayHome.HELD_BACK:
        return [f"{waits} the syphons are paused{seen}: `pairgate resume` at their processes"]
    if way_home is WayHome.ABSENT:
        start = "start `pairgate syphon`, or set enable_syphon = true"
        return [f"{waits} no syphon moves them{seen}: {start}"]
    return []


def _seen(syphons: SyphonsSeen, at: datetime) -> str:
    """The syphons of other processes, in brackets; empty if nothing is known of them."""
    return "" if syphons.unknown else f" ({syphons.text(at)})"


def _dead_letter_problems(pair: PairStatus) -> list[str]:
    dead = pair.backlog.dead_letters
    if dead.messages is None and pair.syphon.dead_lettered:
        return [
            f"{pair.syphon.dead_lettered} backlog messages were dead-lettered since the start,"
            f" and the secondary doesn't report how many are still there: {_REMEDY}`"
        ]
    return _dead_letters_in("backlog", dead, f"{_REMEDY}`")


def _dead_letters_in(place: str, dead: DeadLetters, remedy: str) -> list[str]:
    if not dead.to_look_at:
        return []
    age = ""
    if dead.oldest_age is not None:
        age = f", the oldest is {span(dead.oldest_age)} old"
    return [f"dead letters of the {place}: {dead.text}{age}: {remedy}"]
