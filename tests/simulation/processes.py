"""The system under test as processes that can be killed: a gateway, and syphons."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.capabilities import Batches, SendsMany
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import (
    BrokerError,
    NoAnswer,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.gateway import Event
from gateway.domain.message import AcceptedBy, Message
from gateway.offering import required
from gateway.pairing.additions import PairDependencies, PairPeers
from gateway.pairing.gathering import GatheringBroker
from gateway.pairing.pair import Pair, PairParts
from gateway.pairing.provision import Backlog
from gateway.pairing.state_file import SavedState, StateFile, build, parse
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Observer
from gateway.wire.amqp.message import encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.harness.faults import Call, FaultyBroker, Hang, Refuse
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.harness.remembering import RememberingBroker
from tests.simulation.endpoint import AdapterClient, Client, Endpoint
from tests.simulation.names import KEY, Names
from tests.simulation.network import Network
from tests.simulation.scenario import Scenario

PRIMARY: Final = "sim://primary"
STUCK_SENDS: Final = (Hang(), Refuse(lambda: OutcomeUnknown("internal error")))


@attrs.define(eq=False, kw_only=True)
class KeptState(StateFile):
    """
    The state file, on a disk that outlives the process and needs no thread.

    A killed process still ends its tasks, and writes nothing any more.
    """

    disk: dict[Path, bytes]
    life: trio.CancelScope

    def restore(self) -> None:
        keys = [each.key for each in self.kept]
        saved = parse(self.disk[self.path], keys) if self.path in self.disk else SavedState()
        self.destination.restore(saved.primary)
        self.entity_cache.restore(saved.known)
        self.states.restore(saved.states)
        for each in self.kept:
            each.restore(saved.kept.get(each.key, ()))

    async def save(self) -> bool:
        await trio.lowlevel.checkpoint()
        state = SavedState(
            states=tuple(self.states.troubled()),
            known=tuple(self.entity_cache.all()),
            primary=self.destination.identity,
            kept={each.key: each.names() if self._ends else () for each in self.kept},
        )
        if not self.life.cancel_called:
            self.disk[self.path] = build(state)
        return True


@attrs.define(eq=False, kw_only=True)
class Installation:
    """The namespaces, the network and the files that every process finds when it starts."""

    scenario: Scenario
    primary: Broker
    secondary: Broker
    dependencies: Callable[[str], PairDependencies]  # of a process, by its name
    watch: Callable[[str, str, Call], None]  # of which process, to which namespace, what
    replaced: Callable[[str, bool], None]  # a connection of that process; True: it was well
    home: trio.Nursery  # where connections of the dead live on
    network: Network  # to the gateway's endpoint
    names: Names
    disk: dict[Path, bytes] = attrs.field(factory=dict)
    lives: Iterator[int] = attrs.field(factory=count)  # of its processes

    @property
    def backlog(self) -> Backlog:
        pair = self.scenario.pair
        queues = (backlog.queue_name(pair.label, index) for index in range(pair.backlog_queues))
        return Backlog(queues=tuple(queues), max_message_size=None)

    def envelope(self, origin: str) -> Envelope:
        label = self.scenario.pair.label
        return Envelope(
            pair=label,
            origin=origin,
            keys=(KEY,),
            encode=encode_sorted,
            # No nonce repeats in another life.
            encryption=MessageEncryption(
                random.Random(f"{self.scenario.seed} {origin} {next(self.lives)}")
            ),
            encrypts=self.scenario.parts.encrypts,
        )

    def peers(self, origin: str) -> PairPeers:
        """The other gateways that the gateway at `origin` talks to: none."""
        return PairPeers()

    def pair(
        self,
        origin: str,
        life: trio.CancelScope,
        dependencies: PairDependencies,
        primary: Broker,
        secondary: Broker,
    ) -> Pair:
        pair = PairParts(
            primary=primary,
            secondary=secondary,
            options=self.scenario.pair,
            backlog=self.backlog,
            envelope=self.envelope(origin),
            destination=self.destination(primary, dependencies),
            dependencies=dependencies,
            peers=self.peers(origin),
        ).assemble()
        state = KeptState(
            path=Path("state.json"),
            states=pair.states,
            entity_cache=pair.entity_cache,
            destination=pair.destination,
            observer=pair.states.observer,
            kept=[each.kept for each in pair.additions if each.kept is not None],
            disk=self.disk,
            life=life,
        )
        return attrs.evolve(pair, state=state)

    def syphon(
        self,
        origin: str,
        dependencies: PairDependencies,
        primary: Broker,
        secondary: Broker,
        states: EntityStates | None = None,
    ) -> Syphon:
        return Syphon(
            primary=primary,
            source=secondary,
            label=self.scenario.pair.label,
            options=self.scenario.syphon,
            envelope=self.envelope(origin),
            clock=dependencies.clock,
            rng=dependencies.rng,
            observer=dependencies.observer,
            states=states,
            destination=self.destination(primary, dependencies),
        )

    def destination(self, primary: Broker, dependencies: PairDependencies) -> Destination:
        """The primary, known by its address."""
        return Destination(
            primary=primary,
            addresses=(PRIMARY,),
            observer=dependencies.observer,
            rng=dependencies.rng,
        )

    async def connect(self, process: str, namespace: str) -> FaultyBroker:
        broker = self.primary if namespace == "primary" else self.secondary
        watch = partial(self.watch, process, namespace)
        kind = FaultySessionsBroker if self.scenario.parts.ordered else FaultyBroker
        link = kind(inner=broker, watch=watch)
        if self.scenario.parts.remembers:
            rng = random.Random(f"dials {self.scenario.seed} {process} {namespace}")
            stuck_at = self.scenario.stuck_at if namespace == "primary" else inf
            link = RememberingBroker(
                inner=broker,
                watch=watch,
                rng=rng,
                stuck_at=stuck_at,
                stuck=STUCK_SENDS[self.scenario.seed % 2],
                on_replaced=partial(self.replaced, process),
            )
        await self.home.start(link.run)
        return link


@attrs.frozen(eq=False)
class Voice:
    """Passes on a process's events during one life; the tasks of a killed process end unheard."""

    _observer: Observer
    _life: trio.CancelScope

    def report(self, event: Event) -> None:
        if not self._life.cancel_called:
            self._observer.report(event)


