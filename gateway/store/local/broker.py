"""
The Trio side of the namespaces that Pairgate keeps itself: waiting tasks and the locks that
receivers hold.

The two adapters differ only in where a step on the `Namespace` runs: at once (memory), or in the
thread that owns the store (embedded).
"""

import traceback
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.brokers.meter import Meter
from gateway.capabilities import (
    ReservedNumbers,
    TransactedCancellation,
    TransactedSend,
    TransactedWork,
    check_delete_limit,
)
from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, InvalidRequest, MessageError
from gateway.domain.events.gateway import Event
from gateway.domain.events.stores import Quarantined, RequestFailed, SessionStateDamaged
from gateway.domain.identity import Identity
from gateway.domain.message import Delivery, Message, ReceiveMode, reason_in
from gateway.domain.option_fields import BYTES
from gateway.domain.topics.property_values import id_text
from gateway.moments import Moments
from gateway.store.engine.deliveries import News, StepReport, TakenRow
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.queue_checks import micros_of
from gateway.store.engine.records import DEFERRED_OF, Incoming, Row, State
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.notifier import EVERYBODY, Notifier, Notifiers
from gateway.store.local.receiver import LocalReceiver, to_delivery
from gateway.store.local.sending import (
    Packed,
    Places,
    check_target,
    commit_in_one_step,
    cost_of,
    send_packed,
)
from gateway.store.local.sessions import LocalSessionReceiver, accept_session
from gateway.store.local.step import STEP_COST, Step
from gateway.store.local.timer import Timer
from gateway.store.local.topology import LocalQueues

T = TypeVar("T")

_LIVE: Final = (State.ACTIVE, State.SCHEDULED, State.DEFERRED)


@attrs.frozen(kw_only=True)
class LocalOptions:
    """
    The options of a namespace that Pairgate keeps itself. `max_message_size` is in bytes, encoded.
    """

    create_missing: bool = False
    max_message_size: int = attrs.field(default=1024 * 1024, metadata=BYTES)
    max_queues: int = 10_000


