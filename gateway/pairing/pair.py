"""Assembles one pair: the broker that senders use, and the services beside it."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import trio

from gateway.capabilities import address_of
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.health.backlog_model import BacklogModel
from gateway.domain.message import AcceptedBy
from gateway.domain.status.sections import Readings
from gateway.extensions.listing import parts
from gateway.moments import Moments
from gateway.pairing.additions import (
    Addition,
    PairCore,
    PairDependencies,
    PairPeers,
    SendsInOrder,
)
from gateway.pairing.admission import Admission
from gateway.pairing.backlog import BacklogSender, ChoosesQueue, Rotation
from gateway.pairing.backlog_limit import BacklogLimit, no_setup
from gateway.pairing.broker import PairedBroker
from gateway.pairing.busy_pauses import BusyPauses
from gateway.pairing.depth import BacklogDepth, DepthSampler
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import Oversized, PairOptions
from gateway.pairing.primary import PrimarySender
from gateway.pairing.prober import Prober
from gateway.pairing.provision import Backlog
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.slow_watch import SlowWatch
from gateway.pairing.state_file import StateFile
from gateway.pairing.states import MOST_ANSWERS, EntityStates
from gateway.pairing.syphon.dead_letters import ExpiryRules
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.orphans import OrphanWatch
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.ways import Ways
from gateway.ports import Broker


@attrs.frozen(kw_only=True)
class Spool:
    """A durable queue on this machine, behind the secondary."""

    broker: Broker
    queue: EntityPath


@attrs.frozen(kw_only=True)
class Pair:
    """The parts of a pair. `run` must live as long as `broker` is used."""

    broker: PairedBroker
    states: EntityStates
    entity_cache: EntityCache
    destination: Destination
    rotation: Rotation
    prober: Prober
    watch: SlowWatch
    orphans: OrphanWatch | None  # None: another process watches the backlog
    depth: BacklogDepth
    sampler: DepthSampler | None  # None: another process watches the backlog
    limit: BacklogLimit | None
    pauses: Pauses  # of the syphons in this process
    book: OrderBook | None  # None: the process tells and hears of no orders
    state: StateFile | None
    additions: Sequence[Addition] = ()  # of extensions

    @property
    def in_order(self) -> SendsInOrder | None:
        """The ordered entities, as other gateways use them; None: there are none."""
        return next((each.in_order for each in self.additions if each.in_order is not None), None)

    @property
    def sections(self) -> Readings:
        """The readings of the sections that extensions have in the status."""
        return {section: read for each in self.additions for section, read in each.sections.items()}

    async def leave(self) -> None:
        """Return when other gateways need nothing of this one any more: no client is left."""
        for each in self.additions:
            await each.leave()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Entity states from before a restart are restored at the start."""
        if self.state is not None:
            self.state.restore()
            # A process that is killed leaves nothing behind that only a good end may tell.
            if self.state.kept and not await self.state.save():
                await self.state.doubt()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.states.run)
            await nursery.start(self.entity_cache.run)
            await nursery.start(self.destination.run)
            await nursery.start(self.prober.run)
            await nursery.start(self.watch.run)
            own = (self.orphans, self.sampler, self.limit, self.state)
            added = (service for each in self.additions for service in each.services)
            for part in (*added, *own):
                if part is not None:
                    await nursery.start(part.run)
            task_status.started()


