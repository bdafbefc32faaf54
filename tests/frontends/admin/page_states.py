"""The statuses of a gateway with which its page is tested."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from gateway.app.status.sections import POOLS, QUEUES, SECTIONS
from gateway.domain.billing import Operation, UsageReport
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.errors import Unreachable
from gateway.domain.health.abilities import Abilities, Ability, AbilityStatus
from gateway.domain.health.depth_history import DepthSample, QueueDepth
from gateway.domain.health.heartbeats import Heartbeat, SyphonsSeen
from gateway.domain.health.process_records import PairProcess
from gateway.domain.status.listening import PoolStatus, QueueStatus
from gateway.domain.status.pair import (
    BacklogStatus,
    PairStatus,
    SendCount,
    SpoolStatus,
    SyphonStatus,
    TroubledEntity,
)
from gateway.domain.status.process import Alarm, ConnectionCount, NamespaceStatus, Status

MISSING: Final = {each: each.missing for each in SECTIONS}  # as of a process without these parts
STARTED: Final = datetime.now(UTC) - timedelta(hours=7, minutes=12)
USAGE: Final = UsageReport(
    operations=dict.fromkeys(Operation, 0),
    sent=0,
    received=0,
    idle_operations=0,
    idle_seconds=0.0,
)
HOSTILE: Final = "<img src=x onerror=alert(1)>"


def _abilities(*, lost: bool = False) -> Mapping[str, AbilityStatus]:
    at = datetime.now(UTC)
    known = Abilities()
    for ability in Ability:
        known = known.worked(ability, at - timedelta(minutes=3))
    if lost:
        error = Unreachable("10.0.0.7:5672: the connection was refused")
        for seconds in (95, 50, 1):
            known = known.failed(Ability.SEND, error, at - timedelta(seconds=seconds))
    else:
        for ability in (Ability.SEND, Ability.RECEIVE, Ability.REACH):
            known = known.worked(ability, at)
    return known.statuses(at)


def _namespaces(*, lost: bool = False) -> tuple[NamespaceStatus, ...]:
    return tuple(
        NamespaceStatus(
            name=name,
            kind="amqp",
            role=role,
            usage=USAGE,
            abilities=_abilities(lost=lost and role == "primary"),
        )
        for name, role in (("north", "primary"), ("south", "secondary"))
    )


@attrs.define
class Counter:
    """Sends so far: `rate` of them come with each second."""

    rate: float
    base: int

    def now(self) -> int:
        return self.base + int((datetime.now(UTC) - STARTED).total_seconds() * self.rate)


def _sends(primary: float, backlog: float = 0.0) -> tuple[SendCount, ...]:
    return (
        SendCount(accepted_by="primary", outcome="accepted", messages=Counter(primary, 9).now()),
        SendCount(accepted_by="backlog", outcome="accepted", messages=Counter(backlog, 7).now()),
    )


def _pair(**fields: Any) -> PairStatus:
    known: dict[str, Any] = {
        "label": "north",
        "states": {"suspect": 0, "secondary": 0, "half-open": 0, "pinned": 0},
        "entities": (),
        "backlog": _backlog(pending=0, oldest_age=None),
        "syphon": _syphon(),
        "sends": _sends(120.0),
        "inflight": 4096,
        "max_inflight": 64 * 1024 * 1024,
        "paused": 0,
        "pauses": 3,
        "processes": processes(),
        "spool": SpoolStatus(
            pending=0,
            oldest_age=None,
            rate_in=0.0,
            rate_out=0.0,
            free_bytes=900 * 1024 * 1024,
            dead_letters=DeadLetters(messages=0),
        ),
    }
    return PairStatus(**{**known, **fields})


def processes() -> tuple[PairProcess, ...]:
    """Two gateways, a sidecar that may only send, and a syphon; another one has ended."""
    now = datetime.now(UTC)
    named = (
        ("serve on gw-1 (process 41)", 7.2, 95, "alive", True),
        ("serve on gw-2 (process 12)", 30.0, 310, "alive", True),
        ("serve on pod-9f (process 1)", 2.0, 45, "alive", False),
        ("syphon on gw-2 (process 42)", 30.0, 4, "alive", True),
        ("syphon on gw-1 (process 17)", 40.0, 50, "ended", True),
    )
    return tuple(
        PairProcess(
            name=name,
            version="1.4.0",
            started=now - timedelta(hours=hours),
            seen=now - timedelta(seconds=seconds),
            state=state,
            reads=reads,
            possibly_twice=0,
            here=name.startswith("serve on gw-1"),
        )
        for name, hours, seconds, state, reads in named
    )


def _backlog(**fields: Any) -> BacklogStatus:
    known: dict[str, Any] = {
        "wanted": 10,
        "usable": 10,
        "as_of": datetime.now(UTC) - timedelta(seconds=4),
        "dead_letters": DeadLetters(messages=0),
    }
    return BacklogStatus(**{**known, **fields})


def _syphon(**fields: Any) -> SyphonStatus:
    known: dict[str, Any] = {
        "running": True,
        "moved": 0,
        "rate": 0.0,
        "last_moved": None,
        "backing_off": 0,
        "dead_lettered": 0,
    }
    return SyphonStatus(**{**known, **fields})


def _entities(*names: str, state: str = "secondary") -> tuple[TroubledEntity, ...]:
    return tuple(
        TroubledEntity(
            entity=name,
            state=state,
            since=datetime.now(UTC) - timedelta(seconds=97 - index),
            reason="10.0.0.7:5672: the connection was refused",
            pinned=False,
            diverted=3_804 - 11 * index,
            waiting=3_804 - 11 * index,
            next_probe=7.0,
        )
        for index, name in enumerate(names)
    )


def _status(pair: PairStatus, *, lost: bool = False, **fields: Any) -> Status:
    return Status(
        at=datetime.now(UTC),
        started=STARTED,
        namespaces=_namespaces(lost=lost),
        pair=attrs.evolve(pair, primary_answers=not lost),
        connections=(ConnectionCount(protocol="amqp", open=31, opened=212, refused=0, limit=1000),),
        sections=MISSING,
        **fields,
    )


def healthy() -> Status:
    return _status(_pair())


def failed_over(*names: str) -> Status:
    entities = _entities(*(names or ("orders", "bills/eu", "bills/us")))
    pair = _pair(
        states={"suspect": 1, "secondary": len(entities), "half-open": 0, "pinned": 0},
        entities=(*entities, *_entities("audit", state="suspect")),
        backlog=_backlog(
            pending=11_412,
            oldest_age=96.0,
            by_entity={each.entity: each.diverted for each in entities},
        ),
        syphon=_syphon(last_error="orders: the connection was refused", backing_off=3),
        sends=_sends(0.0, 118.0),
    )
    return _status(pair, lost=True)


def draining() -> Status:
    pair = _pair(
        backlog=_backlog(
            pending=6_120,
            oldest_age=312.0,
            dead_letters=DeadLetters(
                messages=3,
                oldest_age=200.0,
                reasons={"EntityNotFound": 2, "TTLExpiredException": 1},
            ),
        ),
        syphon=_syphon(moved=5_292, rate=204.0, last_moved=datetime.now(UTC)),
        sends=_sends(119.0, 0.0),
    )
    return _status(pair)


def stalled() -> Status:
    at = datetime.now(UTC)
    pair = _pair(
        backlog=_backlog(pending=840, oldest_age=1_900.0),
        syphon=_syphon(
            moved=12,
            last_moved=at - timedelta(minutes=9),
            stalled=True,
            last_error="orders: the queue is full (amqp:resource-limit-exceeded)",
            backing_off=1,
        ),
    )
    alarm = Alarm(event="syphon_stalled", times=1, last=at, text="pending 840, seconds 300")
    return _status(pair, alarms=(alarm,))


def many() -> Status:
    """64 entities have failed over for one reason."""
    return failed_over(*(f"queue-{number:02}" for number in range(64)))


def elsewhere() -> Status:
    """The primary is lost, and the syphon is a process of its own."""
    found = failed_over()
    assert found.pair is not None
    backlog = attrs.evolve(found.pair.backlog, syphons=_seen("gw-2"), by_entity=None)
    syphon = _syphon(running=False)
    return attrs.evolve(found, pair=attrs.evolve(found.pair, backlog=backlog, syphon=syphon))


def moved_elsewhere() -> Status:
    """The primary is back, and the syphon of another process moves the messages."""
    backlog = _backlog(
        pending=6_120, oldest_age=96.0, syphons=_seen("gw-2"), by_entity=None, decrease_rate=90.0
    )
    return _status(_pair(backlog=backlog, syphon=_syphon(running=False)))


def held_back() -> Status:
    """An operator has failed all entities over, and has paused the syphon."""
    entities = _entities("orders", "bills/eu", "bills/us", state="pinned")
    given = "by ann since 2026-11-28 21:55, until 2026-11-29 06:00: storage migration"
    entities = tuple(
        attrs.evolve(each, pinned=True, reason="storage migration", next_probe=None)
        for each in entities
    )
    pair = _pair(
        states={"suspect": 0, "secondary": 0, "half-open": 0, "pinned": len(entities)},
        entities=entities,
        backlog=_backlog(pending=11_379, oldest_age=96.0),
        syphon=_syphon(pauses=(f"everything, {given}",)),
        sends=_sends(0.0, 118.0),
        pins=(f"all entities, {given}",),
    )
    return _status(pair)


def busy() -> Status:
    return _status(_pair(paused=2, pauses=41, sends=_sends(17.0)))


def hostile() -> Status:
    state = failed_over(HOSTILE, "\"'><script>alert(2)</script>", "zero\u200bwidth")
    assert state.pair is not None
    backlog = attrs.evolve(state.pair.backlog, syphons=_seen(HOSTILE))
    return attrs.evolve(state, pair=attrs.evolve(state.pair, backlog=backlog))


def _seen(host: str) -> SyphonsSeen:
    """A syphon on that host is alive."""
    at = datetime.now(UTC) - timedelta(seconds=4)
    heartbeat = Heartbeat(
        syphon="a",
        host=host,
        process="syphon",
        pid=42,
        started=at,
        at=at,
        interval=30.0,
        moved=7,
    )
    return SyphonsSeen(at=at, alive=(heartbeat,), last=at, since=at, unknown="")


def crowded() -> Status:
    """10,000 entities are in trouble; the status has the first hundred."""
    names = [f"tenant-{number:05}/orders" for number in range(100)]
    found = failed_over(*names)
    assert found.pair is not None
    states = {"suspect": 0, "secondary": 10_000, "half-open": 0, "pinned": 0}
    return attrs.evolve(
        found, pair=attrs.evolve(found.pair, states=states, entities=found.pair.entities[:100])
    )


def listener() -> Status:
    queue = QueueStatus(
        queue="orders",
        active_tasks=3,
        total_tasks=8,
        locked=12,
        completed=Counter(25.0, 3).now(),
        failed=2,
        poisoned=1,
        too_late=0,
        usage=USAGE,
        depth=4_217,
    )
    return attrs.evolve(
        _status(_pair()),
        pair=None,
        namespaces=_namespaces()[:1],
        sections=MISSING | {QUEUES: (queue,)},
    )


def agent() -> Status:
    pool = PoolStatus(
        listener="orders bills/*",
        processes=3,
        wanted=4,
        handling=9,
        handled=Counter(55.0, 3).now(),
        depth=812,
        oldest_age=95.0,
    )
    return attrs.evolve(
        _status(_pair()), pair=None, namespaces=(), sections=MISSING | {POOLS: (pool,)}
    )


def history(pending: int = 0) -> list[DepthSample]:
    """
    An outage 40 minutes ago, in which the secondary didn't answer for five minutes; now `pending`
    messages wait, most of them on the first queue.
    """
    at = datetime.now(UTC)
    samples = []
    for minutes in range(55, -1, -1):
        diverted = max(0, min(40, 40 - abs(25 - minutes) * 2)) if minutes < 40 else 0
        queues = {
            f"north/x-servicebus-transfer/{number}": QueueDepth(
                pending=diverted * (20 + number),
                oldest_age=float((40 - minutes) * 60) if diverted else None,
            )
            for number in range(3)
        }
        unknown = 30 <= minutes < 35
        samples.append(
            DepthSample(
                at=at - timedelta(minutes=minutes),
                pending=None if unknown else diverted * 63,
                oldest_age=None if unknown or not diverted else float((40 - minutes) * 60),
                queues={} if unknown else queues,
            )
        )
    if pending:
        depths = {0: pending - pending // 3, 1: pending // 3, 2: 0}
        for share, minutes in ((3, 1), (1, 0)):
            queues = {
                f"north/x-servicebus-transfer/{number}": QueueDepth(
                    pending=depth // share, oldest_age=96.0 / share if depth else None
                )
                for number, depth in depths.items()
            }
            samples[-1 - minutes] = DepthSample(
                at=at - timedelta(minutes=minutes),
                pending=pending // share,
                oldest_age=96.0 / share,
                queues=queues,
            )
    return samples


def history_of(status: Status) -> list[DepthSample]:
    """The last hour before that status."""
    return history(0 if status.pair is None else status.pair.backlog.pending or 0)


STATES: Final[Mapping[str, Callable[[], Status]]] = {
    "healthy": healthy,
    "failed-over": failed_over,
    "many": many,
    "elsewhere": elsewhere,
    "moved-elsewhere": moved_elsewhere,
    "held-back": held_back,
    "draining": draining,
    "stalled": stalled,
    "busy": busy,
    "hostile": hostile,
    "listener": listener,
    "agent": agent,
}
