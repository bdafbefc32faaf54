"""
A namespace whose way from this process can be cut.

The namespace itself is never touched: an operation that is cut off isn't handed over, so it is
never done late or twice by a drill.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import attrs
import trio

from gateway.capabilities import sends_in
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, Unavailable, Unreachable
from gateway.extensions.drill.order import Drill, DrillFault
from gateway.interception import Call, CallKind, WaitInterceptor

T = TypeVar("T")


@attrs.define(eq=False)
class Cut(WaitInterceptor):
    """
    The drill that cuts the way to a namespace, if there is a drill. The drill ends at its deadline
    even if nobody calls `restore`.
    """

    # A wait for messages crosses the way in `wait`, again after each interruption.
    kinds: ClassVar[frozenset[CallKind]] = frozenset(CallKind) - {CallKind.WAIT}

    _drill: Drill | None = attrs.field(default=None, init=False)
    _deadline: float = attrs.field(default=0.0, init=False)  # as `trio.current_time()`
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The pending waits for messages, with their entities: a drill that begins interrupts them.
    _waits: dict[trio.CancelScope, EntityPath | None] = attrs.field(factory=dict, init=False)

    def begin(self, drill: Drill, deadline: float) -> None:
        """Cut the way until `restore`, or until the deadline."""
        self._drill, self._deadline, self._ended = drill, deadline, trio.Event()
        for scope, entity in list(self._waits.items()):
            if self.striking(entity):
                scope.cancel()

    def restore(self) -> None:
        """Restore the way. Operations that hang or are delayed go on at once."""
        self._drill = None
        self._ended.set()

    def striking(self, entity: EntityPath | None) -> Drill | None:
        """
        The drill that an operation on this entity meets now. None for an entity stands for the
        whole namespace.
        """
        drill = self._drill
        if drill is None or trio.current_time() >= self._deadline:
            return None
        meets = drill.is_whole if entity is None else drill.covers(entity)
        return drill if meets else None

    async def cross(self, entity: EntityPath | None) -> None:
        """
        Return once an operation on this entity may proceed: at once and without a checkpoint where
        no drill strikes; after the delay of a slow way.

        Raises:
            Unreachable: the way to the whole namespace is refused, or hung until now.
            Unavailable: the same for some of its entities.
            Busy: the namespace asks to wait.
        """
        drill = self.striking(entity)
        if drill is None:
            return
        match drill.fault:
            case DrillFault.REFUSE:
                raise _unavailable(drill, "refused")
            case DrillFault.BUSY:
                # The pause that a client is asked for must not outlive the drill.
                seconds = min(drill.delay, self._left)
                raise Busy("a drill: the namespace is busy", retry_after=seconds)
            case DrillFault.SLOW:
                with trio.move_on_after(min(drill.delay, self._left)):
                    await self._ended.wait()
            case DrillFault.HANG:
                with trio.move_on_after(self._left):
                    await self._ended.wait()
                raise _unavailable(drill, "gave no answer")

    def before(self, call: Call) -> Awaitable[None] | None:
        """As `cross`: a transaction crosses the way if all of its sends do."""
        entities = [each.entity for each in sends_in(call.work)] if call.work else [call.entity]
        if self._drill is None or not any(map(self.striking, entities)):
            return None
        return self._cross_each(entities)

    async def _cross_each(self, entities: Sequence[EntityPath | None]) -> None:
        for entity in entities:
            await self.cross(entity)

    async def wait(self, call: Call, receive: Callable[[], Awaitable[T]]) -> T:
        """As `receive`, once the way is crossed; a drill that begins meanwhile interrupts it."""
        while True:
            await self.cross(call.entity)
            with trio.CancelScope() as scope, self._interrupting(scope, call.entity):
                return await receive()

    @contextmanager
    def _interrupting(self, scope: trio.CancelScope, entity: EntityPath | None) -> Iterator[None]:
        self._waits[scope] = entity
        try:
            yield
        finally:
            del self._waits[scope]

    @property
    def _left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - trio.current_time())


def _unavailable(drill: Drill, what: str) -> Unavailable:
    kind = Unreachable if drill.is_whole else Unavailable
    return kind(f"a drill: the way to namespace {drill.namespace} {what}")
