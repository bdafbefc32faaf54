"""Collects the status of this process from its parts, at each request."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.app.assembly.opening import SPOOL
from gateway.app.assembly.parts import Parts
from gateway.app.assembly.records import RecordParts
from gateway.app.certificates import CertificateWatch
from gateway.app.operations.control_calls import Executors
from gateway.app.runtime import Runtime
from gateway.config.endpoints import SERVE
from gateway.config.options import Config, Pairing
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import BusyPause, DeadLettered
from gateway.domain.failover import State
from gateway.domain.health.abilities import Ability, AbilityState
from gateway.domain.health.backlog_model import Depth
from gateway.domain.health.depth_history import DepthSample, first_queues
from gateway.domain.health.process_records import ALONE
from gateway.domain.health.way_home import WayHome, progress_of
from gateway.domain.operators.control import Override
from gateway.domain.status.figures import merged
from gateway.domain.status.pair import (
    MOST_ENTITIES,
    MOST_PROCESSES,
    BacklogStatus,
    BusyEntity,
    PairStatus,
    SpoolStatus,
    SyphonStatus,
    TroubledEntity,
)
from gateway.domain.status.process import (
    Alarm,
    CommitStatus,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    RefusalCount,
    Status,
    Workers,
)
from gateway.domain.status.sections import Readings
from gateway.frontends.admin.control import ControlFrontend
from gateway.frontends.admin.events import EventsFrontend
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.auth import Authorizer
from gateway.frontends.refusals import Refusals
from gateway.pairing.depth import BacklogDepth, Reading
from gateway.pairing.entity_record import EntityState
from gateway.pairing.options import rule_for
from gateway.pairing.pair import Pair
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker
from gateway.wire.pairgate.control_calls import CONTROL_CALLS

# Seconds for a namespace to answer a probe, and for the spool to report its figures. Together with
# the depth they stay below the ten seconds that a scrape by Prometheus waits (`scrape_timeout`).
PROBE_SECONDS: Final = 3.0
# between two readings of the records of the pair's other processes, while somebody asks
RECORDS_SECONDS: Final = 2.0
# for the secondary to report the depth; after that the last known depth is reported
BACKLOG_SECONDS: Final = 3.0
# The intervals of a syphon's records differ, and each record takes a moment to be read.
LATE: Final = 1.2  # intervals


@attrs.frozen(kw_only=True)
class LoneSyphon:
    """A syphon that is a process of its own, and the namespaces that it has open, by name."""

    syphon: Syphon
    depth: BacklogDepth
    namespaces: Mapping[str, Broker]
    records: RecordParts | None = None  # None: it doesn't know the pair's other processes


@attrs.frozen(kw_only=True)
class StatusBoard:
    """Reads the status that the admin endpoint serves, from the counts of the parts."""

    config: Config
    runtime: Runtime
    refusals: Refusals
    parts: Parts | None = None  # of a gateway
    syphon: LoneSyphon | None = None  # of a process that is nothing else
    sections: Readings = attrs.field(factory=dict)  # those that the core doesn't know
    certificates: CertificateWatch | None = None  # of the process; None: of a worker

    async def read(self) -> Status:
        """The present status. Now and then this sends a request to the secondary."""
        pair = None if self.parts is None else self.parts.pair
        pairing = self.config.pairing
        pair_status = None
        async with trio.open_nursery() as nursery:  # the limits of both aren't added up
            nursery.start_soon(self._probe_idle)
            if self._records is not None:  # first: what others tell puts an old depth in doubt
                await self._records.reader.look_again(RECORDS_SECONDS)
            if pair is not None and pairing is not None:
                pair_status = await self._pair(pair, pairing)
            elif self.syphon is not None and pairing is not None:
                pair_status = await self._lone(self.syphon, pairing)
        if pair_status is not None:
            pair_status = self._with_others(pair_status)
        workers = Workers() if self.parts is None else await self.parts.workers()
        return merged(self._status(pair_status), workers.running, workers.ended)

    def _with_others(self, pair: PairStatus) -> PairStatus:
        """The status with what the records of the pair's other processes tell."""
        if self._records is None:
            return attrs.evolve(pair, reach_unknown=ALONE)
        known, own = self._records.reader.known, self._records.book.process
        return attrs.evolve(
            pair,
            process_problems=known.problems_but_for(own),
            processes=known.processes(own)[:MOST_PROCESSES],
            process_texts=tuple(
                f"{each.place}: {text}"
                for each in self._records.reader.others[:MOST_PROCESSES]
                for text in each.texts
            ),
            not_reached=known.not_reached,
            reach_unknown=known.reach_unknown,
        )

    @property
    def _records(self) -> RecordParts | None:
        if self.parts is not None:
            return self.parts.records
        return None if self.syphon is None else self.syphon.records

    def counts(self) -> Status:
        """
        The counts of this process, for the parent of a worker. No request is made to a namespace.
        """
        pair = None if self.parts is None else self.parts.pair
        pairing = self.config.pairing
        if pair is None or pairing is None:
            return self._status(None)
        unknown = Reading()
        pair_status = self._counted_pair(pair, pairing, pair.states.troubled(), unknown)
        if self.parts is not None and self.parts.spool is not None:
            pair_status = attrs.evolve(pair_status, spool=self.parts.spool.rates())
        return self._status(pair_status)

    def history(self) -> Iterable[DepthSample]:
        """The backlog in the last hour, as far as its depth was read; empty without a pair."""
        if self.parts is not None and self.parts.pair is not None:
            return self.parts.pair.depth.history
        return () if self.syphon is None else self.syphon.depth.history

    def _status(self, pair_status: PairStatus | None) -> Status:
        watch = self.runtime.observer
        return Status(
            at=self.runtime.now(),
            started=self.runtime.started,
            namespaces=tuple(self._namespaces()),
            pair=pair_status,
            events=watch.counts(),
            alarms=tuple(_with_ends(watch.alarms(), pair_status, self.runtime.now())),
            refused=tuple(self._refused()),
            limited=tuple(self._limited()),
            connections=tuple(self._connections()),
            commits=tuple(
                CommitStatus(
                    name=name, seconds=each.seconds.read(), operations=each.operations.read()
                )
                for name, each in self.runtime.commits.items()
            ),
            loop_lag=self.runtime.loop_lag.read(),
            tasks=self.runtime.loop_lag.tasks,
            token_expiries={
                name: at
                for name, expires in self.runtime.token_expiries.items()
                if (at := expires()) is not None
            },
            sends=tuple(self.runtime.sends.all()),
            durations=tuple(self.runtime.sends.durations()),
            expiries=() if self.certificates is None else self.certificates.expiries(),
            sections={each: read() for each, read in self.sections.items()},
        )

    def _refused(self) -> Iterator[RefusalCount]:
        for (protocol, reason), times in sorted(self.refusals.counts.items()):
            yield RefusalCount(protocol=protocol, reason=reason, times=times)

    def _limited(self) -> Iterator[LimitCount]:
        counts = {} if self.parts is None else self.parts.clients.refused
        for (client, limit), times in counts.items():
            yield LimitCount(client=client, limit=limit.value, times=times)

    def _connections(self) -> Iterator[ConnectionCount]:
        """The connections to this gateway; those of a listener don't matter."""
        endpoints = () if self.parts is None else self.config.endpoints_of(SERVE).values()
        counts = self.runtime.observer.connections
        for protocol, ports in Counter(each.protocol for each in endpoints).items():
            yield ConnectionCount(
                protocol=protocol,
                open=counts.open[protocol],
                opened=counts.opened[protocol],
                refused=counts.refused[protocol],
                limit=ports * self.config.limits.listener.max_connections,
            )

    async def _probe_idle(self) -> None:
        """Probe each namespace that no operation has used for a while."""
        opened: Mapping[str, Broker] = {}
        if self.parts is not None:
            opened = self.parts.namespaces
        elif self.syphon is not None:
            opened = self.syphon.namespaces
        async with trio.open_nursery() as nursery:
            for name, broker in opened.items():
                look = self.runtime.abilities[name].check
                nursery.start_soon(look, broker, self._some_entity(name), PROBE_SECONDS)

    def _some_entity(self, name: str) -> EntityPath | None:
        """A configured entity, to probe it."""
        pairing = self.config.pairing
        pair = None if self.parts is None else self.parts.pair
        if pairing is not None and pair is not None:
            known = pair.entity_cache.all()
            if name == pairing.secondary:
                return pair.rotation.queues[0]
            if known:
                return known[-1].entity
        if self.syphon is not None and pairing is not None and name == pairing.secondary:
            return next(iter(self.syphon.syphon.queues), None)
        planned = self.config.namespaces[name].plan.queues
        return planned[0].path if planned else None

    def _namespaces(self) -> list[NamespaceStatus]:
        roles = _roles(self.config.pairing)
        return [
            NamespaceStatus(
                name=name,
                kind=self._kind(name),
                role=roles.get(name, "only"),
                usage=meter.usage(),
                abilities=self.runtime.abilities[name].status(),
                operations=self.runtime.abilities[name].times.read(),
            )
            for name, meter in self.runtime.meters.items()
            if name != SPOOL
        ]

    def _kind(self, name: str) -> str:
        """The scheme of the namespace's URL; a listener's namespace may be the local gateway."""
        known = self.config.namespaces.get(name)
        return "gateway" if known is None else known.url.partition(":")[0]

    async def _pair(self, pair: Pair, pairing: Pairing) -> PairStatus:
        reading = await pair.depth.read(
            BACKLOG_SECONDS,
            troubled=bool(pair.states.troubled()),
            dead_lettered=self.runtime.observer.count(DeadLettered),
        )
        spool = await self._spool()
        # All figures are of one moment: entities may have returned while the others were read.
        troubled = pair.states.troubled()
        return attrs.evolve(self._counted_pair(pair, pairing, troubled, reading), spool=spool)

    def _counted_pair(
        self, pair: Pair, pairing: Pairing, troubled: Sequence[EntityState], reading: Reading
    ) -> PairStatus:
        inflight, pauses = pair.broker.inflight, pair.broker.ways.to_primary.pauses
        syphons = self.parts.syphons if self.parts is not None else ()
        depth = self._depth(syphons, troubled=bool(troubled))
        return PairStatus(
            label=pairing.options.label,
            states=_counted(troubled),
            answering={state.value: count for state, count in pair.states.answering().items()},
            entities=tuple(self._entity(pair, each, depth) for each in _worst(troubled)),
            backlog=self._backlog(pairing, pair.rotation.usable, reading, depth),
            syphon=self._syphon(syphons, runs=pairing.enable_syphon, pauses=self._pauses()),
            sends=tuple(pair.broker.sends.all()),
            inflight=inflight.total,
            max_inflight=inflight.limit,
            paused=pauses.running,
            pauses=self.runtime.observer.count(BusyPause),
            busy=tuple(_busy_for_too_long(pair)),
            pins=tuple(each.text for each in pair.states.pins),
            durations=tuple(pair.broker.sends.durations()),
            refused=pair.broker.sends.refused(),
            oversized=pair.broker.ways.admission.oversized,
            possibly_twice=dict(self.runtime.observer.possibly_twice),
            slow_calls=pair.broker.ways.to_primary.watch.slow,
            state_changes=tuple(self.runtime.observer.state_changes()),
            diverted=self.runtime.observer.diverted_messages.read(MOST_ENTITIES).most,
            primary_answers=self._answers(pairing.primary),
        )

    def _entity(self, pair: Pair, state: EntityState, depth: Depth) -> TroubledEntity:
        return TroubledEntity(
            entity=state.entity.name,
            state=state.state.value,
            since=state.since,
            reason=state.reason,
            pinned=state.state is State.PINNED,
            missing=state.missing,
            diverted=self.runtime.observer.diverted(state.entity),
            waiting=self.runtime.observer.backlog.of(state.entity, depth),
            next_probe=pair.prober.next_probe(state.entity),
        )

    async def _lone(self, lone: LoneSyphon, pairing: Pairing) -> PairStatus:
        """
        The pair from the view of a syphon of its own: the backlog, without entities and sends.
        """
        syphon = lone.syphon
        answers = self._answers(pairing.primary)
        reading = await lone.depth.read(
            BACKLOG_SECONDS,
            # Gateways divert, perhaps.
            troubled=answers is False or bool(syphon.pauses.pins) or syphon.held > 0,
            dead_lettered=self.runtime.observer.count(DeadLettered),
        )
        answers = self._answers(pairing.primary)  # as of now: the reading took a moment
        depth = self._depth((syphon,), troubled=answers is False or bool(syphon.pauses.pins))
        return PairStatus(
            label=syphon.label,
            pins=tuple(each.text for each in syphon.pauses.pins),
            states=_counted(()),
            entities=(),
            # A syphon that starts hasn't looked for its queues yet.
            backlog=self._backlog(
                pairing, None if syphon.stalled is None else len(syphon.queues), reading, depth
            ),
            syphon=self._syphon((syphon,), runs=True, pauses=syphon.pauses.overrides.all()),
            sends=(),
            inflight=0,
            max_inflight=0,
            paused=0,
            pauses=0,
            possibly_twice=dict(self.runtime.observer.possibly_twice),
            primary_answers=answers,
        )

    def _answers(self, namespace: str) -> bool | None:
        """True if that namespace can be reached; None: nobody knows."""
        watch = self.runtime.abilities.get(namespace)
        reach = None if watch is None else watch.status().get(Ability.REACH.value)
        if reach is None or reach.state is AbilityState.UNKNOWN:
            return None
        return reach.state is AbilityState.YES

    def _depth(self, syphons: Sequence[Syphon], *, troubled: bool) -> Depth:
        """The depth of the backlog now; the spool's syphon has none of it."""
        held = sum(each.held for each in syphons if each.reports_progress)
        return self.runtime.observer.backlog.depth(self.runtime.now(), held=held, troubled=troubled)

    def _backlog(
        self, pairing: Pairing, usable: int | None, reading: Reading, depth: Depth
    ) -> BacklogStatus:
        model = self.runtime.observer.backlog
        return BacklogStatus(
            wanted=pairing.options.backlog_queues,
            usable=usable,
            pending=depth.pending,
            oldest_age=None if depth.is_empty else reading.oldest_age,
            as_of=depth.as_of,
            locked_here=reading.locked_here,
            last_decrease=model.last_decrease,
            consumers=reading.consumers,
            dead_letters=reading.dead_letters,
            queues=first_queues(reading.queues),
            syphons=reading.syphons,
            by_entity=model.by_entity(MOST_ENTITIES, depth),
            counted=depth.counted,
            unknown=depth.unknown,
            decrease_rate=model.falls(self.runtime.now()),
            syphons_rate=self._syphons_rate(),
        )

    def _syphons_rate(self) -> float | None:
        """The rate of all syphons elsewhere, by what each has told in its last interval."""
        others = () if self._records is None else self._records.reader.others
        now = self.runtime.now()
        rates = [
            each.syphon.rate
            for each in others
            if each.syphon is not None
            and each.syphon.rate is not None
            and (now - each.at).total_seconds() <= each.interval * LATE
        ]
        return sum(rates) if rates else None

    async def _spool(self) -> SpoolStatus | None:
        if self.parts is None or self.parts.spool is None:
            return None
        return await self.parts.spool.read(PROBE_SECONDS)

    def _pauses(self) -> Sequence[Override]:
        control = None if self.parts is None else self.parts.control
        return () if control is None else control.pauses.overrides.all()

    def _syphon(
        self, syphons: Sequence[Syphon], *, runs: bool, pauses: Sequence[Override]
    ) -> SyphonStatus:
        """
        The status of these syphons. `runs`: a syphon among them moves the backlog of this pair.
        """
        watch = self.runtime.observer
        waiting = [each for syphon in syphons for each in syphon.waiting()]
        waiting.sort(key=lambda each: each.left)
        return SyphonStatus(
            running=runs and bool(syphons),
            moved=watch.moved,
            rate=watch.rate(),
            last_moved=watch.last_moved,
            backing_off=sum(syphon.backing_off for syphon in syphons),
            dead_lettered=watch.count(DeadLettered),
            dead_lettered_by_reason=dict(watch.dead_lettered),
            waiting=tuple(waiting[:MOST_ENTITIES]),
            pauses=tuple(each.text for each in pauses),
            stalled=_any_known(syphon.stalled for syphon in syphons),
            copies=_copies(syphons),
            last_error=watch.syphon_error,
        )


