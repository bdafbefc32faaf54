"""Writes down what the installation of a seed did: the records of `gateway/checker/history.py`."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf
from typing import Final

import attrs
import trio

from gateway.checker.history import (
    Attempted,
    Bounds,
    ClockSet,
    DeadLettered,
    Drained,
    End,
    EntityStateMoved,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Healed,
    Killed,
    Paused,
    RunBegan,
    Sampled,
    Settled,
    Swallowed,
    Unconfirmed,
    Way,
)
from gateway.checker.operations import Record, Uncertain
from gateway.checker.safety import COUNTS
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import entity_in
from gateway.domain.errors import Busy, Outcome, PartlyAccepted
from gateway.domain.events.gateway import EntityStateChanged, Event, LoopPaused
from gateway.domain.failover import State
from gateway.domain.message import Complete, DeadLetter
from gateway.pairing.options import OnUnknown
from gateway.pairing.syphon.drain import SCAN_PAUSE
from gateway.pairing.syphon.mover import LATE
from gateway.pairing.syphon.primary_load import PATIENCE
from gateway.pairing.syphon.slow_start import SLOW
from tests.harness.faults import Call, Operation
from tests.simulation.names import Names
from tests.simulation.scenario import LONGEST_DELAY, Crash, DiskFault, Front, Scenario

GATEWAY: Final = "gateway"
JUDGED: Final = 1.0  # seconds: a shorter attempt that was cut off says little
LOCK: Final = backlog.LOCK.total_seconds()
TARGETS: Final = {
    "primary": FaultTarget.PRIMARY,
    "secondary": FaultTarget.SECONDARY,
    "gateway": FaultTarget.GATEWAY,
    "syphon": FaultTarget.SYPHON,
    "pause": FaultTarget.HOST,
}
ASKS: Final = frozenset({Operation.RECEIVE, Operation.PROBE, Operation.MANAGE})


def _parts(process: str, call: Call) -> Iterable[Call]:
    """
    A syphon's send whose outcome is known for each message, as one of those that were accepted and
    one of the others. To the gateway such an outcome is unknown, as it is to a producer.
    """
    partly = call.error
    if process == GATEWAY or not isinstance(partly, PartlyAccepted):
        return [call]
    accepted = tuple(filter(partly.has_accepted, call.messages))
    others = tuple(each for each in call.messages if not partly.has_accepted(each))
    return [
        attrs.evolve(call, messages=accepted, outcome=None, error=None),
        attrs.evolve(call, messages=others, outcome=partly.why.outcome, error=partly.why),
    ]


@attrs.define(eq=False)
class Recorder:
    """Appends to `records`. It stands outside of the processes: nobody's death hides a record."""

    scenario: Scenario
    records: list[Record]
    names: Names
    _asked: Counter[str] = attrs.field(factory=Counter, init=False)
    _faults: int = attrs.field(default=0, init=False)
    # Message ids of what a process has transferred, without a confirmed completion.
    _transferred: dict[str, Counter[str]] = attrs.field(
        factory=lambda: defaultdict(Counter), init=False
    )
    # When a process completed a copy of a message last.
    _completed: dict[tuple[str, str], float] = attrs.field(factory=dict, init=False)

    def begin(self) -> None:
        """The bounds of the run, and the faults that the scenario has planned."""
        pair, syphon = self.scenario.pair, self.scenario.syphon
        bounds = Bounds(
            failover_interval=pair.failover_interval,
            send_timeout=pair.send_timeout,
            attempt_timeout=pair.attempt_timeout,
            suspect_wait=pair.suspect_wait,
            silent_after=pair.slow_call_duration or inf,
            ping_interval=pair.ping_interval,
            successes_to_return=pair.successes_to_return,
            max_inflight=pair.max_inflight,
            busy_pause=self.scenario.busy_pause,
            answer=self.scenario.answer,
            lock=LOCK,
            reread=1.2 * syphon.queue_retry.cap,
            look=1.5 * (SCAN_PAUSE + 2.0 * self.scenario.latency) / syphon.batch,
            unanswered=LATE * syphon.attempt_timeout,
            longest_backoff=max(syphon.unknown_retry.cap, syphon.retry.cap, syphon.busy_pause),
            drain_rate=self.scenario.drain_rate,
            horizon=LONGEST_DELAY,
            expiry_slack=self.scenario.longest_way,
            front_wait=self.scenario.front_wait,
            trial=syphon.attempt_timeout,
            trial_silence=SLOW + PATIENCE,
            late=self.scenario.late,
            raises_unknown=pair.on_unknown is OnUnknown.RAISE,
        )
        self.records.append(RunBegan(at=trio.current_time(), bounds=bounds))
        for window in self.scenario.windows:
            fault = self._next_fault()
            self.records.append(
                FaultBegan(
                    at=window.start,
                    fault=fault,
                    kind=window.kind,
                    target=TARGETS[window.namespace],
                    entities=window.entities,
                )
            )
            self.records.append(FaultEnded(at=window.end, fault=fault))

    def note_crash(self, crash: Crash) -> str:
        """Something goes down; return what `note_return` wants to hear."""
        now, fault, target = trio.current_time(), self._next_fault(), TARGETS[crash.what]
        self.records.append(FaultBegan(at=now, fault=fault, kind="down", target=target))
        if target is FaultTarget.GATEWAY:
            self.records.append(Killed(at=now, process=GATEWAY))
        return fault

    def note_power_cut(self, namespace: str) -> None:
        """
        Record that a namespace lost its power: it keeps what it acknowledged, and loses unwritten
        data.
        """
        self.records.append(Killed(at=trio.current_time(), process=namespace, power_cut=True))

    def note_revival(self, process: str) -> None:
        """
        A killed process starts again, and knows nothing of what it had transferred.

        Where nobody confirmed the completion that may come again; who lives on remembers it.
        """
        now = trio.current_time()
        for name in (process, f"syphon in {process}"):
            ids = self._transferred.pop(name, Counter()).elements()
            self.records.extend(Uncertain(at=now, message_id=each) for each in ids)

    def note_disk_fault(self, fault: DiskFault) -> str:
        """A namespace's disk fails, as `note_crash`."""
        now, name, target = trio.current_time(), self._next_fault(), TARGETS[fault.namespace]
        self.records.append(FaultBegan(at=now, fault=name, kind="disk", target=target))
        return name

    def note_clock(self, processes: Iterable[str], ahead: float, drift: float) -> None:
        """Record that the clock of these processes was set."""
        now = trio.current_time()
        for process in processes:
            self.records.append(ClockSet(at=now, process=process, ahead=ahead, drift=drift))

    def note_return(self, fault: str) -> None:
        self.records.append(FaultEnded(at=trio.current_time(), fault=fault))

    def note_healed(self, backlog: int) -> None:
        self.records.append(Healed(at=trio.current_time(), backlog=backlog))

    def note_drained(self) -> None:
        self.records.append(Drained(at=trio.current_time()))

    def sample(self, process: str, inflight: int = 0) -> None:
        now, polls = trio.current_time(), self._asked[process]
        self.records.append(Sampled(at=now, process=process, inflight=inflight, polls=polls))

    def note_event(self, event: Event) -> None:
        now = trio.current_time()
        if isinstance(event, LoopPaused):
            self.records.append(Paused(at=now, process=GATEWAY))
        if isinstance(event, EntityStateChanged):
            self.records.append(
                EntityStateMoved(
                    at=now,
                    process=GATEWAY,
                    entity=event.entity.key,
                    before=State(event.before),
                    after=State(event.after),
                )
            )

    def note_at_namespace(self, namespace: str, call: Call) -> None:
        """Seen from the namespace: who asked got no answer."""
        lost = call.operation is Operation.SEND and call.outcome is Outcome.UNKNOWN
        left = call.operation is Operation.LEAVE and namespace == "secondary"
        if (lost or left) and call.messages:
            self.records.append(Swallowed(at=trio.current_time(), messages=len(call.messages)))

    def note_call(self, process: str, namespace: str, call: Call) -> None:
        """A process asked a namespace, and that ended."""
        now = trio.current_time()
        self._asked[process] += call.operation in ASKS
        if call.operation is Operation.SEND:
            for part in _parts(process, call):
                attempt = self._attempt(process, namespace, part)
                self.records.append(attempt)
                if attempt.way is Way.SYPHON and attempt.end is End.ACCEPTED:
                    self._note_transfer(attempt)
            if call.answered and call.outcome is Outcome.UNKNOWN:
                # For the namespace all went well; its answer met nobody who still waited.
                self.records.append(Swallowed(at=now, messages=len(call.messages)))
        if call.operation is Operation.PROBE and process == GATEWAY and namespace == "primary":
            self.records.append(self._probe(process, namespace, call))
        if call.operation is Operation.SETTLE and namespace == "secondary":
            self._note_settlement(process, call)

    def _note_transfer(self, attempt: Attempted) -> None:
        """Two syphons can have the same message, where the lock of one of them was lost."""
        for each in attempt.message_ids:
            other = self._had_by_another(attempt, each)
            if other is not None:
                self.records.append(Uncertain(at=attempt.at, message_id=each))
                self._transferred[other] -= Counter([each])
        self._transferred[attempt.process].update(attempt.message_ids)

    def _had_by_another(self, attempt: Attempted, message_id: str) -> str | None:
        for other, ids in self._transferred.items():
            completed = self._completed.get((other, message_id), -inf)
            if other != attempt.process and (ids[message_id] or completed > attempt.began):
                return other
        return None

    def _note_settlement(self, process: str, call: Call) -> None:
        now, message_id = trio.current_time(), self.names.of(call.messages[0])
        if isinstance(call.settlement, Complete) and call.outcome is None:
            self._transferred[process] -= Counter([message_id])
            self._completed[process, message_id] = now
            self.records.append(
                Settled(
                    at=now,
                    process=process,
                    queue=call.entity.key,
                    copy=call.copy,
                    message_id=message_id,
                )
            )
        cut_off = call.outcome is Outcome.UNKNOWN and call.error is None
        if isinstance(call.settlement, Complete) and cut_off:
            self.records.append(Unconfirmed(at=now, process=process, message_id=message_id))
        if isinstance(call.settlement, DeadLetter):
            began = now - call.took
            dead_lettered = DeadLettered(
                at=now, process=process, message_id=message_id, began=began
            )
            self.records.append(dead_lettered)

    def _attempt(self, process: str, namespace: str, call: Call) -> Attempted:
        way, entity = Way.PRIMARY if process == GATEWAY else Way.SYPHON, call.entity
        if namespace == "secondary":
            way, entity = Way.BACKLOG, EntityPath(str(entity_in(call.messages[0].properties)))
        now = trio.current_time()
        return Attempted(
            at=now,
            process=process,
            entity=entity.key,
            message_ids=tuple(map(self.names.of, call.messages)),
            way=way,
            end=self._end(call),
            began=now - call.took,
        )

    def _probe(self, process: str, namespace: str, call: Call) -> Attempted:
        """A link of AMQP that attaches asks as well, of which the gateway takes no notice."""
        probe = attrs.evolve(self._attempt(process, namespace, call), way=Way.PROBE)
        late = probe.end is End.ACCEPTED and call.took >= self.scenario.late
        if self.scenario.parts.front is Front.AMQP and (late or probe.end in COUNTS):
            return attrs.evolve(probe, end=End.CUT_OFF)
        return probe

    def _end(self, call: Call) -> End:
        if call.outcome is None:
            return End.ACCEPTED
        if call.error is None:
            # Nobody but the clients cuts a fair attempt off before its time is over.
            in_time = self.scenario.clients_deadline is not None or call.took < JUDGED
            if call.operation is Operation.PROBE:
                in_time = call.took < self.scenario.pair.attempt_timeout
            return End.CUT_OFF if in_time else End.UNKNOWN
        if not call.error.counts_as_outage:
            return End.BUSY if isinstance(call.error, Busy) else End.REFUSED
        return End.UNKNOWN if call.outcome is Outcome.UNKNOWN else End.OUTAGE

    def _next_fault(self) -> str:
        self._faults += 1
        return str(self._faults)
