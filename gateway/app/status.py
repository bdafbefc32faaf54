"""Collects how this process is from its parts, each time that somebody asks."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from gateway.app.outside import Outside
from gateway.app.parts import SPOOL, Parts
from gateway.app.waking import expected_wake
from gateway.config.options import Config, Pairing
from gateway.domain.events import BusyPause, Parked
from gateway.domain.failover import State
from gateway.domain.status import (
    MOST_ENTITIES,
    BacklogStatus,
    NamespaceStatus,
    PairStatus,
    QueueStatus,
    Status,
    SyphonStatus,
    TroubledEntity,
    Wake,
)
from gateway.frontends.auth import Authorizer
from gateway.frontends.figures import FiguresFrontend
from gateway.listener.ledger import QueueState
from gateway.pairing.pair import Pair
from gateway.pairing.standings import Standing

BACKLOG_SECONDS: Final = 3.0  # for the secondary to tell the depth; then the last one is told


@attrs.frozen(kw_only=True)
class StatusBoard:
    """`read` is what the admin endpoint asks for. Nothing of it is counted anew for that."""

    config: Config
    outside: Outside
    parts: Parts | None = None  # of a gateway
    states: Callable[[], Sequence[QueueState]] = tuple  # of a listener
    wake: Callable[[], Wake] | None = None  # of a listener; None: as this configuration's should

    async def read(self) -> Status:
        """How the process is now. It may cost a question to the secondary, now and then."""
        await trio.lowlevel.checkpoint()
        pair = None if self.parts is None else self.parts.pair
        pairing = self.config.pairing
        told = None
        if pair is not None and pairing is not None:
            told = await self._pair(pair, pairing)
        watch = self.outside.observer
        return Status(
            at=self.outside.now(),
            started=self.outside.started,
            namespaces=tuple(self._namespaces()),
            pair=told,
            queues=tuple(map(_queue, self.states())),
            wake=expected_wake(self.config) if self.wake is None else self.wake(),
            events=watch.counts(),
            alarms=tuple(watch.alarms()),
        )

    def _namespaces(self) -> list[NamespaceStatus]:
        roles = _roles(self.config.pairing)
        return [
            NamespaceStatus(
                name=name,
                kind=self._kind(name),
                role=roles.get(name, "only"),
                bill=meter.bill(),
            )
            for name, meter in self.outside.meters.items()
            if name != SPOOL
        ]

    def _kind(self, name: str) -> str:
        """The scheme of its URL; a listener's namespace may be the gateway that runs here."""
        known = self.config.namespaces.get(name)
        return "gateway" if known is None else known.url.partition(":")[0]

    async def _pair(self, pair: Pair, pairing: Pairing) -> PairStatus:
        troubled = pair.standings.troubled()
        reading = await pair.depth.read(BACKLOG_SECONDS, troubled=bool(troubled))
        inflight, pauses = pair.broker.inflight, pair.broker.to_primary.pauses
        return PairStatus(
            label=pairing.options.label,
            standings=_counted(troubled),
            entities=tuple(map(_entity, _worst(troubled))),
            backlog=BacklogStatus(
                wanted=pairing.options.backlog_queues,
                usable=pair.rotation.usable,
                pending=reading.pending,
                oldest_age=reading.oldest_age,
                as_of=reading.at,
            ),
            syphon=self._syphon(),
            sends=tuple(pair.broker.sends.all()),
            inflight=inflight.total,
            max_inflight=inflight.limit,
            paused=pauses.running,
            pauses=self.outside.observer.count(BusyPause),
        )

    def _syphon(self) -> SyphonStatus:
        watch = self.outside.observer
        syphons = self.parts.syphons if self.parts is not None else ()
        return SyphonStatus(
            running=bool(syphons),
            moved=watch.moved,
            rate=watch.rate(),
            last_moved=watch.last_moved,
            held=sum(syphon.held for syphon in syphons),
            parked=watch.count(Parked),
        )


def make_figures(
    board: StatusBoard, authorizer: Authorizer, draining: trio.Event
) -> FiguresFrontend:
    """Who answers operators from that board; once `draining` is set it isn't ready any more."""
    # Imported here, as commands that print one message needn't wait for it.
    from gateway.telemetry.metrics import exposition

    return FiguresFrontend(
        authorizer=authorizer, read=board.read, exposition=exposition, draining=draining
    )


def _roles(pairing: Pairing | None) -> Mapping[str, str]:
    if pairing is None:
        return {}
    return {pairing.primary: "primary", pairing.secondary: "secondary"}


def _counted(troubled: Sequence[Standing]) -> Mapping[str, int]:
    counts = Counter(each.state for each in troubled)
    return {state.value: counts[state] for state in State if state is not State.PRIMARY}


def _worst(troubled: Sequence[Standing]) -> Sequence[Standing]:
    """Those that have been there for longest, suspects last."""
    ordered = sorted(troubled, key=lambda each: (each.state is State.SUSPECT, each.since))
    return ordered[:MOST_ENTITIES]


def _entity(standing: Standing) -> TroubledEntity:
    return TroubledEntity(
        entity=standing.entity.name,
        standing=standing.state.value,
        since=standing.since,
        reason=standing.reason,
        pinned=standing.state is State.PINNED,
    )


def _queue(state: QueueState) -> QueueStatus:
    return QueueStatus(
        queue=state.queue.name,
        active_tasks=state.active_tasks,
        total_tasks=state.total_tasks,
        held=state.held,
        completed=state.completed,
        failed=state.failed,
        poisoned=state.poisoned,
        too_late=state.too_late,
        bill=state.bill,
    )
