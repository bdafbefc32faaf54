"""
A whole installation in virtual time, with faults, judged at its end. One seed, one history.

    producers -> gateway -> primary   -> consumers
                        \\-> secondary -> syphon -> primary

Calm, chaos, heal, drain, audit, verdict: `run_world(seed)` does all of it.
"""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, Final

import attrs
import trio
from trio.testing import MockClock

from gateway.brokers.memory import MemoryBroker
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope_fields import SCHEDULED, SESSION
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.events import Event, SendFailed, StandingChanged
from gateway.domain.failover import State
from gateway.domain.history import (
    Acked,
    AuditBegan,
    Completed,
    Delivered,
    Failed,
    Found,
    Invoked,
    Place,
    QueueRead,
    Record,
    Uncertain,
    Unknown,
    fingerprint,
)
from gateway.domain.message import DEAD_LETTER_REASON, Complete, Delivery, Message
from gateway.domain.verdict import Rules, Verdict, judge
from gateway.pairing.pair import Surroundings
from gateway.testing.clocks import VirtualClock, seconds
from gateway.testing.determinism import run_seeded
from gateway.testing.faults import Call, Fault, FaultyBroker, Hang, Operation
from gateway.testing.processes import GatewayProcess, Process, Site, SyphonProcess
from gateway.testing.scenario import (
    CHAOS,
    ENTITIES,
    FAULTS,
    LONGEST_HOLD,
    NAMES,
    Crash,
    Scenario,
    draw,
    time_to_live,
)
from gateway.wire.amqp.message import encoded_size

DRAIN: Final = 400.0  # seconds in which a healed pair must have moved its backlog
LOOK: Final = 5.0
DEAD_AFTER: Final = 20.0  # seconds until a receiver finds its connection dead
ONE_DAY: Final = 86_400.0
TROUBLE: Final = frozenset({State.SECONDARY.value, State.HALF_OPEN.value})
QUEUE: Final = QueueProperties(max_delivery_count=1000)


@attrs.frozen(kw_only=True)
class Outcomes:
    """What one seed led to."""

    scenario: Scenario
    verdict: Verdict
    broken_laws: tuple[str, ...]  # what the pair promises beside the fate of messages
    seen: Counter[str]  # interesting things that happened
    records: tuple[Record, ...]
    trace: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.verdict.passed and not self.broken_laws

    def describe(self) -> str:
        findings = [str(finding) for finding in self.verdict.findings]
        problems = [*self.verdict.undecided, *findings, *self.broken_laws]
        return f"seed {self.scenario.seed}: " + "; ".join(problems or ["all is well"])


def run_world(seed: int) -> Outcomes:
    """The history of that seed, whole and judged."""
    return run_seeded(World(scenario=draw(seed)).run, seed=seed)


