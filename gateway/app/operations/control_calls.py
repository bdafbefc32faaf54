"""
The executors of control calls: each part of a process with the rows of the table
(`wire/pairgate/control_calls`) that it executes.
"""

from collections.abc import Sequence
from typing import Any

from gateway.app.process_control import ProcessControl
from gateway.domain.errors import NotSupported
from gateway.domain.operators.control import ControlQuery, ControlState, Operator
from gateway.domain.operators.drill import DrillAnswer, DrillState
from gateway.domain.operators.redrive import Redriven, RedriveOrder, Survey
from gateway.frontends.admin.control import Executor, at_once
from gateway.pairing.control import Control
from gateway.pairing.drill.drills import Drills
from gateway.pairing.syphon.purge import Purge
from gateway.pairing.syphon.redrive import Redrive
from gateway.wire.pairgate import control_calls as table
from gateway.wire.pairgate.control_call import NoKeys

Executors = Sequence[Executor[Any, Any]]


def of_control(control: Control) -> Executors:
    """The calls of a pair and its syphons. A process without them refuses each order in words."""

    def state(query: ControlQuery, _: Operator) -> ControlState:
        return control.state(query.targets)

    def has_pair() -> bool:
        return control.state(()).has_pair

    def has_syphon() -> bool:
        return control.state(()).has_syphon

    execute = at_once(control.execute)
    return [
        Executor(table.CONTROL, at_once(state)),
        Executor(table.PROBE, control.probe, has_pair),
        *(Executor(call, execute, has_pair) for call in (table.FAILOVER, table.FAILBACK)),
        *(Executor(call, execute, has_syphon) for call in (table.PAUSE, table.RESUME, table.RATE)),
    ]


def of_drills(drills: Drills) -> Executors:
    def state(_: NoKeys, __: Operator) -> DrillState:
        return drills.state()

    def end(_: NoKeys, operator: Operator) -> DrillAnswer:
        return drills.end(operator)

    def allowed() -> bool:
        return drills.state().allowed

    return [
        Executor(table.DRILLS, at_once(state)),
        Executor(table.DRILL, at_once(drills.begin), allowed),
        Executor(table.END_DRILL, at_once(end), allowed),
    ]


def of_process(process: ProcessControl | None) -> Executors:
    """The calls of the process as a whole; none in a worker, whose parent executes them."""
    if process is None:
        return []
    return [Executor(call, process.execute) for call in (table.RELOAD, table.DRAIN)]


def of_backlog(purge: Purge, backlog: Redrive, spool: Redrive | None) -> Executors:
    """The calls about messages in the backlog, or in the spool."""

    async def redrive(order: RedriveOrder, _: Operator) -> Survey | Redriven:
        redrive = spool if order.spool else backlog
        if redrive is None:
            raise NotSupported("this gateway has no spool")
        if not order.executes:
            return await redrive.survey(order.selection, order.peek)
        return await redrive.run(
            order.selection, moved=lambda _: None, rate=order.rate, most=order.most
        )

    return [Executor(table.PURGE, purge.execute), Executor(table.REDRIVE, redrive)]
