"""
The record that each process of a pair leaves on the secondary for the others.

A gateway tells the orders of its operators and what it has diverted; a syphon, what it has moved
and has in hand; both, their problems. The syphons' heartbeats of earlier versions are read as
records without a version. No clock here: dates are arguments, in UTC.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.health.heartbeats import MISSED, Heartbeat, SyphonsSeen, newest_among
from gateway.domain.health.problems import Problem
from gateway.domain.health.told_changes import ToldChanges
from gateway.domain.operators.given_orders import GivenOrder

# For which the orders in a record hold, and the secondary keeps it: three times as long as from one
# record to the next of a process that has nothing to tell.
ORDERS_HOLD: Final = timedelta(minutes=30)
MOST_BYTES: Final = 4096  # of a record on the secondary
MOST_RECORDS: Final = 2000  # processes that a reader remembers
MOST_PROBLEMS: Final = 20  # of other processes, so that a verdict stays readable
# Times the interval of its problems after which a process counts as silent: intervals differ, and a
# record takes a moment to be written and read.
SILENT: Final = 1.5
ALONE: Final = "orders to this process are told to no other one"
MOST_NAMED: Final = 20  # processes that an order doesn't reach: a fleet may have hundreds


def named_place(kind: str, host: str, pid: int) -> str:
    """A process for people, which is another one after a restart."""
    return f"{kind} on {host} (process {pid})"


@attrs.frozen(kw_only=True)
class CountByName:
    """A number of messages since the process's start, and of those names that have the most."""

    total: int = 0
    most: Mapping[str, int] = attrs.field(factory=dict)
    is_whole: bool = True  # `most` has all names


@attrs.frozen(kw_only=True)
class GatewayRecord:
    """The part of a gateway."""

    diverted: CountByName = attrs.field(factory=CountByName)  # by entity
    spooled: int = 0  # messages of `diverted` that the spool has accepted
    spool: int | None = None  # messages in it; None: not known, or there is no spool
    # Messages of producers that may have arrived twice, since the start; None: it isn't told.
    possibly_twice: int | None = None
    twice: int | None = None  # messages that both namespaces have accepted; None: as above
    failed: int | None = None  # sends that ended with an error at the client; None: as above
    # Times at which entities began to be in trouble, since the start; None: it isn't told.
    troubles: int | None = None
    # Seconds of the slowest send since each of the last troubles began, the latest last.
    stalls: tuple[float, ...] = ()
    # Entities in trouble, but for those that an operator has pinned; None: it isn't told. At 0 the
    # counts above are those of the whole outage.
    troubled: int | None = None
    drills: tuple[str, ...] = ()  # in force


@attrs.frozen(kw_only=True)
class SyphonRecord:
    """The part of a syphon."""

    moved: CountByName = attrs.field(factory=CountByName)  # by entity
    in_hand: int | None = None  # messages; None: not known
    dead_lettered: Mapping[str, int] = attrs.field(factory=dict)  # by reason
    rate: float | None = None  # messages/s, measured; None: not known
    possibly_twice: int | None = None  # messages that it may have sent twice; None: as above
    paused: bool = False  # an operator has paused the whole syphon
    # The entities that it leaves on the backlog, as their operators named them.
    held_back: tuple[str, ...] = ()
    # Revision of the newest order that it has seen and follows; None: an earlier version, which
    # sees no orders.
    follows: int | None = None


