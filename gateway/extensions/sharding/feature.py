"""Sharded queues in a gateway's process, as operators see them."""

import attrs

from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.operations.control_calls import Executors
from gateway.extensions.sharding.configuration import SHARDING
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.shards import SHARDS, ShardReports
from gateway.frontends.admin.control import Executor


def make(plan: ProcessPlan) -> Feature | None:
    return _Sharding(plan.config.home_name) if plan.config.of(SHARDING) else None


@attrs.frozen
class _Sharding(Feature):
    home: str

    def executors(self, parts: Parts) -> Executors:
        [setup] = [each for each in parts.for_wrappers if isinstance(each, ShardSetup)]
        reports = ShardReports(broker=setup.broker, table=setup.table, home=self.home)
        return [Executor(SHARDS, reports.execute)]
