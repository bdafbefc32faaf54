"""The record that a process leaves for the others of its pair, and the orders that it follows."""

import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from gateway import __version__
from gateway.app.assembly.roles import Role
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge
from gateway.app.status.own_problems import ProblemWatch, problems_here
from gateway.config.endpoints import SERVE, SYPHON
from gateway.config.options import Pairing
from gateway.domain.envelope import Envelope
from gateway.domain.events.gateway import Event, SendFailed
from gateway.domain.events.outages import BacklogEmpty
from gateway.domain.health.process_records import (
    CountByName,
    GatewayRecord,
    ProcessRecord,
    SyphonRecord,
    named_place,
)
from gateway.domain.message import AcceptedBy
from gateway.domain.operators.control import EVERYTHING
from gateway.domain.status.pair import MOST_ENTITIES
from gateway.domain.status.process import Status, Workers
from gateway.pairing.control import Control
from gateway.pairing.records.following import OrderFollower
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.place import place_of
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import FIGURES, USUAL, RecordWriter
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Service
from gateway.telemetry.stalls import StallWatch
from gateway.telemetry.watch import PRODUCERS
from gateway.telemetry.watch import SYPHON as SYPHON_COPIES

ReadWorkers = Callable[[], Awaitable[Workers]]
SPOOL_SECONDS: Final = 1.0  # for the own spool to tell its depth; a record waits no longer
MOST_NAMES: Final = 40  # entities by name in a record; it has room for about as many


@attrs.frozen(kw_only=True)
class RecordParts:
    """The parts of a process that know the pair's other processes."""

    pairing: Pairing
    envelope: Envelope
    secondary: Broker  # without a watch around it: records are no evidence
    book: OrderBook
    reader: RecordReader
    runtime: Runtime
    kind: str

    @property
    def host(self) -> str:
        return self.pairing.origin or socket.gethostname()

    @property
    def place(self) -> str:
        """This process as the records of the pair name it."""
        return named_place(self.kind, self.host, os.getpid())


def make_records(
    pairing: Pairing, envelope: Envelope, secondary: Broker, runtime: Runtime, role: Role
) -> RecordParts | None:
    """
    The records of a process; None: the configuration disables them, the process is a worker, for
    which its parent speaks, or the secondary can't show its messages.
    """
    is_read = place_of(secondary, envelope.pair) is not None
    if pairing.syphon.heartbeat_interval is None or role is Role.WORKER or not is_read:
        return None
    process = runtime.new_id()
    return RecordParts(
        pairing=pairing,
        envelope=envelope,
        secondary=secondary,
        book=OrderBook(process=process, clock=runtime.now),
        reader=RecordReader(
            process=process,
            secondary=secondary,
            label=envelope.pair,
            clock=runtime.now,
            keys=lambda: envelope.keys,
            observer=runtime.observer,
        ),
        runtime=runtime,
        kind=SYPHON if role is Role.SYPHON else SERVE,
    )


async def no_workers() -> Workers:  # noqa: ASYNC124 it stands for one that waits
    """Return no status, as the gateway is one process."""
    return Workers()


@attrs.frozen(kw_only=True)
class OwnFigures:
    """The figures of a gateway that its record tells, each read when it is written."""

    workers: ReadWorkers = no_workers
    spool: SpoolGauge | None = None
    drills: Callable[[], Sequence[str]] = list
    troubled: Callable[[], int | None] = lambda: None  # entities, but for pinned ones
    stalls: StallWatch | None = None  # None: there is no pair, or workers send


def services_of_records(
    records: RecordParts,
    control: Control,
    syphon: Syphon | None,
    figures: OwnFigures,
) -> Iterable[Service]:
    """
    The services that follow the orders of others and leave the records of this process. `syphon` is
    that which moves the backlog here; `figures` are those of a gateway.
    """
    runtime, rng = records.runtime, records.runtime.rng("records")

    def notify_when_empty(event: Event) -> None:
        """An empty backlog is the end of an outage, of which others want to know the totals."""
        if isinstance(event, BacklogEmpty):
            control.told.notify()

    runtime.observer.followers.append(notify_when_empty)
    interval = records.pairing.syphon.heartbeat_interval or USUAL
    yield OrderFollower(
        reader=records.reader,
        control=control,
        book=records.book,
        moves=syphon is not None,
        host=records.host,
        kind=records.kind,
        rng=rng,
        inherits=records.kind == SYPHON,
        waits=records.kind == SYPHON,
    )
    yield ProblemWatch(
        problems=partial(problems_here, runtime, syphon, control.states),
        diverted=lambda: runtime.observer.diverted_messages.total,
        back=partial(runtime.observer.back.get, records.pairing.primary),
        states=control.states,
        reader=records.reader,
        urgent=control.told,
        rng=rng,
    )
    yield RecordWriter(
        secondary=records.secondary,
        label=records.envelope.pair,
        keys=lambda: records.envelope.keys,
        describe=partial(_described, records, control, syphon, figures),
        interval=USUAL if syphon is None else interval,
        rng=rng,
        new_id=runtime.new_id,
        observer=runtime.observer,
        urgent=control.told,
        on_left=records.reader.expect_stream,
        first_after=rng.uniform(0.0, FIGURES) if syphon is None else 0.0,
    )


