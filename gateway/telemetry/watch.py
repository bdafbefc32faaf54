"""Counts events, for the status of the process, and the connections of clients by protocol."""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.dead_letters import label_of
from gateway.domain.entity import EntityPath
from gateway.domain.events.access import ConnectionClosed, ConnectionOpened
from gateway.domain.events.control import AuditRestored
from gateway.domain.events.gateway import (
    DeadLettered,
    Diverted,
    EntityStateChanged,
    Event,
    SentTwice,
    StateSaved,
    SyphonBackedOff,
    Syphoned,
    SyphonFailed,
)
from gateway.domain.events.outages import BacklogEmpty, NamespaceBack, NamespaceLost
from gateway.domain.health.backlog_model import BacklogModel
from gateway.domain.health.process_records import CountByName
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import RATE_SECONDS, StateChangeCount
from gateway.domain.status.process import Alarm
from gateway.ports import Observer, WallClock
from gateway.telemetry.log import level_of, name_of, plain
from gateway.telemetry.recent_events import RecentEvents

MOST: Final = 10_000  # entities that are counted by name


@attrs.define(eq=False)
class MessageCounts:
    """The total is exact, whatever the number of entities."""

    total: int = attrs.field(default=0, init=False)
    _by_entity: Counter[EntityPath] = attrs.field(factory=Counter, init=False)

    def record(self, entity: EntityPath, messages: int) -> None:
        self.total += messages
        if entity in self._by_entity or len(self._by_entity) < MOST:
            self._by_entity[entity] += messages

    def read(self, most: int) -> CountByName:
        """The counts of the entities with the most messages, `most` at the utmost."""
        found = heapq.nlargest(most, self._by_entity.items(), key=lambda each: each[1])
        named = {entity.name: messages for entity, messages in found}
        return CountByName(total=self.total, most=named, is_whole=sum(named.values()) == self.total)


@attrs.define(eq=False)
class Connections:
    """The counts since the start, except `open`."""

    open: Counter[str] = attrs.field(factory=Counter)  # now
    opened: Counter[str] = attrs.field(factory=Counter)
    refused: Counter[str] = attrs.field(factory=Counter)  # surplus ones

    def begin(self, protocol: str) -> None:
        """Count a connection that is served from now on, until `record_end`."""
        self.open[protocol] += 1
        self.opened[protocol] += 1

    def record_end(self, protocol: str) -> None:
        self.open[protocol] -= 1


RED: Final = timedelta(minutes=10)  # a longer problem is reported again meanwhile
LONGEST_TEXT: Final = 400  # has room for the remedy at the end of a reason
MOST_DIVERTED: Final = 10_000  # entities whose diverted messages are counted by entity
PRODUCERS, SYPHON = "producers", "syphon"  # who may have made a copy of a message
_UNTOLD: Final = frozenset({"traceback"})  # fields for the log alone
_MOVES_AGAIN: Final = ("backlog_orphaned", "syphon_stalled")
# By an event: the alarms that it ends.
_ENDS: Final[Mapping[type[Event], tuple[str, ...]]] = {
    Syphoned: _MOVES_AGAIN,
    BacklogEmpty: _MOVES_AGAIN,
    StateSaved: ("state_not_saved",),
    AuditRestored: ("audit_failed",),
}


@attrs.define(eq=False)
class _OutageEvents:
    """Events during an outage of one namespace."""

    # up to the number that is remembered in trouble
    entities: set[EntityPath] = attrs.field(factory=set)
    diverted: int = 0  # messages
    twice: int = 0
    possibly_twice: int = 0
    possibly_twice_by_syphon: int = 0

    def doubled(self, messages: int, *, certain: bool) -> None:
        """Count messages that both namespaces have accepted (`certain`), or may have accepted."""
        if certain:
            self.twice += messages
            # Until the primary answered, the messages were uncertain, perhaps since before this
            # outage.
            self.possibly_twice = max(0, self.possibly_twice - messages)
        else:
            self.possibly_twice += messages


