"""Purges in a gateway's process."""

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.operations.control_calls import Executors
from gateway.config.options import Pairing
from gateway.extensions.purge.order import PURGE
from gateway.extensions.purge.purge import Purge
from gateway.frontends.admin.control import Executor


def make(plan: ProcessPlan) -> Feature | None:
    pairing = plan.config.pairing
    return None if pairing is None else _Purging(pairing)


@attrs.frozen
class _Purging(Feature):
    pairing: Pairing

    def executors(self, parts: Parts) -> Executors:
        runtime, secondary = parts.plan.runtime, parts.opened.secondary
        assert secondary is not None, "there is a pair"
        purge = Purge(
            source=secondary,
            label=self.pairing.options.label,
            clock=runtime.now,
            observer=runtime.observer,
        )
        return [Executor(PURGE, purge.execute)]
