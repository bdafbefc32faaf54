"""A broker that misbehaves on command: every fault that a namespace shows at its port."""

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, Final, Protocol, TypeVar

import attrs
import trio

from gateway.capabilities import (
    Batches,
    Enlists,
    ReceivesAvailable,
    ReceivesDeferred,
    SettlesMany,
    TransactedSettlement,
    send_each,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    LockLost,
    Outcome,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from gateway.domain.message import Delivery, Message, ReceiveMode, Settlement
from gateway.domain.values import value
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]


class Operation(enum.Enum):
    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    RENEW = "renew"
    LEAVE = "leave"  # a receiver ends: the messages are those without a confirmed settlement
    PROBE = "probe"
    MANAGE = "manage"  # inspect, list, create, delete


class Fault(Protocol):
    """A failure that an operation meets instead of its success."""

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        """Do `work`, or not, or later, in that nursery; answer, or not, or with an error."""
        ...


@attrs.frozen
class Refuse:
    """Refuses the operation before it arrives, or fails with any other error."""

    error: Callable[[], BrokerError] = lambda: Unavailable("refused")

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await trio.lowlevel.checkpoint()
        raise self.error()


def busy(seconds: float) -> Refuse:
    return Refuse(lambda: Busy(retry_after=seconds))


@attrs.frozen
class Hang:
    """
    Never does the operation, nor answers; after `seconds` the connection is found to be dead.

    A wait for messages has no deadline, so an adapter must notice a dead connection by itself.
    """

    seconds: float = inf

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await trio.sleep(self.seconds)
        raise Unavailable("the connection is dead")


@attrs.frozen
class Reset:
    """
    Breaks the connection before the operation arrives: the caller can't distinguish it from
    `LoseAnswer`.
    """

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await trio.lowlevel.checkpoint()
        raise OutcomeUnknown("connection lost before the request arrived")


@attrs.frozen
class LoseAnswer:
    """Does the operation, and loses its answer: the connection breaks."""

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await work()
        raise OutcomeUnknown("connection lost after the request")


@attrs.frozen
class SwallowAnswer:
    """Does the operation, and never answers."""

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        await work()
        await trio.sleep_forever()


@attrs.frozen
class Late:
    """
    The request is held for a number of seconds and then done: a success that no caller awaits.
    """

    hold: float

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        nursery.start_soon(self._do, work)
        await trio.sleep_forever()

    async def _do(self, work: Work[T]) -> None:
        await trio.sleep(self.hold)
        with suppress(BrokerError):
            await work()


@value(kw_only=True)
class Call:
    """
    An operation that ended. `outcome` None: it is done, and the caller knows it.

    Or `late`: it was done when its caller had long gone.
    """

    operation: Operation
    entity: EntityPath
    messages: tuple[Message, ...] = ()
    outcome: Outcome | None = None
    error: BrokerError | None = None  # None beside an outcome: the caller stopped waiting
    answered: bool = False  # what it asked gave its answer, though the caller may not have it
    took: float = 0.0  # seconds
    late: bool = False
    settlement: Settlement | None = None  # of one copy
    copy: str = ""  # its sequence number


NAMESPACE: Final = EntityPath("$namespace")  # the entity of an operation that has none


def no_fault(operation: Operation, entity: EntityPath) -> Fault | None:
    return None


def no_latency() -> float:
    return 0.0


