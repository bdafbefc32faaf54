"""One pair, put together: the broker that senders see, and the services that keep it honest."""

import random
from pathlib import Path

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.message import Leg
from gateway.pairing.admission import Admission, Measure
from gateway.pairing.backlog_leg import BacklogLeg
from gateway.pairing.backlog_limit import BacklogLimit
from gateway.pairing.broker import PairedBroker
from gateway.pairing.depth import BacklogDepth
from gateway.pairing.inflight import InFlight
from gateway.pairing.knowledge import Knowledge
from gateway.pairing.options import PairOptions
from gateway.pairing.orphans import OrphanWatch
from gateway.pairing.pauses import BusyPauses
from gateway.pairing.primary_leg import PrimaryLeg
from gateway.pairing.prober import Prober
from gateway.pairing.provision import Backlog
from gateway.pairing.rotation import Rotation
from gateway.pairing.standings import Standings
from gateway.pairing.state import StateFile
from gateway.ports import Broker, NewId, Observer, WallClock


@attrs.frozen(kw_only=True)
class Surroundings:
    """What the outside gives to a pair."""

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
    standings: Standings
    knowledge: Knowledge
    rotation: Rotation
    prober: Prober
    orphans: OrphanWatch
    depth: BacklogDepth
    limit: BacklogLimit | None
    state: StateFile | None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled. What was failed over before a restart is so when this has begun."""
        if self.state is not None:
            self.state.restore()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.standings.run)
            await nursery.start(self.knowledge.run)
            await nursery.start(self.prober.run)
            await nursery.start(self.orphans.run)
            if self.limit is not None:
                await nursery.start(self.limit.run)
            if self.state is not None:
                await nursery.start(self.state.run)
            task_status.started()


@attrs.frozen(kw_only=True)
class PairParts:
    """What a pair is made of."""

    primary: Broker
    secondary: Broker
    options: PairOptions
    backlog: Backlog
    envelope: Envelope
    around: Surroundings
    state: Path | None = None
    spool: Spool | None = None

    def assemble(self) -> Pair:
        """Put the pair together. Nothing runs and nothing is connected yet."""
        around, options = self.around, self.options
        standings = Standings(
            options=options, clock=around.clock, observer=around.observer, rng=around.rng
        )
        knowledge = Knowledge(primary=self.primary)
        rotation = self._rotation(self.backlog.queues)
        broker = self._broker(standings, knowledge, rotation)
        return Pair(
            broker=broker,
            standings=standings,
            knowledge=knowledge,
            rotation=rotation,
            prober=Prober(
                primary=self.primary, standings=standings, options=options, rng=around.rng
            ),
            orphans=OrphanWatch(secondary=self.secondary, rotation=rotation, standings=standings),
            depth=BacklogDepth(
                secondary=self.secondary,
                rotation=rotation,
                label=options.label,
                clock=around.clock,
            ),
            limit=None if self.backlog.asked else self._limit(broker.admission),
            state=self._state_file(standings, knowledge),
        )

    def _limit(self, admission: Admission) -> BacklogLimit:
        return BacklogLimit(
            secondary=self.secondary,
            admission=admission,
            options=self.options,
            observer=self.around.observer,
            rng=self.around.rng,
        )

    def _broker(
        self, standings: Standings, knowledge: Knowledge, rotation: Rotation
    ) -> PairedBroker:
        around, options = self.around, self.options
        return PairedBroker(
            primary=self.primary,
            options=options,
            standings=standings,
            admission=Admission(
                knowledge=knowledge,
                measure=around.measure,
                backlog_limit=self.backlog.max_message_size,
            ),
            to_primary=PrimaryLeg(
                primary=self.primary,
                options=options,
                standings=standings,
                knowledge=knowledge,
                pauses=BusyPauses(
                    least=options.busy_pause, rng=around.rng, observer=around.observer
                ),
            ),
            to_backlog=self._leg(self.secondary, rotation, Leg.BACKLOG),
            to_spool=self._spool_leg(),
            inflight=InFlight(options.max_inflight),
            new_id=around.new_id,
            observer=around.observer,
        )

    def _leg(self, broker: Broker, rotation: Rotation, leg: Leg) -> BacklogLeg:
        return BacklogLeg(
            broker=broker,
            rotation=rotation,
            envelope=self.envelope,
            clock=self.around.clock,
            new_id=self.around.new_id,
            observer=self.around.observer,
            leg=leg,
        )

    def _spool_leg(self) -> BacklogLeg | None:
        if self.spool is None:
            return None
        return self._leg(self.spool.broker, self._rotation((self.spool.queue,)), Leg.SPOOL)

    def _rotation(self, queues: tuple[EntityPath, ...]) -> Rotation:
        return Rotation(
            queues=queues,
            cooldown=self.options.backlog_cooldown,
            rng=self.around.rng,
            observer=self.around.observer,
        )

    def _state_file(self, standings: Standings, knowledge: Knowledge) -> StateFile | None:
        if self.state is None:
            return None
        return StateFile(
            path=self.state,
            standings=standings,
            knowledge=knowledge,
            observer=self.around.observer,
        )