@attrs.define(eq=False)
class LocalBroker(LocalQueues):
    """Implements `ports.Broker` and its capabilities, except for where a step runs."""

    _moments: Moments
    hooks: LocalHooks = attrs.field(factory=LocalHooks, on_setattr=attrs.setters.frozen)
    meter: Meter = attrs.field(init=False)
    _timer: Timer = attrs.field(init=False)
    _notifiers: Notifiers = attrs.field(factory=Notifiers, init=False)

    def __attrs_post_init__(self) -> None:
        self.meter = Meter(heard=self.hooks.heard)
        self._timer = Timer(self._run_due_work)

    @abstractmethod
    def _run(self, step: Step[T]) -> Awaitable[T]:
        """
        Run a step to its end, wake the tasks that it concerns, and return its result. If cancelled,
        the outcome is unknown.
        """

    @abstractmethod
    def _post(self, step: Step[Any]) -> None:
        """Run a step soon; no task waits for it."""

    @property
    @abstractmethod
    def _identity(self) -> Identity:
        """The identity of the open store."""

    @abstractmethod
    def _pack(self, message: Message) -> tuple[Any, int]:
        """The stored form of a message, and its encoded size. Raises `MessageError`."""

    @abstractmethod
    def unpack(self, content: Any) -> Message:
        """The reverse of `_pack`. Raises `MessageError` if the content isn't a message."""

    async def identity(self) -> Identity:
        """As `Identifies.identity`."""
        await trio.lowlevel.checkpoint()
        return self._identity

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`, in one transaction. The outcome is never unknown, unless the send is
        cancelled or the store fails.

        Raises:
            EntityNotFound, EntityDisabled, MessageTooLarge, QuotaExceeded, InvalidRequest: no
                message was stored.
            StorageFull: the disk is full; no message was stored.
        """
        self.record_places(entity, messages, await self._send(entity, messages))

    async def send_many(
        self, entity: EntityPath, batches: Sequence[Sequence[Message]], *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`: all accepted batches are stored in one transaction."""
        packed = [self.packed(batch) for batch in batches]
        try:
            check_target(entity)
            verdicts = await send_packed(self, entity, packed)
        except BrokerError as error:
            return [error] * len(batches)
        for batch, incoming, verdict in zip(batches, packed, verdicts, strict=True):
            if not isinstance(verdict, BrokerError):
                self.meter.carried(Operation.SEND, len(batch), cost_of(incoming))
                self.record_places(entity, batch, verdict)
        return [verdict if isinstance(verdict, BrokerError) else None for verdict in verdicts]

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        """As `WritesDeadLetters.dead_letter`."""
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a queue or subscription expected, not a sub-queue")
        incoming = self.packed([message])
        if isinstance(incoming, BrokerError):
            raise incoming

        def work(space: Namespace, now: Now) -> None:
            space.check_room()
            if space.is_topic(entity):
                raise EntityNotFound(f"{entity} is a topic, which has no dead letters")
            space.find(entity).add_dead_letter(incoming[0], reason_in(message), now)

        size = cost_of(incoming)
        await self.run_on(entity, work, cost=size + STEP_COST, billed=None)
        self.meter.carried(Operation.SEND, 1, size)

    async def send_to_subscription(
        self, subscription: EntityPath, messages: Sequence[Message]
    ) -> None:
        """As `SendsToSubscriptions.send_to_subscription`."""
        if subscription.is_dead_letter or not subscription.is_subscription:
            raise InvalidRequest(f"{subscription}: a subscription expected")
        await self._add(subscription, messages)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await self.run_on(EntityPath(""), lambda space, _now: space.check_room(), billed=None)

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        As `Transacts.commit`, in one step: after any end of the process the store has all of the
        work or nothing of it.
        """
        await commit_in_one_step(self, work)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Schedules.schedule`. A duplicate is accepted, too; no message has its sequence number.

        Raises:
            InvalidRequest: a message has no scheduled date; and the errors of `send`.
        """
        _check_scheduled(messages)
        return [place.number for place in await self._send(entity, messages)]

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """As `EnlistsSchedules.enlist_schedule`; size, quota and duplicates count at the commit."""
        _check_scheduled(messages)
        check_target(entity)
        reserved = await self.run_on(
            entity,
            lambda space, now: space.find_or_create(entity, now).reserve(len(messages), now),
            billed=None,
        )
        numbers = [place.number for place in reserved.places]
        return TransactedSend(entity, messages, ReservedNumbers(numbers, reserved))

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`."""
        return TransactedCancellation(entity, sequence_numbers)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        await self.run_on(
            entity, lambda space, now: space.find(entity).cancel(sequence_numbers, now)
        )

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`."""
        check_delete_limit(limit)
        since = None if before is None else micros_of(before)

        def work(space: Namespace, now: Now) -> int:
            return space.find(entity).delete(_state(entity), limit, since, session_id, now)

        return await self.run_on(entity, work)

    def _send(self, entity: EntityPath, messages: Sequence[Message]) -> Awaitable[Places]:
        check_target(entity)
        return self._add(entity, messages)

    async def _add(self, entity: EntityPath, messages: Sequence[Message]) -> Places:
        incoming = self.packed(messages)
        if isinstance(incoming, BrokerError):
            raise incoming

        def work(namespace: Namespace, now: Now) -> Places:
            namespace.check_room()
            return namespace.find_or_create(entity, now).send(incoming, now)

        size = cost_of(incoming)
        places = await self._run(self._step(entity, work, cost=size + STEP_COST))
        self.meter.carried(Operation.SEND, len(messages), size)
        return places

    def packed(self, messages: Sequence[Message]) -> Packed:
        """The messages as they are stored, or the error why they can't be."""
        try:
            return [self.incoming(message) for message in messages]
        except MessageError as error:
            return InvalidRequest(str(error))

    def record_places(
        self, entity: EntityPath, messages: Sequence[Message], places: Places
    ) -> None:
        """Note the places of sent messages, for clients that name messages by id."""
        if self.hooks.recent is not None:
            ids = (message.message_id for message in messages)
            sequences = (place.sequence for place in places)
            self.hooks.recent.record(entity.key, zip(ids, sequences, strict=True))

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[LocalReceiver]:
        """
        As `Broker.open_receiver`. The queue is checked on entering.

        Raises:
            EntityNotFound, EntityDisabled: raised on entering, not by the first `receive`.
            SessionRequired: the queue requires sessions; use `open_session`.
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
            notifier=self._notifiers.of(entity.parent.key),
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
        As `Sessions.open_session`. The queue is checked on entering.

        Raises:
            EntityNotFound, EntityDisabled: raised on entering.
            SessionNotAvailable: another receiver has locked the session.
            InvalidRequest: the queue doesn't require sessions.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a sub-queue has no sessions")
        notifier = self._notifiers.of(entity.key)
        accepted = await accept_session(self, entity, session_id, notifier)
        receiver = LocalSessionReceiver(
            broker=self,
            entity=entity,
            mode=mode,
            state=State.ACTIVE,
            notifier=self._notifiers.of(_session_key(entity, accepted.session)),
            accepted=accepted,
            queue_notifier=notifier,
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
        """
        As `Sessions.list_sessions`. Raises InvalidRequest if the queue doesn't require sessions.
        """
        since = None if updated_since is None else micros_of(updated_since)
        return await self.run_on(
            entity, lambda space, _now: space.find(entity).sessions.page(since, skip, top)
        )

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`."""
        return await self.run_on(
            entity,
            lambda space, _now: space.find(entity).sessions.peek_state(session_id),
            billed=Operation.MANAGE,
        )

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        states: Sequence[State] = _LIVE
        if entity.is_dead_letter:
            states = (_state(entity), DEFERRED_OF[_state(entity)])

        def work(namespace: Namespace, now: Now) -> Sequence[Row]:
            queue = namespace.find(entity)
            queue.entity.touch(now)
            return queue.peek(states, from_sequence, limit)

        rows = await self.run_on(entity, work, billed=Operation.PEEK, is_large_read=True)
        return [
            to_delivery(TakenRow(row, row.deliveries), self.unpack(row.content), self.shift)
            for row in rows
        ]

    @property
    def shift(self) -> int:
        """As that of `Now`, at the last reading of the clocks."""
        return self._moments.shift

    def incoming(self, message: Message) -> Incoming:
        """The message as the rules need it. Raises `MessageError` if it can't be encoded."""
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
        is_large_read: bool = False,
    ) -> T:
        """
        Run `work` as one step; `cost` is the memory that it holds until then, in bytes. With
        `billed` None, the caller counts the operation itself. `is_large_read` is as in `Step`.
        """
        step = self._step(entity, work, cost=cost)
        step.is_large_read = is_large_read
        result = await self._run(step)
        if billed is not None:
            self.meter.request(billed)
        return result

    def report(self, event: Event) -> None:
        """Report an event to the observer of this namespace."""
        if self.hooks.observer is not None:
            self.hooks.observer.report(event)

    # --- for the receivers

    def on_queue(
        self,
        entity: EntityPath,
        work: Callable[[Queue, Now], T],
        *,
        undo: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """
        Run `work` on the queue that owns `entity`. If the caller is cancelled, `undo` is called
        with the result.
        """
        return self._run(
            self._step(
                entity, lambda space, now: work(space.find_or_create(entity, now), now), undo=undo
            )
        )

    def post_on_queue(self, entity: EntityPath, work: Callable[[Queue, Now], None]) -> None:
        """Run `work` soon, if the queue still exists."""

        def on_known(namespace: Namespace, now: Now) -> None:
            queue = namespace.known(entity)
            if queue is not None:
                work(queue, now)

        self._post(self._step(entity, on_known))

    # --- for the adapters

    def _run_due_work(self) -> None:
        # `_now` may be from just before that time: the work would be due again and again
        self._post(
            Step(
                EntityPath(""),
                self._moments.now(),
                lambda space, now: space.run_due_work(now, self._notifiers.__contains__),
            )
        )

    def _is_watched(self, key: str) -> bool:
        """
        True if a task waits for changes of the entity with this key. A receiver registers before it
        looks for messages, so that it misses none. May be called by any thread.
        """
        return self.hooks.announce is not None or key in self._notifiers

    def _publish(self, report: StepReport) -> None:
        """Wake the tasks that the report concerns, and report failures."""
        self._report_faults(report.faults)
        self._timer.set(report.next_due_work)
        for path, news in report.news:
            if news is not None:
                self._report_damage(path, news)
                for session in news.sessions:
                    self._notify(_session_key(path, session), State.ACTIVE)
                if news.active and self.hooks.announce is not None:
                    self.hooks.announce(path)
            notifier = self._notifiers.get(path.key)
            if notifier is not None:
                _notify(notifier, news)
            if news is None:  # receivers of sessions wait there, too
                for key in [
                    key for key in self._notifiers if key.startswith(_session_key(path, ""))
                ]:
                    self._notify(key, State.ACTIVE)

    def _report_faults(self, faults: Sequence[tuple[EntityPath, Exception]]) -> None:
        for path, fault in faults:
            text = "".join(traceback.format_exception(fault))
            self.report(RequestFailed(entity=path, traceback=text))

    def _report_damage(self, path: EntityPath, news: News) -> None:
        if self.hooks.observer is None:
            return
        for sequence in news.quarantined:
            self.hooks.observer.report(Quarantined(queue=path, sequence_number=sequence))
        for session in news.damaged:
            self.hooks.observer.report(SessionStateDamaged(queue=path, session_id=session))

    def _notify(self, key: str, state: State) -> None:
        notifier = self._notifiers.get(key)
        if notifier is not None:
            notifier.notify(state, EVERYBODY)

    def _step(
        self,
        path: EntityPath,
        work: Callable[[Namespace, Now], T],
        *,
        cost: int = STEP_COST,
        undo: Callable[[T], None] | None = None,
    ) -> Step[T]:
        return Step(path, self._now(), work, cost, undo)

    def _now(self) -> Now:
        """The time at which the step that is made now is considered to run."""
        return self._moments.now()


def _notify(notifier: Notifier, news: News | None) -> None:
    if news is None:
        for state in State:
            notifier.notify(state, EVERYBODY)
        return
    notifier.set_due(news.due)
    notifier.notify(State.ACTIVE, news.active)
    notifier.notify(State.DEAD, news.dead)
    notifier.notify(State.TRANSFER, news.transfer)


def _session_key(queue: EntityPath, session: str) -> str:
    return f"{queue.key}\n{session}"


def _check_scheduled(messages: Sequence[Message]) -> None:
    if any(message.scheduled is None for message in messages):
        raise InvalidRequest("scheduled: a date expected in each message")


def _state(entity: EntityPath) -> State:
    """The state of the messages that are received under that path."""
    if entity.is_transfer_dead_letter:
        return State.TRANSFER
    return State.DEAD if entity.is_dead_letter else State.ACTIVE
