"""
A whole installation on virtual time, with faults, judged at its end. One seed, one history.

    producers -> gateway -> primary   -> consumers
                        \\-> secondary -> syphon -> primary

Calm, chaos, heal, drain, audit, verdict: `run_world(seed)` does all of it.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import trio

from gateway.checker.invariants import judge_run
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Outcome
from gateway.domain.events.gateway import Event
from gateway.domain.failover import State
from gateway.domain.health.abilities import Ability
from gateway.domain.message import AcceptedBy
from gateway.extensions.order.queues import ORDERED_PROPERTIES, ordered_queues
from gateway.pairing.additions import PairDependencies
from gateway.ports import Broker
from gateway.store.embedded.files import StoreError
from gateway.store.local.broker import LocalBroker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import AbilityWatch
from gateway.wire.amqp.message import encoded_size
from tests.harness.determinism import run_seeded
from tests.harness.faults import Call, Fault, FaultyBroker, Hang, Operation
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.harness.piecewise import PiecewiseBroker
from tests.simulation.audit import audit, left
from tests.simulation.clients import Consumer, Journal, Producer
from tests.simulation.clocks import READERS, Clocks, stand_still
from tests.simulation.coverage import see_diverted, see_the_whole
from tests.simulation.disk import DiskBroker
from tests.simulation.disk_harm import Harm
from tests.simulation.endpoint import Client, client_of
from tests.simulation.laws import Laws
from tests.simulation.listening import listener
from tests.simulation.network import Network
from tests.simulation.outcomes import Outcomes
from tests.simulation.processes import GatewayProcess, Installation, Process, SyphonProcess
from tests.simulation.recorder import GATEWAY, Recorder
from tests.simulation.scenario import (
    BENEATH,
    CHAOS,
    ENTITIES,
    FAULTS,
    FULL,
    LONGEST_DELAY,
    LONGEST_LATENCY,
    NAMES,
    Crash,
    Front,
    Mode,
    Scenario,
)
from tests.simulation.seeds import draw

DRAIN: Final = 400.0  # seconds in which a healed pair must have moved its backlog
LOOK: Final = 5.0
QUIET: Final = 60.0  # seconds without traffic, in which nothing may be done
DEAD_AFTER: Final = 20.0  # seconds until a receiver finds its connection dead
SETTLING: Final = 90.0  # seconds after a run that isn't healed, until all that is late has come
ONE_DAY: Final = 86_400.0
SHOWING: Final = frozenset({Operation.SEND, Operation.PROBE, Operation.RECEIVE})
QUEUE: Final = QueueProperties(max_delivery_count=1000)


def run_world(seed: int, load: int = 1) -> Outcomes:
    """The history of that seed, whole and judged, with so many times the sends."""
    return run_scenario(draw(seed, load))


def run_scenario(scenario: Scenario) -> Outcomes:
    """The same, of a scenario that somebody has changed."""
    with TemporaryDirectory(prefix="pairgate-sim-") as folder:
        world = World(scenario=scenario, folder=Path(folder))
        try:
            return run_seeded(world.run, seed=scenario.seed)
        finally:
            world.close()


@attrs.define(eq=False, kw_only=True)
class World:
    """An installation, from its start to its audit."""

    scenario: Scenario
    folder: Path  # for what is on disk
    journal: Journal = attrs.Factory(lambda self: Journal(folder=self.folder), takes_self=True)
    laws: Laws = attrs.field(init=False)
    recorder: Recorder = attrs.field(init=False)
    clocks: Clocks = attrs.field(init=False)
    rng: random.Random = attrs.field(init=False)
    stores: dict[str, LocalBroker] = attrs.field(init=False)
    namespaces: dict[str, FaultyBroker] = attrs.field(init=False)
    gateway: GatewayProcess = attrs.field(init=False)
    clients: list[Client] = attrs.field(factory=list)  # one for each producer, over a network
    syphons: list[SyphonProcess] = attrs.field(init=False)
    _transferred: set[str] = attrs.field(factory=set)  # by syphons, as far as they know
    # The watch of each process over the primary.
    _primaries: dict[str, AbilityWatch] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.clocks = Clocks(self._note_clock)
        self.laws = Laws(self.scenario, self.clocks, seen=self.journal.seen)
        self.recorder = Recorder(self.scenario, self.journal.records, self.journal.names)
        self.rng = random.Random(f"world {self.scenario.seed}")
        self.stores = {name: self._store(name) for name in NAMES}
        self.namespaces = {name: self._namespace(name) for name in NAMES}

    def close(self) -> None:
        """Let go of what is on disk."""
        for store in self.stores.values():
            if isinstance(store, DiskBroker):
                store.close()

    async def run(self) -> Outcomes:
        self.recorder.begin()
        try:
            await self._live()
        except* StoreError as lost:
            self.laws.broken.append(f"a store can't be opened again: {lost.exceptions!r}")
            await trio.lowlevel.checkpoint()
        see_the_whole(self.journal.seen, self.scenario, self.journal.records)
        return Outcomes(
            scenario=self.scenario,
            judgement=judge_run(self.journal.records),
            broken_laws=tuple(self.laws.broken),
            seen=self.journal.seen,
            records=tuple(self.journal.records),
            trace=tuple(self.journal.trace),
        )

    async def _live(self) -> None:
        with trio.fail_after(ONE_DAY):
            async with trio.open_nursery() as nursery:
                await self._start(nursery)
                async with trio.open_nursery() as chaos:
                    for number in range(self.scenario.producers):
                        chaos.start_soon(self._producer(number).run)
                    for crash in self.scenario.crashes:
                        chaos.start_soon(self._crash, crash)
                    for fault in self.scenario.disk_faults:
                        chaos.start_soon(self._harm(fault.namespace).trouble, fault)
                    for step in self.scenario.clock_steps:
                        chaos.start_soon(self.clocks.trouble, step)
                    chaos.start_soon(trio.sleep_until, CHAOS)
                if self.scenario.parts.mode is Mode.LIVENESS:
                    await self._drain()
                    self.laws.note_end()
                    await self._send_once_more()
                    await self._be_quiet()
                else:
                    await trio.sleep(SETTLING)
                self.laws.note_all_ended()
                nursery.cancel_scope.cancel()
            await audit(self.stores, self.journal.records, self.journal.names)

    # --- the installation

    def _store(self, name: str) -> LocalBroker:
        if not self.scenario.parts.on_disk:
            return MemoryBroker(self.clocks.of(name), self.rng)
        folder = self.folder / name
        folder.mkdir()
        return DiskBroker(folder, self.clocks.of(name), self.rng)

    def _namespace(self, name: str) -> FaultyBroker:
        kind = FaultySessionsBroker if self.scenario.parts.ordered else FaultyBroker
        inner: Broker = self.stores[name]
        if name == "primary" and FULL in self.scenario.kinds:
            inner = PiecewiseBroker(inner, self._is_full)
        return kind(
            inner=inner,
            fault=partial(self._fault, name),
            latency=self._latency,
            watch=partial(self._watch_namespace, name),
        )

    async def _start(self, nursery: trio.Nursery) -> None:
        for entity in ENTITIES:
            await self.stores["primary"].create_queue(entity, QUEUE)
        installation = self._installation(nursery)
        for queue in installation.backlog.queues:
            await self.stores["secondary"].create_queue(queue, backlog.QUEUE_PROPERTIES)
        if self.scenario.parts.ordered:
            for queue in ordered_queues(self.scenario.pair.label):
                await self.stores["secondary"].create_queue(queue, ORDERED_PROPERTIES)
        for namespace in self.namespaces.values():
            await nursery.start(namespace.run)
        self.gateway = GatewayProcess(
            name="gateway", installation=installation, syphons=self.scenario.syphons == 0
        )
        self.syphons = [
            SyphonProcess(name=f"syphon-{number}", installation=installation)
            for number in range(self.scenario.syphons)
        ]
        await nursery.start(installation.network.run)
        if self.scenario.parts.front is not None:
            await self._start_clients(self.scenario.parts.front, installation.network, nursery)
        for process in (self.gateway, *self.syphons):
            await nursery.start(process.run)
        for entity in ENTITIES:
            nursery.start_soon(self._consumer(entity))

    async def _start_clients(self, front: Front, network: Network, nursery: trio.Nursery) -> None:
        await trio.lowlevel.checkpoint()
        clock = self.clocks.of("client")
        for _ in range(self.scenario.producers + 1):
            self.clients.append(client_of(front, network, clock=clock, rng=self.rng))
            await nursery.start(self.clients[-1].run)

    def _consumer(self, entity: EntityPath) -> Callable[[], Awaitable[None]]:
        primary, parts = self.namespaces["primary"], self.scenario.parts
        if not parts.listener:
            return Consumer(entity=entity, primary=primary, journal=self.journal).run
        clock = self.clocks.of("client")
        return listener(
            entity, primary, self.journal, clock=clock, rng=self.rng, failing=parts.failing
        ).run

    def _network(self) -> Network:
        def note_break() -> None:
            self.journal.seen["fault: connection of a client"] += 1
            self.journal.note("a client's connection breaks")

        breaking = self.scenario.parts.breaking
        return Network(rng=self.rng, breaking=breaking, until=CHAOS, on_break=note_break)

    def _installation(self, nursery: trio.Nursery) -> Installation:
        return Installation(
            scenario=self.scenario,
            primary=self.namespaces["primary"],
            secondary=self.namespaces["secondary"],
            dependencies=self._environment,
            watch=self._watch,
            replaced=self.laws.note_replaced,
            home=nursery,
            network=self._network(),
            names=self.journal.names,
        )

    def _environment(self, process: str) -> PairDependencies:
        return PairDependencies(
            clock=self.clocks.of(process),
            rng=self.rng,
            new_id=lambda: f"{self.rng.getrandbits(64):016x}",
            observer=self,
            measure=encoded_size,
            returns=self._reach(process).returns,
        )

    def _reach(self, process: str) -> AbilityWatch:
        """The knowledge of the primary that a starting process has: none."""
        watch = self._primaries[process] = AbilityWatch(clock=self.clocks.of(process))
        return watch

    def _note_reach(self, process: str, call: Call) -> None:
        """Sends, probes and receives show a gateway whether the primary can be reached."""
        watch, is_receive = self._primaries.get(process), call.operation is Operation.RECEIVE
        if watch is None or call.operation not in SHOWING:
            return
        ability = Ability.RECEIVE if is_receive else Ability.SEND
        returns = watch.returns.version
        if call.error is not None:
            watch.failed(ability, call.error)
        elif call.outcome is None and (call.messages or not is_receive):
            watch.worked(ability)
        elif not is_receive:
            watch.unanswered(ability, call.entity, call.took)
        if watch.returns.version != returns and process == GATEWAY:
            self.laws.note_return()

    def _producer(self, number: int) -> Producer:
        return Producer(
            number=number,
            scenario=self.scenario,
            gateway=self.gateway,
            client=self.clients[number] if self.clients else None,
            clock=self.clocks.of("client"),
            rng=self.rng,
            laws=self.laws,
            journal=self.journal,
        )

    # --- faults

    def _latency(self) -> float:
        mean = self.scenario.latency
        return min(self.rng.expovariate(1.0 / mean), LONGEST_LATENCY) if mean else 0.0

    def _fault(self, name: str, operation: Operation, entity: EntityPath) -> Fault | None:
        now = trio.current_time()
        for window in self.scenario.windows:
            hit = window.namespace == name and window.covers(operation, entity, now)
            if hit and window.kind in BENEATH:
                continue
            if hit and self.rng.random() < window.share:
                self.journal.seen[f"fault: {window.kind}"] += 1
                dead = operation is Operation.RECEIVE and window.kind in {"hang", "swallow answer"}
                return Hang(DEAD_AFTER) if dead else FAULTS[window.kind](self.rng)
        return None

    def _is_full(self, entity: EntityPath) -> bool:
        """True if the entity's queue on the primary refuses the next message."""
        now = trio.current_time()
        windows = [each for each in self.scenario.windows if each.kind == FULL]
        hit = any(
            each.covers(Operation.SEND, entity, now) and self.rng.random() < each.share
            for each in windows
        )
        self.journal.seen[f"fault: {FULL}"] += hit
        return hit

    async def _crash(self, crash: Crash) -> None:
        await trio.sleep_until(crash.at)
        self.journal.note(f"{crash.what} goes down")
        fault = self.recorder.note_crash(crash)
        match crash.what:
            case "pause":
                await self._wait_for_a_send()
                stand_still(crash.back - crash.at)
            case "gateway":
                self.journal.seen["gateway killed with sends under way"] += (
                    self.gateway.sends_under_way
                )
                await self._kill(self.gateway, crash.back)
            case "syphon":
                for syphon in self.syphons[:1]:
                    await self._kill(syphon, crash.back)
            case name:
                await self._harm(name).crash(crash.back)
        self.recorder.note_return(fault)
        self.journal.note(f"{crash.what} is back")

    async def _wait_for_a_send(self) -> None:
        await trio.lowlevel.checkpoint()
        for _ in range(100):
            if self.gateway.sends_under_way:
                return
            await trio.sleep(self.rng.uniform(0.0, 0.2))

    async def _kill(self, process: Process, back: float) -> None:
        process.kill()
        if process is self.gateway:
            self.laws.forget_streaks()
        await trio.sleep_until(back)
        if process is self.gateway:
            # A gateway comes back with what it had saved.
            states = self.gateway.saved_states()
            self.laws.note_restart(states)
            over = State.SECONDARY.value in states.values()
            self.journal.seen["restarted in an outage"] += over
        self.recorder.note_revival(process.name)
        process.revive()

    def _harm(self, name: str) -> Harm:
        return Harm(
            name=name,
            namespace=self.namespaces[name],
            journal=self.journal,
            recorder=self.recorder,
            rng=self.rng,
        )

    # --- what is watched

    def _note_clock(self, name: str, ahead: float, drift: float) -> None:
        self.journal.seen["a clock was put right" if ahead == 0.0 else "fault: clock"] += 1
        self.journal.note(f"the clock of {name} is {ahead:.3f} s ahead, {drift:g} more a second")
        self.recorder.note_clock(READERS.get(name, (name,)), ahead, drift)

    def report(self, event: Event) -> None:
        """As `Observer`: hears what gateway and syphons tell."""
        self.journal.note(repr(event))
        self.journal.seen[type(event).__name__] += 1
        self.laws.note_event(event)
        self.recorder.note_event(event)

    def _watch_namespace(self, name: str, call: Call) -> None:
        self.recorder.note_at_namespace(name, call)
        if name == "primary" and call.operation is Operation.RECEIVE:
            self._note_reach(GATEWAY, call)  # consumers receive by a gateway
        self.laws.note_consumed(name, call, self.journal.handled)
        accepted = self.journal.acked.issuperset(map(self.journal.names.of, call.messages))
        if call.late and call.operation is Operation.SEND and accepted:
            self.journal.seen["late success after the message was accepted elsewhere"] += 1

    def _watch(self, process: str, namespace: str, call: Call) -> None:
        ids = list(map(self.journal.names.of, call.messages))
        self.laws.note_call(process, namespace, call)
        if namespace == "primary":
            self._note_reach(process, call)
        self.recorder.note_call(process, namespace, call)
        match call.operation:
            case Operation.SEND:
                self.journal.note(f"{process}: {ids} to {namespace} {call.entity}: {call.outcome}")
                self._watch_send(process, namespace, call, ids)
            case Operation.LEAVE if namespace == "secondary":
                between = not self._transferred.isdisjoint(ids)
                self.journal.seen["syphon ended between accept and complete"] += between

    def _watch_send(self, process: str, namespace: str, call: Call, ids: Sequence[str]) -> None:
        if process == GATEWAY and self.gateway.pair is not None:
            self.recorder.sample(process, self.gateway.pair.broker.inflight.total)
        if process == GATEWAY and call.outcome is not Outcome.NOT_SENT:
            self.laws.note_may_have_arrived(ids)
        if process == GATEWAY and call.outcome is None:
            accepted_by = AcceptedBy.PRIMARY if namespace == "primary" else AcceptedBy.BACKLOG
            self.journal.accepted_by.update(dict.fromkeys(ids, accepted_by))
        if call.outcome is None and namespace == "secondary":
            see_diverted(self.journal.seen, call.messages, self.journal.names)
        elif call.outcome is None and process.startswith("syphon"):
            self._transferred.update(ids)

    # --- the end

    async def _drain(self) -> None:
        """Return when all is back where it belongs, or has had the time for it."""
        self.recorder.note_healed(await left(self.stores["secondary"]))
        began, drained = trio.current_time(), False
        while trio.current_time() < began + LONGEST_DELAY + DRAIN:
            if not drained and not await left(self.stores["secondary"]):
                drained = True
                self.recorder.note_drained()
            if drained and trio.current_time() > began + LONGEST_DELAY and await self._quiet():
                return
            await trio.sleep(LOOK)
        self.laws.note_left(await left(self.stores["primary"]))

    async def _be_quiet(self) -> None:
        processes = [GATEWAY, f"syphon in {GATEWAY}", *(one.name for one in self.syphons)]
        for pause in (LOOK, QUIET):
            await trio.sleep(pause)
            for process in processes:
                self.recorder.sample(process)

    async def _quiet(self) -> bool:
        await trio.lowlevel.checkpoint()
        pair = self.gateway.pair
        if pair is None or pair.states.to_probe():
            return False
        return not await left(self.stores["primary"]) and not await left(self.stores["secondary"])

    async def _send_once_more(self) -> None:
        """All is well again, so the primary must take the next message of each entity."""
        await trio.lowlevel.checkpoint()
        producer = self._producer(self.scenario.producers)
        for entity in self.scenario.entities:
            accepted_by = await producer.send_once_more(entity)
            self.laws.note_healed(entity, to_primary=accepted_by is AcceptedBy.PRIMARY)
