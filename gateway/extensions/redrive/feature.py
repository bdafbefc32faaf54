"""A redrive in a gateway's process: for the backlog, and for the spool."""

from collections.abc import Callable

import attrs

from gateway.app.assembly.pairs import make_envelope
from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.operations.control_calls import Executors
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Pairing
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.operators.control import Operator
from gateway.extensions.redrive.moving import LetterMover
from gateway.extensions.redrive.order import (
    DEAD_LETTERS,
    REDRIVE,
    DeadLetterList,
    DeadLetterQuery,
    Redriven,
    RedriveOrder,
    Survey,
)
from gateway.extensions.redrive.queues import list_dead_letters
from gateway.extensions.redrive.redrive import QueueRedrive, Redrive
from gateway.frontends.admin.control import Executor
from gateway.pairing.options import BacklogTimeToLive
from gateway.ports import Broker


def make(plan: ProcessPlan) -> Feature:
    return _Redriving(plan.config)


@attrs.frozen
class _Redriving(Feature):
    config: Config

    def executors(self, parts: Parts) -> Executors:
        runtime, opened, pairing = parts.plan.runtime, parts.opened, self.config.pairing

        def named(name: str) -> Broker:
            name = name or self.config.home_name
            if name not in parts.namespaces:
                names = " or ".join(parts.namespaces)
                raise InvalidRequest(f"namespace: {names} expected, got {name!r:.100}")
            return parts.namespaces[name]

        def of_queue(order: RedriveOrder) -> QueueRedrive:
            return QueueRedrive.of(order, named(order.namespace), runtime)

        if pairing is None or opened.secondary is None:
            return [executor(None, None, of_queue), listing(named)]
        backlog = make_redrive(pairing, opened.secondary, runtime)
        spool = opened.spool
        of_spool = None if spool is None else make_redrive(pairing, spool, runtime)
        return [executor(backlog, of_spool, of_queue), listing(named)]


def executor(
    backlog: Redrive | None,
    spool: Redrive | None,
    of_queue: Callable[[RedriveOrder], QueueRedrive] | None = None,
) -> Executor[RedriveOrder, Survey | Redriven]:
    def mover(order: RedriveOrder) -> LetterMover:
        if order.queue and of_queue is not None:
            return of_queue(order)
        redrive = spool if order.spool else backlog
        if redrive is None:
            raise NotSupported(f"this gateway has no {'spool' if order.spool else 'backlog'}")
        return redrive

    async def redrive(order: RedriveOrder, _: Operator) -> Survey | Redriven:
        redrive = mover(order)
        if not order.executes:
            return await redrive.survey(order.selected, order.peek, order.preview)
        return await redrive.run(
            order.selected,
            add=lambda _: None,
            rate=order.rate,
            most=order.most,
            reason=order.reason,
        )

    return Executor(REDRIVE, redrive)


def listing(named: Callable[[str], Broker]) -> Executor[DeadLetterQuery, DeadLetterList]:
    async def listed(query: DeadLetterQuery, _: Operator) -> DeadLetterList:
        return await list_dead_letters(named(query.namespace))

    return Executor(DEAD_LETTERS, listed)


def make_redrive(
    pairing: Pairing, source: Broker, runtime: Runtime, label: str | None = None
) -> Redrive:
    """Redrive for the backlog with that label, else with the pair's own."""
    label = label or pairing.options.label
    return Redrive(
        source=source,
        label=label,
        queues=pairing.options.backlog_queues,
        envelope=make_envelope(pairing, label, runtime, makes_key=runtime.makes_stores),
        deducts=pairing.syphon.backlog_ttl is BacklogTimeToLive.DEDUCT,
        clock=runtime.now,
        new_id=runtime.new_id,
        observer=runtime.observer,
    )