@attrs.define(eq=False)
class GatewayWatch:
    """
    An `Observer` before another one. Its memory is bounded by the number of kinds of events, and by
    that of the last events.
    """

    _inner: Observer
    _clock: WallClock
    # Are called with each event, after the inner observer.
    followers: list[Callable[[Event], None]] = attrs.field(factory=list, init=False)
    last_moved: datetime | None = attrs.field(default=None, init=False)
    # The last reason for which a message couldn't be moved, since the last moved message.
    syphon_error: str = attrs.field(default="", init=False)
    dead_lettered: Counter[str] = attrs.field(
        factory=Counter, init=False
    )  # by `label_of` their reason
    diverted_messages: MessageCounts = attrs.field(factory=MessageCounts, init=False)
    spooled: int = attrs.field(default=0, init=False)  # messages among them
    moved_messages: MessageCounts = attrs.field(factory=MessageCounts, init=False)
    connections: Connections = attrs.field(factory=Connections, init=False)
    # By the states before and after, and the cause.
    _state_changes: Counter[tuple[str, str, str]] = attrs.field(factory=Counter, init=False)
    _counts: Counter[type[Event]] = attrs.field(factory=Counter, init=False)
    _alarms: dict[str, Alarm] = attrs.field(factory=dict, init=False)
    _troubled: set[EntityPath] = attrs.field(factory=set, init=False)  # not on the primary
    _diverted: Counter[str] = attrs.field(factory=Counter, init=False)  # messages, by `key`
    _outages: dict[str, _OutageEvents] = attrs.field(factory=dict, init=False)  # by namespace
    # Messages moved in each second, the oldest second first.
    _moves: deque[tuple[int, int]] = attrs.field(factory=deque, init=False)
    # Messages that may have arrived twice, by who may have made the copies.
    possibly_twice: Counter[str] = attrs.field(init=False)
    twice: int = attrs.field(default=0, init=False)  # messages that both namespaces accepted
    # By namespace: since when it answers that was lost.
    back: dict[str, datetime] = attrs.field(factory=dict, init=False)
    recent: RecentEvents = attrs.field(init=False)
    backlog: BacklogModel = attrs.field(factory=BacklogModel, init=False)

    def __attrs_post_init__(self) -> None:
        self.possibly_twice = Counter({PRODUCERS: 0, SYPHON: 0})
        self.recent = RecentEvents(self._clock)

    def report(self, event: Event) -> None:
        event = self._in_outage(event)
        self._counts[type(event)] += 1
        self._count(event)
        self._count_copies(event)
        self._clear_alarms(event)
        level = level_of(event)
        if level == "error":
            self._record_alarm(event)
        if level != "debug":
            self.recent.record(event)
        self._inner.report(event)
        for follow in self.followers:
            follow(event)

    def _count(self, event: Event) -> None:
        match event:
            case ConnectionOpened(protocol=protocol):
                self.connections.begin(protocol)
            case ConnectionClosed(protocol=protocol):
                self.connections.record_end(protocol)
            case Syphoned(entity=entity, messages=messages):
                self._record_move(messages)
                self.moved_messages.record(entity, messages)
            case DeadLettered(reason=reason):
                self.dead_lettered[label_of(reason)] += 1
            case EntityStateChanged(before=before, after=after, cause=cause):
                self._state_changes[before, after, cause] += 1
            case SyphonBackedOff(entity=entity, reason=reason):
                self.syphon_error = f"{entity}: {reason}"[:LONGEST_TEXT]
            case SyphonFailed(queue=queue, reason=reason):
                self.syphon_error = f"{queue}: {reason}"[:LONGEST_TEXT]

    def _count_copies(self, event: Event) -> None:
        match event:
            case Diverted(in_doubt=True) | SentTwice(certain=False):
                self.possibly_twice[PRODUCERS] += event.messages
            case SentTwice(messages=messages):
                self.twice += messages
            case SyphonBackedOff(in_doubt=messages):
                self.possibly_twice[SYPHON] += messages
                for outage in self._outages.values():
                    outage.possibly_twice_by_syphon += messages

    def _in_outage(self, event: Event) -> Event:
        """The event, with the figures of the outage that it ends."""
        if isinstance(event, NamespaceBack):
            self.back[event.namespace] = self._clock()
        match event:
            case NamespaceLost(namespace=name):
                self._outages[name] = _OutageEvents(set(self._troubled))
            case NamespaceBack(namespace=name) if outage := self._outages.pop(name, None):
                return attrs.evolve(
                    event,
                    entities=len(outage.entities),
                    diverted=outage.diverted,
                    twice=outage.twice,
                    possibly_twice=outage.possibly_twice,
                    possibly_twice_by_syphon=outage.possibly_twice_by_syphon,
                )
            case _:
                self._count_in_outages(event)
        return event

    def _count_in_outages(self, event: Event) -> None:
        match event:
            case EntityStateChanged(entity=entity, after="primary"):
                self._troubled.discard(entity)
                self._diverted.pop(entity.key, None)
            case EntityStateChanged(entity=entity):
                self._troubled.add(entity)
                for outage in self._outages.values():
                    outage.entities.add(entity)
            case Diverted():
                self._count_diverted(event)
                for outage in self._outages.values():
                    outage.diverted += event.messages
                    outage.possibly_twice += event.messages if event.in_doubt else 0
            case SentTwice():
                for outage in self._outages.values():
                    outage.doubled(event.messages, certain=event.certain)

    def _count_diverted(self, event: Diverted) -> None:
        self.diverted_messages.record(event.entity, event.messages)
        if event.accepted_by is AcceptedBy.BACKLOG:
            self.backlog.diverted(event.entity, event.messages, self._clock())
        else:
            self.spooled += event.messages
        key = event.entity.key
        if key in self._diverted or len(self._diverted) < MOST_DIVERTED:
            self._diverted[key] += event.messages

    def count(self, kind: type[Event]) -> int:
        """The number of times that the event has occurred since the start."""
        return self._counts[kind]

    def counts(self) -> dict[str, int]:
        """The number of events since the start, by their names in the log."""
        return {name_of(kind): times for kind, times in self._counts.items()}

    def diverted(self, entity: EntityPath) -> int:
        """
        The messages of a troubled entity that this process has diverted since the entity left the
        primary, or the process started.
        """
        return self._diverted[entity.key]

    def state_changes(self) -> Sequence[StateChangeCount]:
        """The changes of entities' states that this process has decided, since the start."""
        return [
            StateChangeCount(before=before, after=after, cause=cause, times=times)
            for (before, after, cause), times in self._state_changes.items()
        ]

    def alarms(self) -> Sequence[Alarm]:
        """Red states, the latest first."""
        since = self._clock() - RED
        red = [alarm for alarm in self._alarms.values() if alarm.last > since]
        return sorted(red, key=lambda alarm: alarm.last, reverse=True)

    @property
    def moved(self) -> int:
        """Messages that syphons have moved."""
        return self.moved_messages.total

    def rate(self) -> float:
        """Messages a second that syphons moved in the last `RATE_SECONDS`."""
        self._forget_moves()
        return sum(messages for _, messages in self._moves) / RATE_SECONDS

    def _record_move(self, messages: int) -> None:
        self.syphon_error = ""
        self.last_moved = now = self._clock()
        second = int(now.timestamp())
        if self._moves and self._moves[-1][0] == second:
            messages += self._moves.pop()[1]
        self._moves.append((second, messages))
        self._forget_moves()

    def _forget_moves(self) -> None:
        horizon = self._clock().timestamp() - RATE_SECONDS
        while self._moves and self._moves[0][0] < horizon:
            self._moves.popleft()

    def _clear_alarms(self, event: Event) -> None:
        """The event shows that what others told of is over."""
        for name in _ENDS.get(type(event), ()):
            if name in self._alarms:
                self._alarms[name] = attrs.evolve(self._alarms[name], over=True)

    def _record_alarm(self, event: Event) -> None:
        name = name_of(type(event))
        self._alarms[name] = Alarm(
            event=name, times=self._counts[type(event)], last=self._clock(), text=_text_of(event)
        )


def _text_of(event: Event) -> str:
    fields = (field.name for field in attrs.fields(type(event)) if field.name not in _UNTOLD)
    return ", ".join(f"{name} {plain(getattr(event, name))}" for name in fields)[:LONGEST_TEXT]


@attrs.frozen
class CountingMoves:
    """The observer of the syphon that empties the backlog; the spool's counts elsewhere."""

    watch: GatewayWatch
    clock: WallClock

    def report(self, event: Event) -> None:
        if isinstance(event, Syphoned):
            self.watch.backlog.moved(event.entity, event.messages, self.clock())
        self.watch.report(event)
