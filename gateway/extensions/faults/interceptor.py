"""The embedded namespace of a process, as clients meet it while faults are in force."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

import attrs
import trio

from gateway.capabilities import sends_in
from gateway.domain.entity import EntityPath
from gateway.extensions.faults.faults import FaultInForce, Faults
from gateway.extensions.faults.meeting import begin, finish, strike
from gateway.extensions.faults.order import FaultOperation, FaultOrder
from gateway.interception import Call, CallKind, SplittingInterceptor, WaitInterceptor
from gateway.net.visits import current_visit

T = TypeVar("T")

_OPERATIONS: Final[Mapping[CallKind, FaultOperation]] = {
    CallKind.SEND: FaultOperation.SEND,
    CallKind.COMMIT: FaultOperation.SEND,
    CallKind.SCHEDULE: FaultOperation.SEND,
    CallKind.OPEN_SESSION: FaultOperation.RECEIVE,
    CallKind.RECEIVE: FaultOperation.RECEIVE,
    CallKind.RECEIVE_DEFERRED: FaultOperation.RECEIVE,
    CallKind.SETTLE: FaultOperation.SETTLE,
    CallKind.RENEW: FaultOperation.RENEW,
    CallKind.RENEW_SESSION: FaultOperation.RENEW,
    CallKind.HIDE: FaultOperation.RENEW,
}


@attrs.define(eq=False)
class FaultInterceptor(WaitInterceptor, SplittingInterceptor):
    """Lets each operation of a client meet the first fault that is meant for it."""

    # A wait for messages meets a fault in `wait`, again after each interruption.
    kinds: ClassVar[frozenset[CallKind]] = frozenset(_OPERATIONS)

    faults: Faults
    # The pending waits for messages, with their entities and clients: a fault that is added
    # interrupts them.
    _waits: dict[trio.CancelScope, tuple[EntityPath, str]] = attrs.field(factory=dict, init=False)
    _met: dict[Call, FaultInForce] = attrs.field(factory=dict, init=False)  # not over yet

    def __attrs_post_init__(self) -> None:
        self.faults.on_added = self._interrupt

    def splits(self, call: Call) -> bool:
        """True if a fault is meant for the call: each batch or settlement counts."""
        several = len(call.batches) > 1 or len(call.settlements) > 1
        if not several or not self.faults.in_force or call.entity is None:
            return False
        client = current_visit().client_name
        operation = _OPERATIONS[call.kind]
        return bool(client) and self.faults.find(operation, call.entity, client) is not None

    def before(self, call: Call) -> Awaitable[None] | None:
        if not self.faults.in_force:
            return None
        entities = [each.entity for each in sends_in(call.work)] if call.work else [call.entity]
        for entity in entities:
            if entity is not None and (
                fault := strike(self.faults, _OPERATIONS[call.kind], entity)
            ):
                wait = begin(fault)
                if wait is None:
                    self._met[call] = fault
                return wait
        return None

    def after(self, call: Call, result: Any) -> None:
        fault = self._met.pop(call, None) if self._met else None
        if fault is not None:
            finish(fault)

    def error(self, call: Call, error: BaseException) -> None:
        self._met.pop(call, None)

    async def wait(self, call: Call, receive: Callable[[], Awaitable[T]]) -> T:
        """As `receive`; a fault that is added meanwhile interrupts it."""
        assert call.entity is not None, "a receiver is of one entity"
        met: FaultInForce | None = None
        while True:
            fault = None if met else strike(self.faults, FaultOperation.RECEIVE, call.entity)
            if fault is not None and (wait := begin(fault)) is not None:
                await wait
            elif fault is not None:
                met = fault
            with trio.CancelScope() as scope, self._interrupting(scope, call.entity):
                received = await receive()
                if met is not None:
                    finish(met)
                return received

    def _interrupt(self, order: FaultOrder) -> None:
        for scope, (entity, client) in list(self._waits.items()):
            if client and order.meets(FaultOperation.RECEIVE, entity, client):
                scope.cancel()

    @contextmanager
    def _interrupting(self, scope: trio.CancelScope, entity: EntityPath) -> Iterator[None]:
        self._waits[scope] = entity, current_visit().client_name
        try:
            yield
        finally:
            del self._waits[scope]