@attrs.define(eq=False, kw_only=True)
class Process:
    """
    Lives in lives: `kill` ends one at any point, without a clean-up that reaches anybody.

    A subclass says what it does by `live`, over its connections to both namespaces.
    """

    name: str
    installation: Installation
    lives: int = attrs.field(default=0, init=False)
    _life: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _links: tuple[FaultyBroker, ...] = attrs.field(default=(), init=False)
    _may_live: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._may_live.set()
        while True:
            await self._may_live.wait()
            self.lives += 1
            primary = await self.installation.connect(self.name, "primary")
            secondary = await self.installation.connect(self.name, "secondary")
            self._links = (primary, secondary)
            dependencies = self.installation.dependencies(self.name)
            with trio.CancelScope() as self._life:
                dependencies = attrs.evolve(
                    dependencies, observer=Voice(dependencies.observer, self._life)
                )
                await self.live(dependencies, primary, secondary, task_status=task_status)
            task_status = trio.TASK_STATUS_IGNORED

    def kill(self) -> None:
        self._may_live = trio.Event()
        for link in self._links:
            link.crash()
        self._life.cancel()

    def revive(self) -> None:
        self._may_live.set()

    async def live(
        self,
        dependencies: PairDependencies,
        primary: Broker,
        secondary: Broker,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        raise AssertionError("a subclass says what it does")


@attrs.define(eq=False, kw_only=True)
class SyphonProcess(Process):
    """`pairgate syphon`: knows nothing of the states."""

    async def live(
        self,
        dependencies: PairDependencies,
        primary: Broker,
        secondary: Broker,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        syphon = self.installation.syphon(self.name, dependencies, primary, secondary)
        await syphon.run(task_status=task_status)


@attrs.define(eq=False, kw_only=True)
class GatewayProcess(Process):
    """`pairgate serve`: `send` is what a client does."""

    syphons: bool
    pair: Pair | None = attrs.field(default=None, init=False)  # None: it doesn't live
    _gathering: GatheringBroker | None = attrs.field(default=None, init=False)
    _clients: dict[trio.CancelScope, None] = attrs.field(factory=dict, init=False)

    async def send(
        self, client: Client | None, entity: EntityPath, messages: Sequence[Message]
    ) -> AcceptedBy | None:
        """As a client sees it: no gateway, no connection; a gateway that dies gives no answer."""
        await trio.lowlevel.checkpoint()
        send = self._broker.send_diverting if client is None else client.send
        with self._until_death():
            return await send(entity, messages)
        raise OutcomeUnknown("the gateway died")

    async def send_many(
        self, client: AdapterClient | None, entity: EntityPath, batches: Batches
    ) -> Sequence[BrokerError | None]:
        """As `send`, with a verdict for each batch."""
        await trio.lowlevel.checkpoint()
        with self._until_death():
            if client is not None:
                return await client.send_many(entity, batches)
            return await required(self._broker, SendsMany).send_many(entity, batches)
        raise OutcomeUnknown("the gateway died")

    async def send_forwarded(
        self, entity: EntityPath, queue: EntityPath, messages: Sequence[Message], seconds: float
    ) -> AcceptedBy:
        """As another gateway of the cluster sees it, over a connection to this one."""
        await trio.lowlevel.checkpoint()
        if self.pair is None:
            raise Unreachable("connection refused by the gateway")
        with self._until_death():
            assert self.pair.in_order is not None, "its entities are ordered"
            return await self.pair.in_order.send_forwarded(entity, queue, messages, seconds)
        raise NoAnswer("the gateway died")

    @property
    def _broker(self) -> GatheringBroker:
        if self._gathering is None:
            raise Unavailable("connection refused by the gateway")
        return self._gathering

    @contextmanager
    def _until_death(self) -> Iterator[None]:
        with trio.CancelScope() as scope:
            self._clients[scope] = None
            try:
                yield
            finally:
                del self._clients[scope]

    @property
    def sends_under_way(self) -> int:
        return len(self._clients)

    def saved_states(self) -> dict[str, str]:
        """The saved states by entity, as the next life will find them."""
        saved = [parse(data) for data in self.installation.disk.values()]
        return {each.entity.key: each.state.value for one in saved for each in one.states}

    def kill(self) -> None:
        super().kill()
        self.pair = self._gathering = self.installation.network.serve = None
        if self.installation.scenario.parts.front is None:  # over a network their connections end
            for scope in self._clients:
                scope.cancel()

    async def live(
        self,
        dependencies: PairDependencies,
        primary: Broker,
        secondary: Broker,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        pair = self.installation.pair(self.name, self._life, dependencies, primary, secondary)
        gathering = GatheringBroker(pair=pair.broker, namespaces=[primary, secondary])
        async with trio.open_nursery() as nursery:
            await nursery.start(pair.run)
            if self.syphons:
                # Over links of its own, so that one can tell who of the two asked.
                name = f"syphon in {self.name}"
                to_primary = await self.installation.connect(name, "primary")
                to_secondary = await self.installation.connect(name, "secondary")
                self._links += (to_primary, to_secondary)
                syphon = self.installation.syphon(
                    self.name, dependencies, to_primary, to_secondary, pair.states
                )
                await nursery.start(syphon.run)
            if (front := self.installation.scenario.parts.front) is not None:
                endpoint = Endpoint(
                    front=front,
                    broker=gathering,
                    clock=dependencies.clock,
                    rng=dependencies.rng,
                    send_timeout=self.installation.scenario.pair.send_timeout,
                    note_put=self.installation.names.note_put,
                )
                await nursery.start(endpoint.run)
                self.installation.network.serve = endpoint.serve
            self.pair, self._gathering = pair, gathering
            task_status.started()