@attrs.frozen(kw_only=True)
class ProcessRecord:
    """The newest that one process has told."""

    process: str  # an id, another one at each start
    host: str
    kind: str  # serve or syphon
    pid: int
    started: datetime
    at: datetime  # by the secondary's clock, if it tells; else by the process's
    interval: float  # seconds until the next one, at most
    version: str = ""  # of Pairgate; empty: it isn't told, as before there were records
    revision: int = 0  # counts the records of the process
    lifetime: timedelta = ORDERS_HOLD  # of the orders in it
    ended: bool = False  # the last word of a process that ended in good order
    # It may read the records of others, so that their orders reach it; None: not told.
    sees_others: bool | None = None
    orders: tuple[GivenOrder, ...] = ()  # given at this process; also those that took others back
    orders_left_out: int = 0  # the oldest ones, for which the record had no room
    gateway: GatewayRecord | None = None
    syphon: SyphonRecord | None = None
    problems: tuple[Problem, ...] = ()
    problems_left_out: int = 0
    # Ids of the envelope's keys that the process has read, the one that signs first; None: it isn't
    # told, as by earlier versions.
    keys: tuple[str, ...] | None = None
    # Revision of the newest request to read the configuration again, given here for all processes.
    reload: int = 0
    # Since when the primary answers that this process had lost as a whole; None: it hasn't, or it
    # isn't told.
    primary_back: datetime | None = None
    # Seconds until it tells its problems again, at most; None: `interval`.
    renews: float | None = None

    @property
    def renewal(self) -> timedelta:
        """The time after which its problems are told again, while it has some."""
        return timedelta(seconds=self.interval if self.renews is None else self.renews)

    @property
    def place(self) -> str:
        """The place where the process runs, for people."""
        return named_place(self.kind, self.host, self.pid)

    @property
    def texts(self) -> tuple[str, ...]:
        """Sentences about the process for people, beside its orders and problems."""
        gateway = self.gateway or GatewayRecord()
        spool = [f"{gateway.spool} messages wait in its spool"] if gateway.spool else []
        return (*spool, *(f"a drill: {each}" for each in gateway.drills))

    @property
    def alive_for(self) -> timedelta:
        """The time after `at` for which the process counts as alive."""
        return timedelta(seconds=self.interval * MISSED)

    @property
    def kept_for(self) -> timedelta:
        """The time for which the secondary keeps the record."""
        return max(self.lifetime, self.alive_for) if self.orders else self.alive_for

    @property
    def possibly_twice(self) -> int | None:
        """
        The messages that its sends may have left twice since its start; None: it isn't told.
        """
        counts = [each.possibly_twice for each in (self.gateway, self.syphon) if each is not None]
        return None if None in counts else sum(filter(None, counts))

    @property
    def longest_stall(self) -> float | None:
        """The seconds of the slowest send since its last trouble began; None: it isn't told."""
        if self.gateway is None or self.gateway.troubles is None:
            return None
        return self.gateway.stalls[-1] if self.gateway.stalls else 0.0

    @property
    def changes(self) -> ToldChanges:
        """The changes of the backlog that the record tells."""
        gateway, syphon = self.gateway or GatewayRecord(), self.syphon or SyphonRecord()
        return ToldChanges(
            at=self.at,
            diverted=gateway.diverted.total - gateway.spooled,
            moved=syphon.moved.total,
            held=0 if self.ended else syphon.in_hand or 0,
            runs=not self.ended,
        )

    def heartbeat(self) -> Heartbeat | None:
        """The record as earlier versions know it; None: no syphon is in the process."""
        if self.syphon is None:
            return None
        return Heartbeat(
            syphon=self.process,
            host=self.host,
            process=self.kind,
            pid=self.pid,
            started=self.started,
            at=self.at,
            interval=self.interval,
            moved=self.syphon.moved.total,
            paused=self.syphon.paused,
        )


def record_of(heartbeat: Heartbeat) -> ProcessRecord:
    """The heartbeat of an earlier version as a record."""
    return ProcessRecord(
        process=heartbeat.syphon,
        host=heartbeat.host,
        kind=heartbeat.process,
        pid=heartbeat.pid,
        started=heartbeat.started,
        at=heartbeat.at,
        interval=heartbeat.interval,
        syphon=SyphonRecord(moved=CountByName(total=heartbeat.moved), paused=heartbeat.paused),
    )