def stand_still(seconds: float) -> None:
    """The time that passes while the machine is suspended: everybody's."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(seconds)


@attrs.define(eq=False, kw_only=True)
class World:
    scenario: Scenario
    clock: VirtualClock = attrs.field(factory=VirtualClock)
    records: list[Record] = attrs.field(factory=list)
    seen: Counter[str] = attrs.field(factory=Counter)
    broken_laws: list[str] = attrs.field(factory=list)
    trace: list[str] = attrs.field(factory=list)
    rng: random.Random = attrs.field(init=False)
    stores: dict[str, MemoryBroker] = attrs.field(init=False)
    namespaces: dict[str, FaultyBroker] = attrs.field(init=False)
    site: Site = attrs.field(init=False)
    gateway: GatewayProcess = attrs.field(init=False)
    syphons: list[SyphonProcess] = attrs.field(init=False)
    _evidence: Counter[str] = attrs.field(factory=Counter)
    _acked: set[str] = attrs.field(factory=set)
    _accepted_by_syphon: set[str] = attrs.field(factory=set)

    async def run(self) -> Outcomes:
        self.rng = random.Random(f"world {self.scenario.seed}")
        self.stores = {name: MemoryBroker(self.clock, self.rng) for name in NAMES}
        self.namespaces = {
            name: FaultyBroker(
                inner=store,
                fault=partial(self._fault, name),
                latency=self._latency,
                watch=self._watch_namespace,
            )
            for name, store in self.stores.items()
        }
        with trio.fail_after(ONE_DAY):
            async with trio.open_nursery() as nursery:
                await self._start(nursery)
                async with trio.open_nursery() as chaos:
                    for number in range(self.scenario.producers):
                        chaos.start_soon(self._produce, number)
                    for crash in self.scenario.crashes:
                        chaos.start_soon(self._crash, crash)
                    chaos.start_soon(trio.sleep_until, CHAOS)
                await self._drain()
                nursery.cancel_scope.cancel()
            await self._audit()
        return Outcomes(
            scenario=self.scenario,
            verdict=judge(self.records, Rules(expiry_slack=self._expiry_slack())),
            broken_laws=tuple(self.broken_laws),
            seen=self.seen,
            records=tuple(self.records),
            trace=tuple(self.trace),
        )

    # --- the installation

    async def _start(self, nursery: trio.Nursery) -> None:
        for entity in ENTITIES:
            await self.stores["primary"].create_queue(entity, QUEUE)
        for index in range(self.scenario.pair.backlog_queues):
            queue = backlog.queue_name(self.scenario.pair.label, index)
            await self.stores["secondary"].create_queue(queue, backlog.QUEUE_PROPERTIES)
        for namespace in self.namespaces.values():
            await nursery.start(namespace.run)
        self.site = Site(
            scenario=self.scenario,
            primary=self.namespaces["primary"],
            secondary=self.namespaces["secondary"],
            around=Surroundings(
                clock=self.clock,
                rng=self.rng,
                new_id=lambda: f"{self.rng.getrandbits(64):016x}",
                observer=self,
                measure=encoded_size,
            ),
            watch=self._watch,
            home=nursery,
        )
        self.gateway = GatewayProcess(
            name="gateway", site=self.site, syphons=self.scenario.syphons == 0
        )
        self.syphons = [
            SyphonProcess(name=f"syphon-{number}", site=self.site)
            for number in range(self.scenario.syphons)
        ]
        for process in (self.gateway, *self.syphons):
            await nursery.start(process.run)
        for entity in ENTITIES:
            nursery.start_soon(self._consume, entity)

    def _latency(self) -> float:
        mean = self.scenario.latency
        return self.rng.expovariate(1.0 / mean) if mean else 0.0

    def _watch_namespace(self, call: Call) -> None:
        accepted = self._acked.issuperset(str(each.message_id) for each in call.messages)
        if call.late and call.operation is Operation.SEND and accepted:
            self.seen["late success after the message was accepted elsewhere"] += 1

    def _fault(self, name: str, operation: Operation, entity: EntityPath) -> Fault | None:
        now = trio.current_time()
        for window in self.scenario.windows:
            hit = window.namespace == name and window.covers(operation, entity, now)
            if hit and self.rng.random() < window.share:
                self.seen[f"fault: {window.kind}"] += 1
                dead = operation is Operation.RECEIVE and window.kind in {"hang", "swallow answer"}
                return Hang(DEAD_AFTER) if dead else FAULTS[window.kind](self.rng)
        return None

    async def _crash(self, crash: Crash) -> None:
        await trio.sleep_until(crash.at)
        victim: FaultyBroker | Process | None = self.namespaces.get(crash.what)
        if crash.what == "gateway":
            victim = self.gateway
            self.seen["gateway killed with sends under way"] += self.gateway.sends_under_way
        elif crash.what == "syphon":
            victim = self.syphons[0] if self.syphons else None
        elif crash.what == "pause":
            stand_still(crash.back - crash.at)
        if isinstance(victim, Process):
            victim.kill()
            await trio.sleep_until(crash.back)
            victim.revive()
            if b'"secondary"' in b"".join(self.site.disk.values()):
                self.seen["restarted in an outage"] += 1
        elif victim is not None:
            self.seen["a namespace crashed with operations under way"] += victim.under_way(
                Operation.SEND
            )
            victim.crash()
            await trio.sleep_until(crash.back)
            victim.restart()

    # --- producers and consumers

    async def _produce(self, producer: int) -> None:
        for number in range(self.scenario.sends):
            await trio.sleep(self.rng.uniform(0.0, 1.8 * CHAOS / self.scenario.sends))
            entity = self.rng.choice(ENTITIES)
            count = self.rng.choice([1, 1, 1, 3])
            messages = [self._message(f"{producer}-{number}-{each}") for each in range(count)]
            for pause in self._patience():
                if await self._send(entity, messages):
                    break
                await trio.sleep(pause)

    def _patience(self) -> list[float]:
        """Pauses after failed sends: a producer tries up to three times."""
        return [self.rng.uniform(0.1, 10.0) for _ in range(self.rng.choice([1, 1, 2, 3]))]

    def _message(self, message_id: str) -> Message:
        rng = self.rng
        scheduled = None
        if rng.random() < 0.15:
            scheduled = self.clock() + timedelta(seconds=rng.randint(1, 60))
        return Message(
            message_id=message_id,
            body=rng.randbytes(rng.randint(0, 30)),
            properties={"number": rng.randint(0, 9), "text": "ä"},
            session_id=rng.choice([None, None, "session"]),
            subject=rng.choice([None, "label"]),
            time_to_live=time_to_live(rng),
            scheduled=scheduled,
        )

    async def _send(self, entity: EntityPath, messages: Sequence[Message]) -> bool:
        started = trio.current_time()
        for message in messages:
            begin = max(started, seconds(message.scheduled) if message.scheduled else started)
            life = message.time_to_live
            self.records.append(
                Invoked(
                    at=started,
                    message_id=message.message_id,
                    entity=entity.key,
                    fingerprint=fingerprint(message),
                    expires=inf if life is None else begin + life.total_seconds(),
                    not_before=seconds(message.scheduled) if message.scheduled else -inf,
                )
            )
        answer = await self._answer(entity, messages)
        now = trio.current_time()
        for message in messages:
            self.records.append(answer(at=now, message_id=message.message_id))
        if answer is Acked:
            self._acked.update(message.message_id for message in messages)
        self._note(f"{answer.__name__} {messages[0].message_id} after {now - started:.3f} s")
        self._judge_availability(messages, answer, now - started)
        return answer is Acked

    async def _answer(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> type[Acked] | type[Failed] | type[Unknown]:
        deadline = self.scenario.clients_deadline
        with trio.move_on_after(inf if deadline is None else deadline):
            try:
                await self.gateway.send(entity, messages)
            except BrokerError as error:
                self._note(f"{messages[0].message_id}: {error!r}")
                return Unknown if error.outcome is Outcome.UNKNOWN else Failed
            return Acked
        return Unknown

    async def _consume(self, entity: EntityPath) -> None:
        primary = self.namespaces["primary"]
        while True:
            with trio.move_on_after(60.0):
                try:
                    async with primary.open_receiver(entity) as receiver:
                        while True:
                            for delivery in await receiver.receive(10):
                                self._delivered(entity, delivery)
                                await receiver.settle(delivery, Complete())
                                self._completed(entity, delivery)
                except BrokerError as error:
                    self._note(f"consumer of {entity}: {error!r}")
            await trio.sleep(LOOK)

    def _delivered(self, entity: EntityPath, delivery: Delivery) -> None:
        message = delivery.message
        self.records.append(
            Delivered(
                at=trio.current_time(),
                message_id=message.message_id,
                entity=entity.key,
                fingerprint=fingerprint(message),
                copy=str(delivery.sequence_number),
                expires=inf if delivery.expires is None else seconds(delivery.expires),
            )
        )

    def _completed(self, entity: EntityPath, delivery: Delivery) -> None:
        copy = str(delivery.sequence_number)
        self.records.append(Completed(at=trio.current_time(), entity=entity.key, copy=copy))

    # --- what is watched

    def report(self, event: Event) -> None:
        self._note(repr(event))
        self.seen[type(event).__name__] += 1
        if isinstance(event, StandingChanged):
            self._judge_change(event)
        if isinstance(event, SendFailed) and "neither" in event.reason:
            self.seen["both namespaces refused"] += 1

    def _watch(self, process: str, namespace: str, call: Call) -> None:
        ids = [str(message.message_id) for message in call.messages]
        unknown = call.outcome is Outcome.UNKNOWN
        if call.operation is Operation.SEND:
            self._note(f"{process} sent {ids} to {namespace} {call.entity}: {call.outcome}")
        if unknown and (
            call.operation is Operation.SEND
            or (call.operation is Operation.LEAVE and namespace == "secondary")
        ):
            now = trio.current_time()
            self.records.extend(Uncertain(at=now, message_id=each) for each in ids)
        if namespace == "primary" and call.outcome is None:
            self._worked(process, call, ids)
        if namespace == "secondary" and call.operation is Operation.SEND and call.outcome is None:
            self._diverted(call.messages)
        if call.operation is Operation.LEAVE and self._accepted_by_syphon.intersection(ids):
            self.seen["syphon ended between accept and complete"] += 1

    def _worked(self, process: str, call: Call, ids: Sequence[str]) -> None:
        if call.operation in {Operation.SEND, Operation.PROBE}:
            self._evidence[call.entity.key] += 1
        if call.operation is Operation.SEND and process.startswith("syphon"):
            self._accepted_by_syphon.update(ids)

    def _diverted(self, messages: Sequence[Message]) -> None:
        self.seen["a batch was diverted"] += len(messages) > 1
        for message in messages:
            self.seen["a scheduled message was diverted"] += SCHEDULED in message.properties
            self.seen["a session was diverted"] += SESSION in message.properties

    def _note(self, line: str) -> None:
        self.trace.append(f"{trio.current_time():8.3f} {line}")

    # --- the laws beside the checker

    def _judge_change(self, event: StandingChanged) -> None:
        self.seen[f"{event.before} -> {event.after}"] += 1
        key = event.entity.key
        if event.after == State.SECONDARY.value:
            self._evidence[key] = 0
        back = event.before in TROUBLE and event.after == State.PRIMARY.value
        if back and self._evidence[key] < self.scenario.pair.successes_to_return:
            self.broken_laws.append(f"{key} came back after {self._evidence[key]} successes")
        if self.scenario.kinds == {"busy"} and not self.scenario.crashes:
            self.broken_laws.append(f"busy moved {key} to {event.after}")
        if not self.scenario.windows and self.scenario.killed == {"pause"}:
            self.broken_laws.append(f"a pause moved {key} to {event.after}")

    def _judge_availability(
        self, messages: Sequence[Message], answer: type[Record], took: float
    ) -> None:
        """While one namespace is well a producer sees no error and no long stall."""
        scenario, pair = self.scenario, self.scenario.pair
        promised = (
            len(scenario.troubled_namespaces) <= 1
            and "busy" not in scenario.kinds
            and not scenario.killed & {"gateway", "pause"}
            and scenario.clients_deadline is None
            and pair.on_unknown.value == "divert"
        )
        primary = min(pair.attempt_timeout, 0.4 * pair.send_timeout)
        bound = primary + pair.suspect_wait + pair.attempt_timeout + 0.1
        if promised and (answer is not Acked or took > bound):
            self.broken_laws.append(
                f"{messages[0].message_id}: {answer.__name__} after {took:.3f} s, though one"
                " namespace was well"
            )

    # --- the end

    async def _drain(self) -> None:
        await trio.sleep(LONGEST_HOLD + LOOK)
        for _ in range(int(DRAIN / LOOK)):
            if await self._quiet():
                break
            await trio.sleep(LOOK)
        pair = self.gateway.pair
        for entity in pair.standings.failed_over() if pair else ():
            self.broken_laws.append(f"{entity} is still failed over")

    async def _quiet(self) -> bool:
        pair = self.gateway.pair
        if pair is None or pair.standings.failed_over():
            return False
        for store in self.stores.values():
            for info in await store.list_queues():
                if await store.peek(info.path):
                    return False
        return True

    async def _audit(self) -> None:
        places = {
            "primary": (Place.PRIMARY, Place.PRIMARY_DEAD_LETTER),
            "secondary": (Place.BACKLOG, Place.BACKLOG_DEAD_LETTER),
        }
        plan: list[tuple[str, EntityPath, Place]] = []
        for name, (live, dead) in places.items():
            for info in await self.stores[name].list_queues():
                plan += [(name, info.path, live), (name, info.path.dead_letter, dead)]
        now = trio.current_time()
        queues = frozenset(path.key for _, path, _ in plan)
        self.records.append(AuditBegan(at=now, queues=queues))
        for name, path, place in plan:
            await self._read(self.stores[name], path, place)

    async def _read(self, store: MemoryBroker, path: EntityPath, place: Place) -> None:
        found: Any = await store.peek(path, limit=10_000)
        for delivery in found:
            message = delivery.message
            self.records.append(
                Found(
                    at=trio.current_time(),
                    place=place,
                    queue=path.key,
                    message_id=message.message_id,
                    fingerprint=fingerprint(message) if place is Place.PRIMARY else None,
                    copy=str(delivery.sequence_number),
                    reason=str(message.properties.get(DEAD_LETTER_REASON, "")),
                )
            )
        self.records.append(QueueRead(at=trio.current_time(), queue=path.key))

    def _expiry_slack(self) -> float:
        held = 2 * LONGEST_HOLD if "late" in self.scenario.kinds else 0.0
        return self.scenario.pair.send_timeout + self.scenario.syphon.attempt_timeout + held