@attrs.frozen(kw_only=True)
class PairParts:
    """The parts that a pair is assembled from."""

    primary: Broker
    secondary: Broker
    options: PairOptions
    backlog: Backlog
    envelope: Envelope
    dependencies: PairDependencies
    state: Path | None = None
    spool: Spool | None = None
    # Sets up the backlog later, if the secondary was unavailable at the start.
    setup: Callable[[], Awaitable[None]] = no_setup
    peers: PairPeers = attrs.field(factory=PairPeers)
    model: BacklogModel = attrs.field(factory=BacklogModel)
    book: OrderBook | None = None
    reader: RecordReader | None = None  # of the pair's processes
    destination: Destination = attrs.field()

    @destination.default
    def _destination(self) -> Destination:
        needs = self.dependencies
        return Destination(primary=self.primary, observer=needs.observer, rng=needs.rng)

    def assemble(self) -> Pair:
        """Put the pair together. Nothing runs and nothing is connected yet."""
        dependencies, options = self.dependencies, self.options
        entity_cache, pauses = EntityCache(primary=self.primary), Pauses()
        states = EntityStates(
            options=options,
            clock=dependencies.clock,
            observer=dependencies.observer,
            rng=dependencies.rng,
            address=address_of(self.primary),
            is_known=lambda entity: entity_cache.of(entity) is not None,
            tell=self.peers.tell,
            answers=Bounded(MOST_ANSWERS, renews=True) if self.peers.takes_advice else None,
        )
        dependencies.returns.pass_on(states.evidence.returns)
        rotation = self._rotation(self.backlog.queues)
        core = self._core(self._ways(states, entity_cache, rotation), entity_cache)
        made = [add(core) for add in parts("pairs")]
        additions = [addition for addition in made if addition is not None]
        broker = self._broker(core, additions)
        depth = BacklogDepth(
            secondary=self.secondary,
            rotation=rotation,
            label=options.label,
            clock=dependencies.clock,
            ordered=[queue for addition in additions for queue in addition.queues],
            model=self.model,
            expiry_rules=ExpiryRules(self.primary),
            reader=self.reader,
        )
        return Pair(
            broker=broker,
            states=states,
            entity_cache=entity_cache,
            destination=self.destination,
            rotation=rotation,
            prober=Prober(
                primary=self.primary, states=states, options=options, rng=dependencies.rng
            ),
            watch=core.ways.to_primary.watch,
            orphans=OrphanWatch(
                depth=depth,
                states=states,
                after=options.orphaned_after,
                rng=dependencies.rng,
                pauses=pauses,
            ),
            depth=depth,
            sampler=DepthSampler(depth=depth, states=states, rng=dependencies.rng),
            limit=None if self.backlog.asked else self._limit(core.ways.admission),
            pauses=pauses,
            book=self.book,
            state=self._state_file(states, entity_cache, pauses, additions),
            additions=additions,
        )

    def _core(self, ways: Ways, entity_cache: EntityCache) -> PairCore:
        return PairCore(
            options=self.options,
            secondary=self.secondary,
            ways=ways,
            inflight=InFlight(self.options.max_inflight),
            moments=Moments(self.dependencies.clock),
            dependencies=self.dependencies,
            peers=self.peers,
            entity_cache=entity_cache,
        )

    def _limit(self, admission: Admission) -> BacklogLimit:
        return BacklogLimit(
            secondary=self.secondary,
            admission=admission,
            options=self.options,
            setup=self.setup,
            observer=self.dependencies.observer,
            rng=self.dependencies.rng,
        )

    def _ways(self, states: EntityStates, entity_cache: EntityCache, rotation: Rotation) -> Ways:
        options, dependencies = self.options, self.dependencies
        return Ways(
            options=options,
            states=states,
            admission=Admission(
                entity_cache=entity_cache,
                measure=dependencies.measure,
                backlog_limit=self.backlog.max_message_size,
                primary_only=options.oversized is Oversized.PRIMARY_ONLY,
            ),
            to_primary=self._primary_sender(states, entity_cache),
            to_backlog=self._sender(
                self.secondary,
                rotation,
                AcceptedBy.BACKLOG,
                [
                    make(options, entity_cache, self.secondary, self.envelope)
                    for make in parts("backlog_choices")
                ],
            ),
            to_spool=self._spool_sender(),
            copies=[make(options, dependencies.observer) for make in parts("second_copies")],
        )

    def _broker(self, core: PairCore, additions: Sequence[Addition]) -> PairedBroker:
        dependencies, ways = self.dependencies, core.ways
        others = [each.delivery for each in additions if each.delivery is not None]
        return PairedBroker(
            primary=self.primary,
            destination=self.destination,
            options=self.options,
            ways=ways,
            delivery=others[0] if others else ways,
            inflight=core.inflight,
            moments=core.moments,
            new_id=dependencies.new_id,
            observer=dependencies.observer,
        )

    def _primary_sender(self, states: EntityStates, entity_cache: EntityCache) -> PrimarySender:
        dependencies, options = self.dependencies, self.options
        return PrimarySender(
            primary=self.primary,
            options=options,
            states=states,
            entity_cache=entity_cache,
            pauses=BusyPauses(
                least=options.busy_pause, rng=dependencies.rng, observer=dependencies.observer
            ),
            watch=SlowWatch(options=options, states=states),
            observer=dependencies.observer,
        )

    def _sender(
        self,
        broker: Broker,
        rotation: Rotation,
        accepted_by: AcceptedBy,
        choices: Sequence[ChoosesQueue] = (),
    ) -> BacklogSender:
        return BacklogSender(
            broker=broker,
            rotation=rotation,
            envelope=self.envelope,
            new_id=self.dependencies.new_id,
            observer=self.dependencies.observer,
            accepted_by=accepted_by,
            destination=self.destination,
            choices=choices,
        )

    def _spool_sender(self) -> BacklogSender | None:
        if self.spool is None:
            return None
        return self._sender(
            self.spool.broker, self._rotation((self.spool.queue,)), AcceptedBy.SPOOL
        )

    def _rotation(self, queues: tuple[EntityPath, ...]) -> Rotation:
        return Rotation(
            queues=queues,
            cooldown=self.options.backlog_cooldown,
            rng=self.dependencies.rng,
            observer=self.dependencies.observer,
        )

    def _state_file(
        self,
        states: EntityStates,
        entity_cache: EntityCache,
        pauses: Pauses,
        additions: Sequence[Addition],
    ) -> StateFile | None:
        if self.state is None:
            return None
        return StateFile(
            path=self.state,
            states=states,
            entity_cache=entity_cache,
            destination=self.destination,
            observer=self.dependencies.observer,
            pauses=pauses,
            book=self.book,
            kept=[each.kept for each in additions if each.kept is not None],
        )