def _exposition(status: Status) -> bytes:
    # Prometheus's library, which only its scrapes need.
    from gateway.telemetry.metrics import exposition

    return exposition(status)


def make_figures(
    board: StatusBoard,
    authorizer: Authorizer,
    readiness: Readiness,
    executors: Executors,
) -> FiguresFrontend:
    """
    The front end that serves that status, events, control and readiness.
    """
    return FiguresFrontend(
        authorizer=authorizer,
        read=board.read,
        exposition=_exposition,
        readiness=readiness,
        control=ControlFrontend(authorizer, CONTROL_CALLS, executors),
        history=board.history,
        sections=[*board.sections],
        events=EventsFrontend(authorizer, board.runtime.observer.recent),
    )


def _busy_for_too_long(pair: Pair) -> Iterator[BusyEntity]:
    options = pair.broker.options
    for entity, seconds, error in pair.broker.ways.to_primary.pauses.lasting():
        if seconds > rule_for(entity, options).interval:
            yield BusyEntity(
                entity=entity.name, seconds=seconds, reason=error.reason.value, text=str(error)
            )


def _roles(pairing: Pairing | None) -> Mapping[str, str]:
    if pairing is None:
        return {}
    return {pairing.primary: "primary", pairing.secondary: "secondary"}


# By an alarm: the states of the way home in which it may still hold.
_HOLDS_WHILE: Final = {
    "backlog_orphaned": {WayHome.ABSENT, WayHome.UNKNOWN},
    "syphon_stalled": {WayHome.STALLED, WayHome.UNKNOWN},
}


def _with_ends(alarms: Iterable[Alarm], pair: PairStatus | None, at: datetime) -> Iterator[Alarm]:
    """The alarms; those whose end the way home shows are over."""
    state = None if pair is None else progress_of(pair, at).state
    for each in alarms:
        holds = state is None or state in _HOLDS_WHILE.get(each.event, {state})
        yield each if holds else attrs.evolve(each, over=True)


def _counted(troubled: Sequence[EntityState]) -> Mapping[str, int]:
    counts = Counter(each.state for each in troubled)
    return {state.value: counts[state] for state in State if state is not State.PRIMARY}


def _any_known(answers: Iterable[bool | None]) -> bool | None:
    """True if any value is true; None: no value is known."""
    known = [each for each in answers if each is not None]
    return any(known) if known else None


def _copies(syphons: Sequence[Syphon]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for syphon in syphons:
        counts.update({state.value: number for state, number in syphon.copies.items()})
    return dict(counts)


def _worst(troubled: Sequence[EntityState]) -> Sequence[EntityState]:
    """The entities that have been in trouble for the longest time, suspects last."""
    return heapq.nsmallest(
        MOST_ENTITIES, troubled, key=lambda each: (each.state is State.SUSPECT, each.since)
    )
