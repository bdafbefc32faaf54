"""
The Trio side of the namespaces that we keep ourselves: who waits, who holds which lock.

Two adapters differ only in where a step on the `Namespace` runs: at once (memory), or in the
thread that owns the store (embedded).
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import attrs

from gateway.brokers.alarm import Alarm
from gateway.brokers.bell import EVERYBODY, Bell
from gateway.brokers.local_queues import LocalQueues
from gateway.brokers.local_receiver import LocalReceiver, to_delivery
from gateway.brokers.local_sending import Packed, check_target, cost_of, send_each
from gateway.brokers.local_sessions import LocalSessionReceiver, accept_session
from gateway.brokers.meter import Meter
from gateway.brokers.moments import Moments
from gateway.brokers.recent import Recent
from gateway.brokers.step import STEP_COST, Step
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.domain.events import Event, Quarantined, SessionStateDamaged
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.domain.namespace import Namespace
from gateway.domain.property_values import id_text
from gateway.domain.queue import Queue
from gateway.domain.queue_values import News, Report, Taken
from gateway.domain.stored import Incoming, Now, Row, State, to_micros
from gateway.ports import Observer

T = TypeVar("T")

_LIVE: Final = (State.ACTIVE, State.SCHEDULED, State.DEFERRED)


@attrs.frozen(kw_only=True)
class LocalOptions:
    """How a namespace of our own behaves. `max_message_size` is in bytes, encoded."""

    create_missing: bool = False
    max_message_size: int = 1024 * 1024
    max_queues: int = 10_000


@attrs.define(eq=False)
class LocalBroker(LocalQueues):
    """Implements `ports.Broker` and its capabilities, but for where a step runs."""

    _moments: Moments
    _observer: Observer | None = None
    recent: Recent | None = attrs.field(default=None, init=False)  # for who asks by ids
    # Hears of each queue in which a message can be received that couldn't be before.
    announce: Callable[[EntityPath], None] | None = attrs.field(default=None, init=False)
    meter: Meter = attrs.field(factory=Meter, init=False)
    _alarm: Alarm = attrs.field(init=False)
    _bells: WeakValueDictionary[str, Bell] = attrs.field(factory=WeakValueDictionary, init=False)

    def __attrs_post_init__(self) -> None:
        self._alarm = Alarm(self._run_errands)

    @abstractmethod
    def _run(self, step: Step[T]) -> Awaitable[T]:
        """Run a step to its end, tell others, return its result. Cancelled: nobody knows."""

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
        self._note(entity, messages, await self._send(entity, messages))
        return Leg.PRIMARY

    async def send_many(
        self, entity: EntityPath, batches: Sequence[Sequence[Message]]
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`: all that is taken is in one transaction."""
        check_target(entity)
        packed = [self._packed(batch) for batch in batches]
        verdicts = await self.run_on(
            entity,
            lambda space, now: send_each(space, entity, packed, now),
            cost=sum(map(cost_of, packed)) + STEP_COST,
            billed=None,
        )
        for batch, incoming, verdict in zip(batches, packed, verdicts, strict=True):
            if not isinstance(verdict, BrokerError):
                self.meter.carried(Operation.SEND, len(batch), cost_of(incoming))
                self._note(entity, batch, verdict)
        return [verdict if isinstance(verdict, BrokerError) else None for verdict in verdicts]

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Schedules.schedule`. A duplicate is taken too, and its number finds nothing.

        Raises:
            InvalidRequest: a message doesn't say when; those of `send`.
        """
        if any(message.scheduled is None for message in messages):
            raise InvalidRequest("scheduled: a message says when it's to be enqueued")
        return await self._send(entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        await self.run_on(
            entity, lambda space, now: space.find(entity).cancel(sequence_numbers, now)
        )

    async def _send(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        check_target(entity)
        incoming = self._packed(messages)
        if isinstance(incoming, BrokerError):
            raise incoming

        def work(namespace: Namespace, now: Now) -> Sequence[int]:
            namespace.check_room()
            return namespace.find_or_create(entity, now).send(incoming, now)

        size = cost_of(incoming)
        numbers = await self.run_on(entity, work, cost=size + STEP_COST, billed=None)
        self.meter.carried(Operation.SEND, len(messages), size)
        return numbers

    def _packed(self, messages: Sequence[Message]) -> Packed:
        try:
            return [self.incoming(message) for message in messages]
        except MessageError as error:
            return InvalidRequest(str(error))

    def _note(
        self, entity: EntityPath, messages: Sequence[Message], numbers: Sequence[int]
    ) -> None:
        if self.recent is not None:
            ids = (message.message_id for message in messages)
            self.recent.note(entity.key, zip(ids, numbers, strict=True))

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        """
        As `Broker.open_receiver`.

        Raises:
            EntityNotFound, EntityDisabled: at once, not only when the first message is awaited.
            SessionRequired: this takes `open_session`.
        """
        state = _state(entity)
        await self._run(
            self._step(
                entity,
                lambda space, now: space.find_or_create(entity, now).check_receivable(state),
            )
        )
        receiver = LocalReceiver(
            broker=self,
            entity=entity,
            mode=mode,
            state=state,
            bell=self._bells.setdefault(entity.parent.key, Bell()),
        )
        try:
            yield receiver
        finally:
            receiver.close()

    @asynccontextmanager
    async def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AsyncIterator[LocalSessionReceiver]:
        """
        As `Sessions.open_session`.

        Raises:
            EntityNotFound, EntityDisabled: at once.
            SessionNotAvailable: another receiver holds that session.
            InvalidRequest: the queue has no sessions.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a sub-queue has no sessions")
        bell = self._bells.setdefault(entity.key, Bell())
        accepted = await accept_session(self, entity, session_id, bell)
        receiver = LocalSessionReceiver(
            broker=self,
            entity=entity,
            mode=mode,
            state=State.ACTIVE,
            bell=self._bells.setdefault(_session_key(entity, accepted.session), Bell()),
            accepted=accepted,
            queue_bell=bell,
        )
        try:
            yield receiver
        finally:
            receiver.close()

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`. Raises InvalidRequest where the queue has none."""
        since = None if updated_since is None else to_micros(updated_since)
        return await self.run_on(
            entity, lambda space, _now: space.find(entity).sessions.page(since, skip, top)
        )

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        states = (_state(entity),) if entity.is_dead_letter else _LIVE

        def work(namespace: Namespace, now: Now) -> Sequence[Row]:
            queue = namespace.find(entity)
            queue.entity.touch(now)
            return queue.peek(states, from_sequence, limit)

        rows = await self.run_on(entity, work, billed=Operation.PEEK)
        return [to_delivery(Taken(row, row.deliveries), self.unpack(row.content)) for row in rows]

    def incoming(self, message: Message) -> Incoming:
        """What the rules look at. Raises `MessageError` where it can't be encoded."""
        content, size = self._pack(message)
        return Incoming(
            content=content,
            size=size,
            time_to_live=message.time_to_live,
            scheduled=message.scheduled,
            session=message.session_id,
            message_id=id_text(message.message_id),
        )

    async def run_on(
        self,
        entity: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        cost: int = STEP_COST,
        billed: Operation | None = Operation.MANAGE,
    ) -> T:
        """
        Do `work`; `cost` is what it holds in memory until then, in bytes. None is `billed` where
        the caller counts.
        """
        result = await self._run(self._step(entity, work, cost=cost))
        if billed is not None:
            self.meter.request(billed)
        return result

    def report(self, event: Event) -> None:
        """Tell whoever observes this namespace."""
        if self._observer is not None:
            self._observer.report(event)

    # --- for the receivers

    def on_queue(
        self,
        entity: EntityPath,
        work: Callable[[Queue, Now], T],
        *,
        undo: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Run `work` on the queue that owns `entity`; `undo` its result if we are cancelled."""
        return self._run(
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

    def _run_errands(self) -> None:
        self._post(
            self._step(
                EntityPath(""), lambda space, now: space.run_errands(now, self._bells.__contains__)
            )
        )

    def _tell(self, report: Report) -> None:
        """Ring for whom it concerns."""
        self._alarm.set(report.next_errand)
        for path, news in report.news:
            if news is not None:
                self._report_damage(path, news)
                for session in news.sessions:
                    self._ring(_session_key(path, session), State.ACTIVE)
                if news.active and self.announce is not None:
                    self.announce(path)
            bell = self._bells.get(path.key)
            if bell is not None:
                _ring(bell, news)
            if news is None:  # who waits in a session as well
                for key in [key for key in self._bells if key.startswith(_session_key(path, ""))]:
                    self._ring(key, State.ACTIVE)

    def _report_damage(self, path: EntityPath, news: News) -> None:
        if self._observer is None:
            return
        for sequence in news.quarantined:
            self._observer.report(Quarantined(queue=path, sequence_number=sequence))
        for session in news.damaged:
            self._observer.report(SessionStateDamaged(queue=path, session_id=session))

    def _ring(self, key: str, state: State) -> None:
        bell = self._bells.get(key)
        if bell is not None:
            bell.ring(state, EVERYBODY)

    def _step(
        self,
        path: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        cost: int = STEP_COST,
        undo: Callable[[T], None] | None = None,
    ) -> Step[T]:
        return Step(path, self._moments.now(), work, cost, undo)


def _ring(bell: Bell, news: News | None) -> None:
    if news is None:
        for state in State:
            bell.ring(state, EVERYBODY)
        return
    bell.set_due(news.due)
    bell.ring(State.ACTIVE, news.active)
    bell.ring(State.DEAD, news.dead)
    bell.ring(State.TRANSFER, news.transfer)


def _session_key(queue: EntityPath, session: str) -> str:
    return f"{queue.key}\n{session}"


def _state(entity: EntityPath) -> State:
    """Which messages are received under that path."""
    if entity.is_transfer_dead_letter:
        return State.TRANSFER
    return State.DEAD if entity.is_dead_letter else State.ACTIVE
