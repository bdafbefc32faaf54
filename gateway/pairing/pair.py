"""Assembles one pair: the broker that senders use, and the services beside it."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import trio

from gateway.capabilities import address_of
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import OrderStatus
from gateway.extensions.hedging.hedge import HedgeBudget
from gateway.extensions.order.lease import OrderLeases
from gateway.extensions.order.peers import OrderPeers
from gateway.extensions.order.sends import OrderedSends
from gateway.extensions.order.watch import OrderWatch
from gateway.moments import Moments
from gateway.pairing.admission import Admission, Measure
from gateway.pairing.backlog import BacklogSender, Rotation
from gateway.pairing.backlog_limit import BacklogLimit, no_setup
from gateway.pairing.broker import PairedBroker
from gateway.pairing.busy_pauses import BusyPauses
from gateway.pairing.depth import BacklogDepth, Counts, DepthSampler
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import OnLeaseLost, Oversized, PairOptions
from gateway.pairing.primary import PrimarySender
from gateway.pairing.prober import Prober
from gateway.pairing.provision import Backlog
from gateway.pairing.slow_watch import SlowWatch
from gateway.pairing.state_file import StateFile
from gateway.pairing.states import MOST_ANSWERS, EntityStates, keep_to_oneself
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.orphans import OrphanWatch
from gateway.pairing.syphon.pauses import Pauses
from gateway.ports import Broker, NewId, Observer, WallClock


@attrs.frozen(kw_only=True)
class PairDependencies:
    """The values that a pair needs from outside."""

    clock: WallClock
    rng: random.Random
    new_id: NewId
    observer: Observer
    measure: Measure


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
    state: StateFile | None
    order: OrderWatch | None  # None: no entity keeps its order
    leases: OrderLeases | None  # None: no other gateway sends to the ordered entities

    def order_status(self) -> OrderStatus | None:
        """The keys of ordered entities in numbers; None: no entity keeps its order."""
        if self.order is None:
            return None
        status = self.order.status()
        if self.leases is None:
            return status
        leases = self.leases
        return attrs.evolve(
            status, leases=leases.held, missed=leases.missed, forwarded=leases.forwarded
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Entity states from before a restart are restored at the start."""
        if self.state is not None:
            self.state.restore()
            # A process that is killed leaves no queue behind that the next one takes for empty.
            if self.order is not None and not await self.state.save():
                await self.state.doubt()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.states.run)
            await nursery.start(self.entity_cache.run)
            await nursery.start(self.destination.run)
            await nursery.start(self.prober.run)
            await nursery.start(self.watch.run)
            for part in (
                self.order,
                self.leases,
                self.orphans,
                self.sampler,
                self.limit,
                self.state,
            ):
                if part is not None:
                    await nursery.start(part.run)
            task_status.started()


@attrs.frozen(kw_only=True)
class PairPeers:
    """The other gateways with the same pair, as far as this process talks to them."""

    tell: Callable[[EntityPath, float, str], None] = keep_to_oneself  # as `EntityStates.tell`
    takes_advice: bool = False  # their suspicions are adopted
    orderers: OrderPeers | None = None  # None: sends in order aren't forwarded to them


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
    waiting: Counts | None = None  # as `BacklogDepth.waiting`
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
        rotation = self._rotation(self.backlog.queues)
        order = self._order(states)
        leases = None if order is None else self._leases(order)
        broker = self._broker(states, entity_cache, rotation, (order, leases))
        depth = BacklogDepth(
            secondary=self.secondary,
            rotation=rotation,
            label=options.label,
            clock=dependencies.clock,
            ordered=() if order is None else [queue.path for queue in order.queues],
            waiting=self.waiting,
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
            watch=broker.to_primary.watch,
            orphans=OrphanWatch(
                depth=depth,
                states=states,
                after=options.orphaned_after,
                rng=dependencies.rng,
                pauses=pauses,
            ),
            depth=depth,
            sampler=DepthSampler(depth=depth, states=states, rng=dependencies.rng),
            limit=None if self.backlog.asked else self._limit(broker.admission),
            pauses=pauses,
            state=self._state_file(states, entity_cache, pauses, order),
            order=order,
            leases=leases,
        )

    def _order(self, states: EntityStates) -> OrderWatch | None:
        if not self.options.ordered:
            return None
        return OrderWatch(secondary=self.secondary, label=self.options.label, states=states)

    def _leases(self, order: OrderWatch) -> OrderLeases | None:
        if not self.options.has_order_leases:
            return None
        return OrderLeases(
            secondary=self.secondary,
            label=self.options.label,
            queues=order.queues,
            goes_on=self.options.on_lease_lost is OnLeaseLost.SEND,
            new_id=self.dependencies.new_id,
            rng=self.dependencies.rng,
            observer=self.dependencies.observer,
            peers=self.peers.orderers if self.options.forwards_sends else None,
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

    def _broker(
        self,
        states: EntityStates,
        entity_cache: EntityCache,
        rotation: Rotation,
        order: tuple[OrderWatch | None, OrderLeases | None],
    ) -> PairedBroker:
        dependencies, options = self.dependencies, self.options
        to_primary = self._primary_sender(states, entity_cache)
        to_backlog = self._sender(self.secondary, rotation, AcceptedBy.BACKLOG)
        watch, leases = order
        ordered = None
        if watch is not None:
            ordered = OrderedSends(
                patterns=options.ordered,
                watch=watch,
                states=states,
                to_primary=to_primary,
                to_backlog=to_backlog,
                new_id=dependencies.new_id,
                leases=leases,
            )
        return PairedBroker(
            primary=self.primary,
            destination=self.destination,
            options=options,
            states=states,
            admission=Admission(
                entity_cache=entity_cache,
                measure=dependencies.measure,
                backlog_limit=self.backlog.max_message_size,
                primary_only=options.oversized is Oversized.PRIMARY_ONLY,
            ),
            to_primary=to_primary,
            to_backlog=to_backlog,
            to_spool=self._spool_sender(),
            ordered=ordered,
            inflight=InFlight(options.max_inflight),
            moments=Moments(dependencies.clock),
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
            watch=SlowWatch(
                options=options, states=states, budget=HedgeBudget(options.hedge_budget)
            ),
            observer=dependencies.observer,
        )

    def _sender(self, broker: Broker, rotation: Rotation, accepted_by: AcceptedBy) -> BacklogSender:
        return BacklogSender(
            broker=broker,
            rotation=rotation,
            envelope=self.envelope,
            new_id=self.dependencies.new_id,
            observer=self.dependencies.observer,
            accepted_by=accepted_by,
            destination=self.destination,
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
        order: OrderWatch | None,
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
            order=order,
        )
