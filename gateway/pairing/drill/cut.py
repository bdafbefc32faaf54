"""
A namespace whose way from this process can be cut.

The namespace itself is never touched: an operation that is cut off isn't handed over, so it is
never done late or twice by a drill.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import ClassVar, NoReturn, TypeVar

import attrs
import trio

from gateway.capabilities import (
    Batches,
    ChangesBody,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    Describes,
    Enlists,
    HidesMessages,
    Identifies,
    KeepsMessages,
    Peeks,
    Placed,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
    Schedules,
    SendEach,
    SendsTogether,
    SessionReceiver,
    Sessions,
    SettlesByToken,
    SettlesMany,
    TakesBack,
    Topology,
    TransactedWork,
    Transacts,
    Updates,
    Verifies,
    sends_in,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Busy, Unavailable, Unreachable
from gateway.domain.identity import Identity
from gateway.domain.message import Delivery, Message, ReceiveMode, Settlement
from gateway.domain.operators.drill import Drill, DrillFault
from gateway.forwarding_broker import SendWrapper
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver

T = TypeVar("T")


@attrs.define(eq=False)
class Cut:
    """
    The drill that cuts the way to a namespace, if there is a drill. The drill ends at its deadline
    even if nobody calls `end`.
    """

    _drill: Drill | None = attrs.field(default=None, init=False)
    _deadline: float = attrs.field(default=0.0, init=False)  # as `trio.current_time()`
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The pending waits for messages, with their entities: a drill that begins interrupts them.
    _waits: dict[trio.CancelScope, EntityPath] = attrs.field(factory=dict, init=False)

    def begin(self, drill: Drill, deadline: float) -> None:
        """Cut the way until `end`, or until the deadline."""
        self._drill, self._deadline, self._ended = drill, deadline, trio.Event()
        for scope, entity in list(self._waits.items()):
            if drill.covers(entity):
                scope.cancel()

    def end(self) -> None:
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
                await trio.lowlevel.checkpoint()
                raise _unavailable(drill, "refused")
            case DrillFault.BUSY:
                await trio.lowlevel.checkpoint()
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

    async def wait(self, entity: EntityPath, receive: Callable[[], Awaitable[T]]) -> T:
        """
        As `receive`, which waits for messages; a drill that begins meanwhile interrupts it.

        Raises:
            BrokerError: as `cross`, and as `receive`.
        """
        while True:
            await self.cross(entity)
            with trio.CancelScope() as scope, self._interrupting(scope, entity):
                return await receive()

    @contextmanager
    def _interrupting(self, scope: trio.CancelScope, entity: EntityPath) -> Iterator[None]:
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


@attrs.frozen(eq=False)
class CutBroker(SendWrapper):
    """
    `inner`, behind a way that a drill can cut. Operations of `DeletesByVersion`, `Describes`,
    `Topology`, `Updates` and `Verifies` aren't cut: no send and no receive needs them.
    """

    _inner: Broker
    cut: Cut

    forwards: ClassVar[frozenset[type]] = frozenset(
        (DeletesByVersion, Describes, Placed, SendsTogether, Topology, Updates, Verifies)
    )

    @property
    def inner(self) -> Broker:
        return self._inner

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        try:
            await self.cut.cross(entity)
        except BrokerError as error:
            return [error] * len(batches)
        return await send(entity, batches)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self._inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`: it crosses the way if all of its sends do."""
        for each in sends_in(work):
            await self.cut.cross(each.entity)
        await required(self._inner, Transacts).commit(work)

    async def probe(self, entity: EntityPath) -> None:
        await self.cut.cross(entity)
        await self._inner.probe(entity)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        await self.cut.cross(entity)
        async with self._inner.open_receiver(entity, mode) as inner:
            yield CutReceiver(inner=inner, entity=entity, cut=self.cut, mode=mode)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await self.cut.cross(entity)
        return await self._inner.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        await self.cut.cross(None)
        return await self._inner.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        await self.cut.cross(entity)
        return await self._inner.create_queue(entity, properties)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.cut.cross(entity)
        await self._inner.delete_queue(entity)

    async def identity(self) -> Identity:
        """As `Identifies.identity`."""
        await self.cut.cross(None)
        return await required(self._inner, Identifies).identity()

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`."""
        await self.cut.cross(entity)
        inner = required(self._inner, Peeks)
        return await inner.peek(entity, from_sequence=from_sequence, limit=limit)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`."""
        await self.cut.cross(entity)
        return await required(self._inner, Schedules).schedule(entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        await self.cut.cross(entity)
        await required(self._inner, Schedules).cancel_scheduled(entity, sequence_numbers)

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`."""
        await self.cut.cross(entity)
        inner = required(self._inner, DeletesMessages)
        return await inner.delete_messages(entity, limit, before=before, session_id=session_id)

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`."""
        await self.cut.cross(entity)
        await required(self._inner, Clears).clear_queue(entity)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """As `Sessions.open_session`."""
        return self._open_session(entity, session_id, mode)

    @asynccontextmanager
    async def _open_session(
        self, entity: EntityPath, session_id: str | None, mode: ReceiveMode
    ) -> AsyncIterator[SessionReceiver]:
        await self.cut.cross(entity)
        inner = required(self._inner, Sessions)
        async with inner.open_session(entity, session_id, mode) as session:
            yield CutSession(inner=session, entity=entity, cut=self.cut, mode=mode)

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`."""
        await self.cut.cross(entity)
        inner = required(self._inner, Sessions)
        return await inner.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)


@attrs.frozen(eq=False, kw_only=True)
class CutReceiver(Wrapper):
    """A receiver behind a way that a drill can cut. Leaving it releases its locks in any case."""

    _inner: Receiver
    entity: EntityPath
    cut: Cut
    mode: ReceiveMode

    forwards: ClassVar[frozenset[type]] = frozenset(
        (ChangesBody, Enlists, KeepsMessages, SettlesByToken, TakesBack)
    )

    @property
    def inner(self) -> Receiver:
        return self._inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        if self.mode is not ReceiveMode.PEEK_LOCK:  # an interrupted receive could lose messages
            await self.cut.cross(self.entity)
            return await self._inner.receive(limit)
        return await self.cut.wait(self.entity, lambda: self._inner.receive(limit))

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        await self.cut.cross(self.entity)
        return await required(self._inner, ReceivesAvailable).receive_available(limit)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.cut.cross(self.entity)
        await self._inner.settle(delivery, settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        await self.cut.cross(self.entity)
        return await self._inner.renew(delivery)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        await self.cut.cross(self.entity)
        return await required(self._inner, SettlesMany).settle_many(settlements)

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`."""
        await self.cut.cross(self.entity)
        return await required(self._inner, Polls).poll(limit, lock)

    async def hide(
        self, delivery: Delivery, duration: timedelta, body: bytes | None = None
    ) -> datetime:
        """As `HidesMessages.hide`."""
        await self.cut.cross(self.entity)
        return await required(self._inner, HidesMessages).hide(delivery, duration, body)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        await self.cut.cross(self.entity)
        return await required(self._inner, ReceivesDeferred).receive_deferred(sequence_numbers)


@attrs.frozen(eq=False, kw_only=True)
class CutSession(CutReceiver):
    """A `SessionReceiver` behind a way that a drill can cut."""

    _inner: SessionReceiver

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    @property
    def locked_until(self) -> datetime:
        return self._inner.locked_until

    async def wait_lost(self) -> NoReturn:
        await self._inner.wait_lost()

    async def renew_session(self) -> datetime:
        await self.cut.cross(self.entity)
        return await self._inner.renew_session()

    async def get_state(self) -> bytes | None:
        await self.cut.cross(self.entity)
        return await self._inner.get_state()

    async def set_state(self, state: bytes | None) -> None:
        await self.cut.cross(self.entity)
        await self._inner.set_state(state)
