"""A run of a scenario with processes of its own, and all its records."""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain, cycle
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.chaos.excuses import InDoubt, Unanswered, excuses
from benchmarks.chaos.faults import Nemesis
from benchmarks.chaos.load import LOOK, Backlog, Consumer, Depth, Watcher, consumers_of
from benchmarks.chaos.scenario import Scenario, Topology
from benchmarks.chaos.topologies import (
    BASELINE,
    CONSUMED,
    Installation,
    KnownQueues,
    bounds_of,
    entities_of,
    open_installation,
)
from benchmarks.fleet import open_fleet
from benchmarks.traffic import Accepting, OpenLoop
from gateway.checker.history import (
    Bounds,
    Closed,
    Drained,
    EntityStateMoved,
    Healed,
    Opened,
    Run,
    RunBegan,
)
from gateway.checker.operations import (
    AuditBegan,
    AuditFailed,
    Found,
    QueueRead,
    Record,
)
from gateway.demo.audit import AuditedNamespace, audit
from gateway.demo.machines import LogLine
from gateway.domain.entity import EntityPath
from gateway.domain.failover import State
from gateway.ports import Broker

AFTERWARDS: Final = 3.0  # seconds of load once all must be as before
DRAIN_LIMIT: Final = 240.0
NO_ANSWER: Final = re.compile("no answer|no whole answer|OutcomeUnknown")


@attrs.define(eq=False)
class Recording:
    """The records and figures of a run when it is over. Times are Trio's."""

    scenario: Scenario
    topology: Topology
    interval: str
    began: float = 0.0  # the load
    loops: list[OpenLoop] = attrs.field(init=False)
    baseline: OpenLoop = attrs.field(factory=lambda: OpenLoop(BASELINE, EntityPath(BASELINE)))
    histories: dict[str, list[Record]] = attrs.field(factory=dict)  # by who recorded it
    of_baseline: list[Record] = attrs.field(factory=list)  # all of its own
    depths: list[Depth] = attrs.field(factory=list)
    memory: int = 0
    files: int = 0
    redriven: int = 0  # dead letters of the backlog
    twice_by_syphon: int = 0  # messages that a syphon sent to the primary without an answer
    ends: list[tuple[str, float]] = attrs.field(factory=list)  # of each copy that has one

    def __attrs_post_init__(self) -> None:
        life, scheduled = self.scenario.time_to_live, self.scenario.scheduled
        self.loops = [
            OpenLoop(
                queue,
                EntityPath(queue),
                life,
                scheduled,
                self.scenario.deadline,
                self.scenario.sessions,
            )
            for queue in entities_of(self.scenario)
        ]

    @property
    def name(self) -> str:
        return f"{self.scenario.name}-{self.topology.value}-{self.interval}"

    @property
    def rate(self) -> float:
        """Messages/s to each entity."""
        return self.scenario.rate_at(self.topology)

    @property
    def bounds(self) -> Bounds:
        return bounds_of(self.scenario, self.interval)

    def note_acceptors(self, installation: Installation, consumers: Sequence[Consumer]) -> None:
        """Note who has accepted each message, where no answer says so."""
        delivered = chain.from_iterable(one.records for one in consumers)
        enqueued = {message: at for one in consumers for message, at in one.enqueued.items()}
        installation.note_acceptors(self.loops, delivered, enqueued)

    def take(self, watcher: Watcher, consumers: Sequence[Consumer], nemesis: Nemesis) -> None:
        """Add what each has measured and counted."""
        self.redriven = nemesis.redriven
        self.depths, self.memory, self.files = watcher.depths, watcher.memory, watcher.files
        self.ends = [end for one in consumers for end in one.ends]

    def all(self) -> list[Record]:
        """Return the records of all processes, without the baseline."""
        return [record for records in self.histories.values() for record in records]


async def record(scenario: Scenario, topology: Topology, interval: str, folder: Path) -> Recording:
    """
    Perform the scenario; the processes have their folders in `folder`, and are gone afterwards.

    Raises:
        MachineFailed, ServerFailed: a process didn't start.
    """
    recording = Recording(scenario, topology, interval)
    run = _Run(recording)
    async with open_fleet(folder) as fleet:
        fleet.watch = run.note
        async with open_installation(fleet, topology, scenario, interval) as installation:
            await run.perform(installation)
    return recording