async def _described(
    records: RecordParts, control: Control, syphon: Syphon | None, figures: OwnFigures
) -> ProcessRecord:
    runtime = records.runtime
    gateway = None if records.kind == SYPHON else await gateway_record(runtime, figures)
    return ProcessRecord(
        process=records.book.process,
        host=records.host,
        kind=records.kind,
        pid=os.getpid(),
        version=__version__,
        started=runtime.started,
        at=runtime.now(),
        interval=USUAL,
        # A stream that is missing may be readable once it is there.
        sees_others=records.reader.may_read if records.reader.exists else None,
        orders=records.book.own,
        gateway=gateway,
        syphon=None if syphon is None else _syphon(records, control, syphon),
        problems=problems_here(runtime, syphon, control.states),
        keys=tuple(each.id for each in records.envelope.keys),
        reload=records.book.reload,
        primary_back=runtime.observer.back.get(records.pairing.primary),
    )


@attrs.frozen
class WorkerCounts:
    """Messages of producers that workers have counted since their start."""

    backlog: int  # that were left there
    spooled: int
    possibly_twice: int
    by_entity: Mapping[str, int]  # of the diverted ones; each worker tells those with the most

    @property
    def diverted(self) -> int:
        return self.backlog + self.spooled


def counted_by(workers: Iterable[Status]) -> WorkerCounts:
    """The counts of all together."""
    pairs = [each.pair for each in workers if each.pair is not None]
    sent = Counter[str]()
    for send in (each for pair in pairs for each in pair.sends):
        sent[send.accepted_by] += send.messages
    return WorkerCounts(
        backlog=sent[AcceptedBy.BACKLOG.value],
        spooled=sent[AcceptedBy.SPOOL.value],
        possibly_twice=sum(pair.possibly_twice.get(PRODUCERS, 0) for pair in pairs),
        by_entity=sum((Counter(pair.diverted) for pair in pairs), Counter[str]()),
    )


async def gateway_record(runtime: Runtime, figures: OwnFigures) -> GatewayRecord:
    """The record of a gateway and its workers."""
    of_workers = await figures.workers()
    workers: Iterable[Status] = (*of_workers.running, *of_workers.ended)
    spool = None if figures.spool is None else await figures.spool.read(SPOOL_SECONDS)
    diverted, stalls = runtime.observer.diverted_messages, figures.stalls
    counted = counted_by(workers)
    named = Counter(diverted.read(MOST_ENTITIES).most) + Counter(counted.by_entity)
    total, most = diverted.total + counted.diverted, dict(named.most_common(MOST_NAMES))
    return GatewayRecord(
        possibly_twice=runtime.observer.possibly_twice[PRODUCERS] + counted.possibly_twice,
        twice=None if stalls is None else runtime.observer.twice,
        failed=None if stalls is None else runtime.observer.count(SendFailed),
        troubles=None if stalls is None else stalls.troubles,
        stalls=() if stalls is None else stalls.stalls,
        diverted=CountByName(total=total, most=most, is_whole=sum(most.values()) == total),
        spooled=runtime.observer.spooled + counted.spooled,
        spool=None if spool is None else spool.pending,
        troubled=figures.troubled(),
        drills=tuple(figures.drills()),
    )


def rate_now(runtime: Runtime, held: int) -> float:
    """
    Messages a second that the syphon moves, of which it has `held` in hand; 0 once the backlog is
    empty, whatever it has moved in the seconds before: others believe a record until the next one.
    """
    depth = runtime.observer.backlog.depth(runtime.now(), held=held)
    return 0.0 if depth.is_empty else runtime.observer.rate()


def _syphon(records: RecordParts, control: Control, syphon: Syphon) -> SyphonRecord:
    watch, state = records.runtime.observer, control.state(())
    return SyphonRecord(
        moved=watch.moved_messages.read(MOST_NAMES),
        in_hand=sum(syphon.copies.values()),
        dead_lettered=dict(watch.dead_lettered),
        rate=rate_now(records.runtime, syphon.held),
        possibly_twice=watch.possibly_twice[SYPHON_COPIES],
        paused=any(each.target == EVERYTHING for each in state.pauses),
        held_back=tuple(each.target for each in (*state.pins, *state.pauses)),
        follows=records.book.revision,
    )
