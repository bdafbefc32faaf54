"""
The executors of the core's control calls: each part of a process with the rows of the table
(`wire/pairgate/control_calls`) that it executes.
"""

from collections.abc import Sequence
from typing import Any

from gateway.app.process_control import ProcessControl
from gateway.domain.operators.control import ControlQuery, ControlState, Operator
from gateway.frontends.admin.control import Executor, at_once
from gateway.pairing.control import Control
from gateway.wire.pairgate import control_calls as table

Executors = Sequence[Executor[Any, Any]]


def of_control(control: Control) -> Executors:
    """The calls of a pair and its syphons. A process without them refuses each order in words."""

    def state(query: ControlQuery, _: Operator) -> ControlState:
        return control.state(query.targets)

    def has_pair() -> bool:
        return control.state(()).has_pair

    def pins() -> bool:
        return has_pair() or control.is_pair_wide

    def steers_syphons() -> bool:
        return control.state(()).has_syphon or control.is_pair_wide

    execute = control.order
    orders_to_syphons = (table.PAUSE, table.RESUME, table.RATE)
    return [
        Executor(table.CONTROL, at_once(state)),
        Executor(table.PROBE, control.probe, has_pair),
        *(Executor(call, execute, pins) for call in (table.FAILOVER, table.FAILBACK)),
        *(Executor(call, execute, steers_syphons) for call in orders_to_syphons),
    ]


def of_process(process: ProcessControl | None) -> Executors:
    """The calls of the process as a whole; none in a worker, whose parent executes them."""
    if process is None:
        return []
    return [Executor(call, process.execute) for call in (table.RELOAD, table.DRAIN)]