@attrs.define(eq=False)
class _Run:
    recording: Recording
    auditor: list[Record] = attrs.field(factory=list)
    log: dict[str, list[Record]] = attrs.field(factory=dict)  # by process
    log_of_doubt: Unanswered = attrs.field(factory=Unanswered)

    async def perform(self, installation: Installation) -> None:
        recording = self.recording
        self.auditor.append(RunBegan(at=trio.current_time(), bounds=recording.bounds))
        async with AsyncExitStack() as stack:
            at_primary, at_secondary = [
                KnownQueues(
                    await stack.enter_async_context(side.client()), side.queues, side.with_sessions
                )
                for side in (installation.primary, installation.secondary)
            ]
            clients = [
                await stack.enter_async_context(installation.open_producer()) for _ in CONSUMED
            ]
            through = [send for _, send in zip(recording.loops, cycle(clients), strict=False)]
            direct = await stack.enter_async_context(
                installation.primary.server.producer(installation.primary.reached_at)
            )
            consumers = consumers_of(installation)
            nemesis = Nemesis(installation, recording.loops)
            backlog = Backlog(at_secondary, recording.loops[: len(CONSUMED)], consumers)
            watcher = Watcher(installation, recording.loops, backlog)
            async with trio.open_nursery() as watching:
                watching.start_soon(watcher.run)
                for consumer in consumers:
                    watching.start_soon(consumer.run)
                await self._load(through, direct, nemesis, backlog)
                await _drained(backlog)
                await trio.sleep(recording.bounds.quiet + 2 * LOOK)
                watching.cancel_scope.cancel()
            for machine in (*installation.syphons, installation.gateway):
                await machine.stop()
            found = await _audit(at_primary, at_secondary)
        recording.note_acceptors(installation, consumers)
        recording.take(watcher, consumers, nemesis)
        sends = {loop.entity.key: loop.sends for loop in recording.loops}
        over = min((one.at for one in found if isinstance(one, AuditBegan)), default=0.0)
        arrivals = {message: at for one in consumers for message, at in one.arrivals.items()}
        nemesis.records += excuses(
            sends,
            nemesis.records,
            self.log_of_doubt,
            arrivals,
            over,
        )
        mine, baseline = parted(found)
        recording.of_baseline = [*recording.baseline.records, *baseline, *nemesis.losses]
        recording.histories = {
            name: whole(name, records)
            for name, records in {
                **{f"producer of {loop.name}": loop.records for loop in recording.loops},
                **{one.name: one.records for one in consumers},
                **{f"log of {name}": records for name, records in self.log.items()},
                "nemesis": nemesis.records,
                "watcher": watcher.records,
                "auditor": [*self.auditor, *mine],
            }.items()
        }

    async def _load(
        self,
        through: Sequence[Accepting],
        direct: Broker,
        nemesis: Nemesis,
        backlog: Backlog,
    ) -> None:
        recording, rate = self.recording, self.recording.rate
        async with trio.open_nursery() as sending:
            for number, (loop, send) in enumerate(zip(recording.loops, through, strict=True)):
                sending.start_soon(loop.run_by, send, rate, number / len(recording.loops))
            sending.start_soon(recording.baseline.run, direct, rate / 2)
            recording.began = trio.current_time()
            await nemesis.run(recording.began)
            waiting = await backlog.left()
            while waiting is None:  # the process was just started: ask again
                await trio.sleep(LOOK)
                waiting = await backlog.left()
            healed = Healed(at=trio.current_time(), backlog=waiting)
            self.auditor.append(healed)
            sending.start_soon(self._note_drain, backlog)
            # With the logs: an entity that flapped returns later.
            moves = chain.from_iterable(self.log.values())
            harmed = Run.of([*self.auditor, *nemesis.records, *moves])
            returned = harmed.spared_until(healed.at) + harmed.return_within
            await trio.sleep_until(returned + AFTERWARDS)
            for loop in (*recording.loops, recording.baseline):
                loop.stopping = True

    async def _note_drain(self, backlog: Backlog) -> None:
        if await _drained(backlog):
            self.auditor.append(Drained(at=trio.current_time()))

    def note(self, name: str, line: LogLine) -> None:
        """Record a line of a log that reports a state, or a transfer without an answer."""
        now = trio.current_time()
        match line.get("event"):
            case "entity_state_changed":
                self.log.setdefault(name, []).append(
                    EntityStateMoved(
                        at=now,
                        process=name,
                        entity=EntityPath(str(line["entity"])).key,
                        before=State(line["before"]),
                        after=State(line["after"]),
                    )
                )
            case "syphon_backed_off" if line.get("in_doubt"):
                self.recording.twice_by_syphon += int(line["in_doubt"])
                self.log_of_doubt.transfers.append((now, EntityPath(str(line["entity"])).key))
            case "syphon_backed_off" if NO_ANSWER.search(str(line["reason"])):
                self.log_of_doubt.transfers.append((now, EntityPath(str(line["entity"])).key))
            case "backlog_queue_failed" if NO_ANSWER.search(str(line["reason"])):
                self.log_of_doubt.to_backlog.append(now)
            case "diverted" | "sent_twice" if line.get("in_doubt", True):
                entity, messages = EntityPath(str(line["entity"])).key, int(line["messages"])
                self.log_of_doubt.sends.append(InDoubt(now, entity, messages))


def whole(name: str, records: Sequence[Record]) -> list[Record]:
    """A history that says when it begins and ends."""
    moments = [record.at for record in records] or [0.0]
    return [Opened(at=min(moments), process=name), *records, Closed(at=max(moments), process=name)]


def parted(found: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the audit of the gateway's queues, and the audit of the baseline's."""
    mine: list[Record] = []
    baseline: list[Record] = []
    for one in found:
        match one:
            case AuditBegan():
                direct = frozenset(queue for queue in one.queues if queue.startswith(BASELINE))
                mine.append(AuditBegan(at=one.at, queues=one.queues - direct))
                baseline.append(AuditBegan(at=one.at, queues=direct))
            case Found() | QueueRead() | AuditFailed() if one.queue.startswith(BASELINE):
                baseline.append(one)
            case _:
                mine.append(one)
    return mine, baseline


async def _drained(backlog: Backlog) -> bool:
    """True if the backlog became empty in time."""
    with trio.move_on_after(DRAIN_LIMIT):
        while True:
            if await backlog.left() == 0:
                return True
            await trio.sleep(LOOK)  # polled, since another process changes the state
    return False


async def _audit(at_primary: KnownQueues, at_secondary: KnownQueues) -> list[Record]:
    return await audit(
        [AuditedNamespace.primary(at_primary), AuditedNamespace.secondary(at_secondary)]
    )