@attrs.define(eq=False, kw_only=True)
class FaultyBroker:
    """
    `inner`, but `fault` first decides the fate of each operation.

    It may also crash and restart, and then stands for a process as well as for the network to it:
    all operations under way end, some done, some not, with unknown outcomes; receivers are dead.
    `latency` is drawn before and after each operation. `watch` is called with each operation that
    ended. Needs `run`.
    """

    inner: Broker
    fault: Callable[[Operation, EntityPath], Fault | None] = no_fault
    latency: Callable[[], float] = no_latency
    watch: Callable[[Call], None] = lambda call: None
    receiver: "type[FaultyReceiver] | None" = None  # None: one with what that of `inner` can do
    down: bool = attrs.field(default=False, init=False)
    lives: int = attrs.field(default=1, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _under_way: dict[trio.CancelScope, Call] = attrs.field(factory=dict, init=False)
    _receivers: dict["FaultyReceiver", None] = attrs.field(factory=dict, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled, and do the late operations."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def crash(self) -> None:
        """
        Crash, as seen by the users; acknowledged messages stay. `inner` doesn't know of the crash:
        messages that the users had locked stay locked, as when a client is killed.
        """
        self.down = True
        for scope in self._under_way:
            scope.cancel()

    def restart(self) -> None:
        """Restart, if it's down. Locked messages are free, as a broker forgets its locks."""
        if not self.down:
            return
        self.down, self.lives = False, self.lives + 1
        for receiver in self._receivers:
            receiver.left.set()
        self._receivers.clear()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        call = Call(operation=Operation.SEND, entity=entity, messages=tuple(messages))
        await self.operate(call, lambda: self.inner.send(entity, messages))

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `SendsMany.send_many`, with the latency of one operation; a fault strikes each batch on
        its own. A batch without an answer leaves all outcomes unknown, since the others have no
        answer either.
        """
        if not batches:
            await trio.lowlevel.checkpoint()
            return []
        group = _Group(self, entity, batches)
        verdicts: Sequence[BrokerError | None]
        try:
            verdicts = await self._until_crash(group.calls[0], group.send)
        except BrokerError as error:
            verdicts = [error] * len(batches)
        except trio.Cancelled:
            group.end(None)
            raise
        group.end(verdicts)
        return verdicts

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        self.check_up()
        left = trio.Event()
        inner = await self.home.start(self._hold_open, entity, mode, left)
        many = FaultyManyReceiver if offered(inner, SettlesMany) is not None else FaultyReceiver
        kind = self.receiver or many
        receiver = kind(broker=self, entity=entity, inner=inner, life=self.lives, left=left)
        with self._used(receiver, left):
            yield receiver

    @contextmanager
    def _used(self, receiver: "FaultyReceiver", left: trio.Event) -> Iterator[None]:
        """Keep the receiver while a client uses it, or has died and left its locks."""
        self._receivers[receiver] = None
        try:
            yield
        finally:
            receiver.report_unsettled()
            if not self.down:
                self._receivers.pop(receiver, None)
                left.set()

    async def _hold_open(
        self,
        entity: EntityPath,
        mode: ReceiveMode,
        left: trio.Event,
        *,
        task_status: trio.TaskStatus[Receiver],
    ) -> None:
        """Own the receiver of `inner`, so that a client that dies doesn't give back its locks."""
        async with self.inner.open_receiver(entity, mode) as inner:
            task_status.started(inner)
            await left.wait()

    async def probe(self, entity: EntityPath) -> None:
        call = Call(operation=Operation.PROBE, entity=entity)
        await self.operate(call, lambda: self.inner.probe(entity))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        call = Call(operation=Operation.MANAGE, entity=entity)
        return await self.operate(call, lambda: self.inner.inspect(entity))

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        call = Call(operation=Operation.MANAGE, entity=NAMESPACE)
        return await self.operate(call, lambda: self.inner.list_queues(prefix, skip=skip, top=top))

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        call = Call(operation=Operation.MANAGE, entity=entity)
        return await self.operate(call, lambda: self.inner.create_queue(entity, properties))

    async def delete_queue(self, entity: EntityPath) -> None:
        call = Call(operation=Operation.MANAGE, entity=entity)
        await self.operate(call, lambda: self.inner.delete_queue(entity))

    async def operate(self, call: Call, work: Work[T]) -> T:
        """Do the operation under the present fault, and report its end to `watch`."""
        outcome: Outcome | None = Outcome.UNKNOWN  # also of a cancellation
        told: BrokerError | None = None
        began, answered, ended = trio.current_time(), False, False

        async def arrive() -> T:
            nonlocal answered
            self.check_up()
            answer = await work()
            answered = True
            if ended:
                self.watch(attrs.evolve(call, late=True))
            return answer

        try:
            answer = await self._until_crash(call, partial(self._strike, call, arrive))
            outcome = None
        except BrokerError as error:
            outcome, told = error.outcome, error
            raise
        else:
            return answer
        finally:
            ended, took = True, trio.current_time() - began
            end = attrs.evolve(call, outcome=outcome, error=told, answered=answered, took=took)
            self.watch(end)

    def under_way(self, operation: Operation) -> int:
        """Return the number of these operations that have no answer yet."""
        return sum(call.operation is operation for call in self._under_way.values())

    def check_up(self) -> None:
        if self.down:
            raise Unreachable("connection refused")

    async def _until_crash(self, call: Call, work: Work[T]) -> T:
        self.check_up()
        with trio.CancelScope() as scope:
            self._under_way[scope] = call
            try:
                return await work()
            finally:
                del self._under_way[scope]
        raise OutcomeUnknown("it crashed")

    async def _strike(self, call: Call, arrive: Work[T]) -> T:
        if way := self.latency():
            await trio.sleep(way)
        if (fault := self.fault(call.operation, call.entity)) is not None:
            return await fault.strike(arrive, self.home)
        answer = await arrive()
        await trio.sleep(self.latency())  # the caller may stop waiting at this very moment
        return answer

    @property
    def home(self) -> trio.Nursery:
        assert self._nursery is not None, "FaultyBroker.run isn't running"
        return self._nursery


@attrs.define(eq=False)
class _Group:
    """A call of `send_many`. Batches without a fault go on together."""

    broker: FaultyBroker
    entity: EntityPath
    batches: Batches
    calls: list[Call] = attrs.field(init=False)
    began: float = attrs.field(factory=trio.current_time, init=False)
    ended: bool = attrs.field(default=False, init=False)
    answered: set[int] = attrs.field(factory=set, init=False)  # those that were done
    scopes: list[trio.CancelScope] = attrs.field(factory=list, init=False)  # of the strikes

    def __attrs_post_init__(self) -> None:
        self.calls = [
            Call(operation=Operation.SEND, entity=self.entity, messages=tuple(batch))
            for batch in self.batches
        ]

    async def send(self) -> Sequence[BrokerError | None]:
        await trio.sleep(self.broker.latency())
        verdicts: dict[int, BrokerError | None] = {}
        together: list[int] = []
        strikes: list[trio.Event] = []
        try:
            for index in range(len(self.batches)):
                fault = self.broker.fault(Operation.SEND, self.entity)
                if fault is None:
                    together.append(index)
                else:  # a batch with a late answer doesn't hold up those behind it
                    strikes.append(trio.Event())
                    self.broker.home.start_soon(self._strike, fault, index, verdicts, strikes[-1])
            found = await self._arrive(together)
            verdicts.update(zip(together, found, strict=True))
            for over in strikes:
                await over.wait()
        finally:
            for scope in self.scopes:
                scope.cancel()
        await trio.sleep(self.broker.latency())  # the caller may stop waiting at this very moment
        return [verdicts[index] for index in range(len(self.batches))]

    async def _strike(
        self,
        fault: Fault,
        index: int,
        verdicts: dict[int, BrokerError | None],
        over: trio.Event,
    ) -> None:
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            try:
                await fault.strike(partial(self._arrive_alone, index), self.broker.home)
            except BrokerError as error:
                verdicts[index] = error
            else:
                verdicts[index] = None
        over.set()

    def end(self, verdicts: Sequence[BrokerError | None] | None) -> None:
        """
        Report to `watch` how each batch ended for the caller; None: it stopped waiting. All have
        ended at this moment, and those that were done come first.
        """
        self.ended, took = True, trio.current_time() - self.began
        told = [None] * len(self.calls) if verdicts is None else verdicts
        for index in sorted(range(len(self.calls)), key=lambda index: told[index] is not None):
            call, error = self.calls[index], told[index]
            outcome = None if error is None else error.outcome
            end = attrs.evolve(
                call,
                outcome=Outcome.UNKNOWN if verdicts is None else outcome,
                error=error,
                answered=index in self.answered,
                took=took,
            )
            self.broker.watch(end)

    async def _arrive_alone(self, index: int) -> None:
        self.broker.check_up()
        await self.broker.inner.send(self.entity, self.batches[index])
        self.answered.add(index)
        if self.ended:
            self.broker.watch(attrs.evolve(self.calls[index], late=True))

    async def _arrive(self, together: Sequence[int]) -> Sequence[BrokerError | None]:
        if not together:
            return []
        batches = [self.batches[index] for index in together]
        try:
            self.broker.check_up()
        except BrokerError as error:
            return [error] * len(batches)
        found = await send_each(self.broker.inner, self.entity, batches)
        self.answered.update(i for i, error in zip(together, found, strict=True) if error is None)
        return found


@attrs.define(eq=False, kw_only=True)
class FaultyReceiver:
    """Receives from a `FaultyBroker`, until that crashes."""

    broker: FaultyBroker
    entity: EntityPath
    inner: Receiver
    life: int
    left: trio.Event
    _unsettled: dict[Any, Delivery] = attrs.field(factory=dict, init=False)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        self._check_same_life(Unavailable("the connection is lost"))
        call = Call(operation=Operation.RECEIVE, entity=self.entity)
        deliveries = await self.broker.operate(call, lambda: self._take(limit))
        self._unsettled.update((each.lock_token, each) for each in deliveries if each.lock_token)
        return deliveries

    async def _take(self, limit: int) -> Sequence[Delivery]:
        deliveries = await self.inner.receive(limit)
        if self.broker.fault(Operation.RECEIVE, self.entity) is not None:
            # The namespace failed while we waited: received messages come back with their locks.
            raise Unavailable("the connection was lost while waiting")
        return deliveries

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        self._check_same_life(Unavailable("the connection is lost"))
        inner = required(self.inner, ReceivesDeferred)
        call = Call(operation=Operation.RECEIVE, entity=self.entity)
        deliveries = await self.broker.operate(
            call, lambda: inner.receive_deferred(sequence_numbers)
        )
        self._unsettled.update((each.lock_token, each) for each in deliveries if each.lock_token)
        return deliveries

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._check_same_life(LockLost("locks don't survive a restart"))
        call = Call(
            operation=Operation.SETTLE,
            entity=self.entity,
            messages=(delivery.message,),
            settlement=settlement,
            copy=str(delivery.sequence_number),
        )
        await self.broker.operate(call, lambda: self.inner.settle(delivery, settlement))
        self._unsettled.pop(delivery.lock_token, None)

    def enlist(self, delivery: Delivery, settlement: Settlement) -> TransactedSettlement:
        self._check_same_life(LockLost("locks don't survive a restart"))
        return required(self.inner, Enlists).enlist(delivery, settlement)

    async def renew(self, delivery: Delivery) -> datetime:
        self._check_same_life(LockLost("locks don't survive a restart"))
        call = Call(operation=Operation.RENEW, entity=self.entity, messages=(delivery.message,))
        return await self.broker.operate(call, lambda: self.inner.renew(delivery))

    def report_unsettled(self) -> None:
        messages = tuple(delivery.message for delivery in self._unsettled.values())
        call = Call(operation=Operation.LEAVE, entity=self.entity, messages=messages)
        self.broker.watch(attrs.evolve(call, outcome=Outcome.UNKNOWN))

    def _check_same_life(self, error: BrokerError) -> None:
        self.broker.check_up()
        if self.life != self.broker.lives:
            raise error


class FaultyManyReceiver(FaultyReceiver):
    """
    The same, of a namespace of our own: it settles several deliveries in one step, and knows when
    nothing is available.
    """

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        self._check_same_life(Unavailable("the connection is lost"))
        inner = required(self.inner, ReceivesAvailable)
        call = Call(operation=Operation.RECEIVE, entity=self.entity)
        deliveries = await self.broker.operate(call, lambda: inner.receive_available(limit))
        self._unsettled.update((each.lock_token, each) for each in deliveries if each.lock_token)
        return deliveries

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`; a fault strikes each on its own."""
        verdicts: list[BrokerError | None] = []
        for delivery, settlement in settlements:
            try:
                await self.settle(delivery, settlement)
            except BrokerError as error:
                verdicts.append(error)
            else:
                verdicts.append(None)
        return verdicts