@attrs.frozen(kw_only=True)
class PairProcess:
    """A process of the pair, as its record on the secondary tells."""

    name: str  # the kind of process, its host and id
    version: str  # of Pairgate; empty: an earlier one, which doesn't tell
    started: datetime
    seen: datetime  # its last word
    state: str  # alive; silent for too long; or ended, in good order
    reads: bool | None  # it may read the records of others, whose orders reach it; None: not told
    here: bool = False  # it is this one
    # Messages that its sends may have left twice since its start; None: not told.
    possibly_twice: int | None = None
    # Seconds of the slowest send since its last trouble began, 0: it had none; None: not told.
    longest_stall: float | None = None
    # Since when the primary answers that it had lost; None: it hasn't lost it, or doesn't tell.
    primary_back: datetime | None = None
    # Ids of the envelope's keys that it has read, the one that signs first; None: not told.
    keys: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class PairRecords:
    """
    The pair's processes as a reader knows them at the date `at`, the newest record of each process.
    `unknown` gives the reason if it knows nothing now; the records are then those from before.
    """

    at: datetime | None = None
    alive: tuple[ProcessRecord, ...] = ()
    stale: tuple[ProcessRecord, ...] = ()  # silent for too long, without a last word
    ended: tuple[ProcessRecord, ...] = ()  # in good order
    orders: tuple[GivenOrder, ...] = ()  # in records that haven't expired
    # Other processes that receive from the backlog, where the secondary tells no more.
    consumers: int = 0
    last_syphon: datetime | None = None  # of the last sign of life of a syphon
    since: datetime | None = None  # of the first reading that succeeded
    refused: int = 0  # records whose seal is wrong, so that they count as none
    unknown: str = "nobody has asked the secondary yet"
    unread: str = ""  # why no records are read of a secondary that counts its consumers

    @property
    def reach_unknown(self) -> str:
        """Why it isn't known which processes follow the orders of others; empty: it is known."""
        return self.unknown or self.unread

    def names(self) -> Iterator[str]:
        """The entities that the processes name."""
        for each in (*self.alive, *self.stale, *self.ended):
            if each.gateway is not None:
                yield from each.gateway.diverted.most
            if each.syphon is not None:
                yield from each.syphon.moved.most

    @property
    def not_reached(self) -> tuple[str, ...]:
        """
        The processes that run and follow no orders of others: which, and why. At most `MOST_NAMED`,
        and a line that counts the others.
        """
        found: list[str] = []
        for each in self.alive:
            if not each.version:
                found.append(f"{each.place}: an earlier version, which follows no orders of others")
            elif each.sees_others is False:
                found.append(f"{each.place}: it may not read on the secondary")
        more = len(found) - MOST_NAMED
        return (*found[:MOST_NAMED], *([f"and {more} more"] if more > 0 else ()))

    def processes(self, own: str) -> tuple[PairProcess, ...]:
        """All processes that are known, those that are alive first; `own` is this one."""
        states = {"alive": self.alive, "silent": self.stale, "ended": self.ended}
        return tuple(
            PairProcess(
                name=each.place,
                version=each.version,
                started=each.started,
                seen=each.at,
                state=state,
                reads=each.sees_others,
                here=each.process == own,
                possibly_twice=each.possibly_twice,
                longest_stall=each.longest_stall,
                primary_back=each.primary_back,
                keys=each.keys,
            )
            for state, records in states.items()
            for each in records
        )

    def problems_but_for(self, own: str) -> tuple[Problem, ...]:
        """
        The problems of the processes that are alive, but for the process `own`. One that should
        have told them again is named with its last word: it may be gone.
        """
        found = [
            attrs.evolve(one, processes=(self._named(each),), here=False)
            for each in self.alive
            if each.process != own
            for one in each.problems
        ]
        return tuple(found[:MOST_PROBLEMS])

    def _named(self, record: ProcessRecord) -> str:
        if self.at is None or self.at - record.at <= record.renewal * SILENT:
            return record.place
        return f"{record.place}, silent since {record.at:%H:%M:%S} UTC"

    @property
    def syphons_seen(self) -> SyphonsSeen:
        """The syphons among the processes."""
        if self.unknown:
            return SyphonsSeen(unknown=self.unknown)
        alive = [beat for each in self.alive if (beat := each.heartbeat()) is not None]
        others = (*self.stale, *self.ended)
        gone = [beat for each in others if (beat := each.heartbeat()) is not None]
        latest = max(gone, key=lambda each: each.at, default=None)
        return SyphonsSeen(
            at=self.at,
            alive=newest_among(alive),
            consumers=self.consumers,
            last=self.last_syphon,
            gone=None if alive or self.consumers else latest,
            since=self.since,
            unknown="",
        )
