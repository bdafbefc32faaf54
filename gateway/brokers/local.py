"""
The Trio side of the namespaces that we keep ourselves: who waits, who holds which lock.

Two adapters differ only in where a step on the `Namespace` runs: at once (memory), or in the
thread that owns the store (embedded).
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

import attrs

from gateway.brokers.bell import EVERYBODY, Bell
from gateway.brokers.local_receiver import LocalReceiver, to_delivery
from gateway.brokers.moments import Moments
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.domain.events import Quarantined
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.domain.namespace import Namespace
from gateway.domain.queue import Queue, Taken
from gateway.domain.stored import Incoming, Now, State
from gateway.ports import Observer

T = TypeVar("T")

_STEP_COST: Final = 256  # bytes that a step without a body counts for
_LIVE: Final = (State.ACTIVE, State.SCHEDULED)


@attrs.frozen(kw_only=True)
class LocalOptions:
    """How a namespace of our own behaves. `max_message_size` is in bytes, encoded."""

    create_missing: bool = False
    max_message_size: int = 1024 * 1024
    max_queues: int = 10_000


@attrs.define(eq=False)
class Step(Generic[T]):
    """
    One operation: what to do, and afterwards its result and whom it concerns.

    `undo` is for a result that nobody is there to take.
    """

    path: EntityPath
    now: Now
    work: Callable[[Namespace, Now], T]
    cost: int = _STEP_COST  # bytes
    undo: Callable[[T], None] | None = None
    value: T | None = None
    error: BrokerError | None = None
    fresh: tuple[int, int] = (0, 0)
    due: float | None = None
    gone: bool = False  # there is no such queue now
    quarantined: list[int] = attrs.field(factory=list)

    def run(self, namespace: Namespace) -> None:
        """Do it. Errors of the broker are results; any other means that the storage failed."""
        try:
            self.value = self.work(namespace, self.now)
        except BrokerError as error:
            self.error = error
        queue = namespace.known(self.path)
        self.gone = queue is None
        if queue is not None:
            self.fresh = (queue.drain_fresh(State.ACTIVE), queue.drain_fresh(State.DEAD))
            self.due = queue.next_event(self.now)
            self.quarantined = queue.drain_quarantined()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # what `work` returned


@attrs.define(eq=False)
class LocalBroker(ABC):
    """Implements `ports.Broker` and `ports.Peeks`, but for where a step runs."""

    _moments: Moments
    _observer: Observer | None = None
    _bells: WeakValueDictionary[str, Bell] = attrs.field(factory=WeakValueDictionary, init=False)

    @abstractmethod
    async def _run(self, step: Step[T]) -> T:
        """Run a step to its end, report it, return its result. Cancelled: nobody knows."""

    @abstractmethod
    def _post(self, step: Step[Any]) -> None:
        """Have a step run, soon; nobody waits for it."""

    @abstractmethod
    def _pack(self, message: Message) -> tuple[Any, int]:
        """What is stored of a message, and its encoded size. Raises `MessageError`."""

    @abstractmethod
    def unpack(self, content: Any) -> Message:
        """The reverse of `_pack`. Raises `MessageError` where the content isn't a message."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`: one verdict, and never an unknown one unless cancelled or the store fails.

        Raises:
            EntityNotFound, EntityDisabled, MessageTooLarge, QuotaExceeded, InvalidRequest:
                no message was taken.
            StorageFull: the disk is full; nor was any.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: nobody sends to a dead-letter sub-queue")
        try:
            incoming = [self._incoming(message) for message in messages]
        except MessageError as error:
            raise InvalidRequest(str(error)) from error

        def work(namespace: Namespace, now: Now) -> None:
            namespace.check_room()
            namespace.find_or_create(entity, now).send(incoming, now)

        cost = sum(message.size for message in incoming) + _STEP_COST
        await self._run(self._step(entity, work, cost=cost))
        return Leg.PRIMARY

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        """
        As `Broker.open_receiver`.

        Raises:
            EntityNotFound, EntityDisabled: at once, not only when the first message is awaited.
        """
        await self._run(
            self._step(
                entity, lambda space, now: space.find_or_create(entity, now).check_receivable()
            )
        )
        receiver = LocalReceiver(
            broker=self,
            entity=entity,
            mode=mode,
            state=State.DEAD if entity.is_dead_letter else State.ACTIVE,
            bell=self._bells.setdefault(entity.parent.key, Bell()),
        )
        try:
            yield receiver
        finally:
            receiver.close()

    async def probe(self, entity: EntityPath) -> None:
        def work(namespace: Namespace, _now: Now) -> None:
            if namespace.known(entity) is not None or not namespace.create_missing:
                namespace.find(entity).check_sendable()
            namespace.check_room()

        await self._run(self._step(entity, work))

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        def work(namespace: Namespace, now: Now) -> EntityInfo:
            queue = namespace.find(entity)
            queue.sweep(now)
            return queue.info()

        return await self._run(self._step(entity, work))

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self._run(
            self._step(EntityPath(""), lambda namespace, _now: namespace.page(prefix, skip, top))
        )

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """As `Broker.create_queue`; `QuotaExceeded` where there are as many as there may be."""
        return await self._run(
            self._step(entity, lambda namespace, now: namespace.create(entity, properties, now))
        )

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`; who waits for a message there gets `EntityNotFound`."""
        await self._run(self._step(entity, lambda namespace, _now: namespace.delete(entity)))

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        states = (State.DEAD,) if entity.is_dead_letter else _LIVE
        rows = await self._run(
            self._step(
                entity,
                lambda namespace, _now: namespace.find(entity).peek(states, from_sequence, limit),
            )
        )
        return [to_delivery(Taken(row, row.deliveries), self.unpack(row.content)) for row in rows]

    # --- for the receivers

    async def on_queue(
        self,
        entity: EntityPath,
        work: Callable[[Queue, Now], T],
        *,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Run `work` on the queue that owns `entity`; `undo` its result if we are cancelled."""
        return await self._run(
            self._step(
                entity, lambda space, now: work(space.find_or_create(entity, now), now), undo=undo
            )
        )

    def post_on_queue(self, entity: EntityPath, work: Callable[[Queue, Now], None]) -> None:
        """Have `work` done soon, if the queue is still there."""

        def on_known(namespace: Namespace, now: Now) -> None:
            queue = namespace.known(entity)
            if queue is not None:
                work(queue, now)

        self._post(self._step(entity, on_known))

    # --- for the adapters

    def _report(self, step: Step[Any]) -> None:
        """Ring for whom a step concerns."""
        for sequence in step.quarantined:
            if self._observer is not None:
                queue = step.path.parent
                self._observer.report(Quarantined(queue=queue, sequence_number=sequence))
        bell = self._bells.get(step.path.parent.key)
        if bell is None:
            return
        if step.gone:
            bell.ring(State.ACTIVE, EVERYBODY)
            bell.ring(State.DEAD, EVERYBODY)
        bell.set_due(step.due)
        fresh, dead = step.fresh
        bell.ring(State.ACTIVE, fresh)
        bell.ring(State.DEAD, dead)

    def _step(
        self,
        path: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        cost: int = _STEP_COST,
        undo: Callable[[T], None] | None = None,
    ) -> Step[T]:
        return Step(path, self._moments.now(), work, cost, undo)

    def _incoming(self, message: Message) -> Incoming:
        content, size = self._pack(message)
        return Incoming(
            content=content,
            size=size,
            time_to_live=message.time_to_live,
            scheduled=message.scheduled,
        )
