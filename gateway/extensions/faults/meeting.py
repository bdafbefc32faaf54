"""
An operation of a client meets a fault.

Only operations that a connection of an endpoint has begun do. The namespace itself is never broken,
and keeps what it has accepted.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, OutcomeUnknown, Unavailable
from gateway.extensions.faults.faults import FaultInForce, Faults
from gateway.extensions.faults.order import FaultKind, FaultOperation, FaultOrder
from gateway.net.visits import current_visit


def strike(faults: Faults, operation: FaultOperation, entity: EntityPath) -> FaultInForce | None:
    """The fault that this operation of this task's client meets; it counts."""
    if not faults.in_force:
        return None
    client = current_visit().client_name
    return faults.strike(operation, entity, client) if client else None


def begin(fault: FaultInForce) -> Awaitable[None] | None:
    """
    Let the operation meet the fault; return the wait of a delayed one.

    Raises:
        BrokerError: the operation isn't to be done.
    """
    kind = fault.order.kind
    if kind is FaultKind.DELAY:
        return _delayed(fault)
    if kind is FaultKind.LOSE:
        return None
    if kind is FaultKind.DROP:
        current_visit().hang_up()
    raise _error_of(fault.order)


def finish(fault: FaultInForce) -> None:
    """Note that the operation is done, and its answer not written yet."""
    if fault.order.kind is FaultKind.LOSE:
        current_visit().hang_up()


@asynccontextmanager
async def meeting(
    faults: Faults, operation: FaultOperation, entity: EntityPath
) -> AsyncIterator[None]:
    """
    A context for such an operation.

    Raises:
        BrokerError: the operation isn't to be done.
    """
    fault = strike(faults, operation, entity)
    if fault is not None and (wait := begin(fault)) is not None:
        await wait
    yield
    if fault is not None:
        finish(fault)


async def _delayed(fault: FaultInForce) -> None:
    with trio.move_on_after(fault.order.delay):
        await fault.ended.wait()


def _error_of(order: FaultOrder) -> BrokerError:
    text = f"a fault: {order.kind.value}"
    error: BrokerError
    match order.kind:
        case FaultKind.BUSY:
            error = Busy(text, retry_after=order.delay)
        case FaultKind.DETACH:
            error = OutcomeUnknown(text)
        case _:
            error = Unavailable(text)
    error.is_final = True
    return error
