"""A redrive in a gateway's process: for the backlog, and for the spool."""

import attrs

from gateway.app.assembly.pairs import make_envelope
from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.operations.control_calls import Executors
from gateway.app.runtime import Runtime
from gateway.config.options import Pairing
from gateway.domain.errors import NotSupported
from gateway.domain.operators.control import Operator
from gateway.extensions.redrive.order import REDRIVE, Redriven, RedriveOrder, Survey
from gateway.extensions.redrive.redrive import Redrive
from gateway.frontends.admin.control import Executor
from gateway.pairing.options import BacklogTimeToLive
from gateway.ports import Broker


def make(plan: ProcessPlan) -> Feature | None:
    pairing = plan.config.pairing
    return None if pairing is None else _Redriving(pairing)


@attrs.frozen
class _Redriving(Feature):
    pairing: Pairing

    def executors(self, parts: Parts) -> Executors:
        runtime, opened = parts.plan.runtime, parts.opened
        assert opened.secondary is not None, "there is a pair"
        backlog = make_redrive(self.pairing, opened.secondary, runtime)
        spool = opened.spool
        of_spool = None if spool is None else make_redrive(self.pairing, spool, runtime)
        return [executor(backlog, of_spool)]


def executor(backlog: Redrive, spool: Redrive | None) -> Executor[RedriveOrder, Survey | Redriven]:
    async def redrive(order: RedriveOrder, _: Operator) -> Survey | Redriven:
        redrive = spool if order.spool else backlog
        if redrive is None:
            raise NotSupported("this gateway has no spool")
        if not order.executes:
            return await redrive.survey(order.selection, order.peek)
        return await redrive.run(
            order.selection,
            moved=lambda _: None,
            rate=order.rate,
            most=order.most,
            reason=order.reason,
        )

    return Executor(REDRIVE, redrive)


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
