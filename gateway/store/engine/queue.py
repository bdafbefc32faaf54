"""
The rules of one queue and its sub-queues, for every namespace that Pairgate keeps itself.

The rules decide; `Storage` stores and finds. Each rule changes the stored rows first and the state
in memory after. A rule that refuses (raises `BrokerError`) does so before any change.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import attrs

from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import EntityDisabled, InvalidRequest, MessageNotFound, SessionRequired
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, ReceiveMode, Settlement
from gateway.domain.texts import check_reason
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.deliveries import News, TakenRow
from gateway.store.engine.dispatch import Dispatch
from gateway.store.engine.enqueue import EnqueueRules
from gateway.store.engine.message_index import MessageIndex, QuotaUsage
from gateway.store.engine.queue_content import Entity, Onward, QueueContent
from gateway.store.engine.records import (
    DEAD_LETTERS,
    DEFERRED_OF,
    MAX_SEQUENCE,
    MOST_PEEKED,
    Incoming,
    MessageNumbers,
    ReservedPlaces,
    Row,
    State,
    Storage,
    Totals,
)
from gateway.store.engine.session_rules import SessionRules
from gateway.store.engine.sessions import Sessions
from gateway.store.engine.visibility import VisibilityRules

_GIVES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED})


@attrs.frozen(kw_only=True)
class QueueDependencies:
    """The values and functions that a queue gets from its namespace."""

    next_sequence: Callable[[], int]  # each is higher than all before
    new_token: Callable[[], str]
    packing: Packing
    # Called with the path of each queue that a message was forwarded to.
    concern: Callable[[EntityPath], None]


@attrs.define(eq=False, kw_only=True)
class Queue:
    """A queue. Each method is one step; none waits."""

    entity: Entity
    enqueue: EnqueueRules
    _content: QueueContent
    _dispatch: Dispatch
    _concern: Callable[[EntityPath], None]

    @classmethod
    def make(
        cls,
        entity: Entity,
        storage: Storage,
        dependencies: QueueDependencies,
        usage: QuotaUsage | None = None,
        totals: Totals | None = None,
    ) -> "Queue":
        """
        Make a queue from its stored messages; `usage` is the quota usage that the queue shares with
        others. None: `totals` must be counted.
        """
        sessions = None
        if entity.properties.requires_session:
            sessions = Sessions(entity.path, storage, dependencies.new_token, entity.journal)
        index = MessageIndex(storage.rows, usage, entity.journal, counted=totals)
        content = QueueContent(
            entity, storage, dependencies.next_sequence, sessions, dependencies.packing, index
        )
        return cls(
            entity=entity,
            enqueue=EnqueueRules(content),
            content=content,
            dispatch=Dispatch(content, dependencies.new_token, entity.journal),
            concern=dependencies.concern,
        )

    def reload(self) -> None:
        """Forget the state in memory, all locks included, and read it again from the storage."""
        self._content.reload()
        self._dispatch.clear()

    @property
    def path(self) -> EntityPath:
        return self.entity.path

    @property
    def properties(self) -> QueueProperties:
        return self.entity.properties

    # --- sending

    def send(
        self, messages: Sequence[Incoming], now: Now, reserved: ReservedPlaces | None = None
    ) -> Sequence[MessageNumbers]:
        """
        Add all messages, in this order, or none; return their places, which `reserve` may have
        reserved.

        A duplicate is accepted but not stored: no message has its place.

        Raises:
            EntityNotFound: the entity for which the places were reserved was deleted.
        """
        self.enqueue.check_sendable()
        self.sweep(now)
        self.entity.touch(now)
        return self.enqueue.send(messages, now, reserved)

    def add_dead_letter(self, message: Incoming, why: DeadLetter, now: Now) -> None:
        """As `EnqueueRules.add_dead_letter`, after a sweep."""
        self.enqueue.check_sendable()
        self.sweep(now)
        self.entity.touch(now)
        self.enqueue.add_dead_letter(message, why, now)

    def reserve(self, count: int, now: Now) -> ReservedPlaces:
        """Reserve places for so many messages; those that aren't sent remain gaps."""
        self.enqueue.check_sendable()
        self.entity.touch(now)
        return ReservedPlaces(self.entity.created, self._content.next_places(count))

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """As `Target.arrive`."""
        self._concern(self.path)
        self.enqueue.arrive(row, hops, now)

    def arrive_dead(self, row: Row, why: DeadLetter, hops: int, now: Now) -> None:
        """As `EnqueueRules.arrive_dead`."""
        self._concern(self.path)
        self.enqueue.arrive_dead(row, why, hops, now)

    def lead(self, onward: Onward | None, onward_dead: Onward | None) -> None:
        """
        Set where messages and dead letters are forwarded to from now on; None: they stay here.
        """
        self._content.lead(onward, onward_dead)

    @property
    def forwards(self) -> bool:
        """True if the queue forwards its messages."""
        return self._content.onward is not None

    def cancel(self, numbers: Sequence[int], now: Now) -> None:
        """
        Remove the scheduled messages with these sequence numbers, all or none.

        Raises:
            MessageNotFound: a message doesn't exist, has become due, or is hidden rather than
                scheduled.
        """
        self.sweep(now)
        find = self._content.find
        rows = [find(number, State.SCHEDULED) for number in dict.fromkeys(numbers)]
        for row in rows:
            if row.stamp:
                raise MessageNotFound(f"{self.path}: message {row.number} isn't scheduled")
        self.entity.touch(now)
        for row in rows:
            self._content.index.remove(row)

    # --- receiving

    def check_active(self) -> None:
        """
        Check that the queue's status allows receiving.

        Raises:
            EntityDisabled: the queue is disabled, or disabled for receiving.
        """
        status = self.entity.properties.status
        if status in _GIVES_NOTHING:
            raise EntityDisabled(f"{self.path} is {status.value}")

    def check_keeps(self) -> None:
        """
        Check that the queue keeps its messages for receivers.

        Raises:
            InvalidRequest: the queue forwards all its messages.
        """
        if self._content.onward is not None:
            raise InvalidRequest(
                f"{self.path} forwards its messages: receive from the entity that it forwards to"
            )

    def check_receivable(self, state: State = State.ACTIVE) -> None:
        """
        Check that a receiver without a session may receive messages of this state.

        Raises:
            EntityDisabled: the queue is disabled, or disabled for receiving.
            SessionRequired: the queue requires sessions; accept a session instead.
            InvalidRequest: the queue forwards all its messages.
        """
        self.check_active()
        if state is State.ACTIVE:
            self.check_keeps()
        if self._content.sessions is not None and state is State.ACTIVE:
            raise SessionRequired(
                "It is not possible for an entity that requires sessions to create a"
                f" non-sessionful message receiver. {self.path}: accept a session"
            )

    @property
    def visibility(self) -> VisibilityRules:
        """The operations of Storage Queue."""
        return VisibilityRules(self._content)

    @property
    def sessions(self) -> SessionRules:
        """
        The operations on sessions.

        Raises:
            InvalidRequest: the queue doesn't require sessions.
        """
        if self._content.sessions is None:
            raise InvalidRequest(
                f"{self.path} doesn't require sessions: receive from it without one"
            )
        return SessionRules(self, self._content.sessions, self._dispatch)

    def receive(self, state: State, limit: int, mode: ReceiveMode, now: Now) -> list[TakenRow]:
        """Deliver up to `limit` messages, the oldest first; an empty list if none is available."""
        self.check_receivable(state)
        self.sweep(now)
        index = self._content.index
        return self._dispatch.deliver(lambda more: index.next(state, more), limit, mode, now)

    def receive_deferred(
        self, numbers: Sequence[int], mode: ReceiveMode, now: Now, state: State = State.ACTIVE
    ) -> list[TakenRow]:
        """
        Deliver messages that were deferred in this state, all or none. An expired message is
        removed or dead-lettered first.

        Raises:
            MessageNotFound: a message doesn't exist, has expired, or is locked.
        """
        self.check_receivable(state)
        self.sweep(now)
        return self._dispatch.deliver_deferred(numbers, mode, now, state=DEFERRED_OF[state])

    def delete(
        self, state: State, limit: int, before: int | None, session: str | None, now: Now
    ) -> int:
        """As `DeletesMessages.delete_messages`; `before` is in microseconds since 1970."""
        if session is None:
            self.check_receivable(state)
        else:
            self.check_active()
            self.check_keeps()
        self.sweep(now)
        if session is not None:
            self.sessions.check_locked(session)
        self.entity.touch(now)
        own = None if before is None else before - now.shift
        return self._content.delete(state, limit, own, session)

    # --- settling

    def settle(self, token: str | None, settlement: Settlement, now: Now) -> None:
        self.sweep(now)
        lock = self._dispatch.find(token, now)
        match settlement:
            case Complete():
                self._content.index.remove(lock.held)
            case DeadLetter():
                self._check_main(lock.held)
                check_reason(settlement)
                row = self._content.amended(lock.held, settlement.properties)
                # A delivery that ends in the dead letters hasn't failed.
                row = attrs.evolve(row, deliveries=row.deliveries - 1)
                self._content.dead_letter(row, settlement, now)
            case Defer():
                row = self._content.amended(lock.held, settlement.properties)
                state = DEFERRED_OF.get(row.state, row.state)
                self._content.index.replace(row, attrs.evolve(row, state=state))
            case Abandon(delivered=delivered):
                row = self._content.amended(lock.held, settlement.properties)
                self._give_back(row, now, delivered=delivered)
        self._dispatch.unlock(lock)
        self.entity.touch(now)

    def renew(self, token: str | None, now: Now) -> int:
        """Extend a lock by the lock duration; return its new end (wall clock)."""
        return self._dispatch.renew(token, now)

    def release(self, tokens: Iterable[str], now: Now, *, delivered: bool = True) -> None:
        """
        Make the messages that are still locked by `tokens` available again.

        With `delivered=False` the delivery isn't counted, since no client has seen the messages.
        """
        for token in tokens:
            lock = self._dispatch.find_if_held(token, now)
            if lock is None:
                continue
            self._give_back(lock.held, now, delivered=delivered)
            self._dispatch.unlock(lock)

    def _give_back(self, row: Row, now: Now, *, delivered: bool) -> None:
        if not delivered:
            self._dispatch.uncount(row)
            row = attrs.evolve(row, deliveries=row.deliveries - 1)
        self._content.give_back(row, now)

    def quarantine(self, token: str, now: Now) -> None:
        """Set a locked message aside because its content can't be read."""
        lock = self._dispatch.find(token, now)
        self._content.index.quarantine(lock.held)
        self._dispatch.unlock(lock)

    def _check_main(self, row: Row) -> None:
        if row.state in DEAD_LETTERS:
            raise InvalidRequest(f"{self.path}: a dead letter can't be dead-lettered again")

    # --- what becomes due

    def sweep(self, now: Now) -> None:
        """
        Apply what time has brought: end expired locks, enqueue scheduled messages, expire messages.
        """
        first_end = self._dispatch.next_end()
        if first_end is not None and first_end <= now.monotonic:
            for row in self._dispatch.run_out(now):
                self._content.give_back(row, now)
        sessions = self._content.sessions
        if sessions is not None:
            for session in sessions.run_out(now):
                self.release(session.held.tokens, now)
                sessions.release(session)
        self._content.sweep(now)

    def expire(self, now: Now) -> None:
        """As `QueueContent.expire`, for another entity that shares the quota."""
        self._concern(self.path)
        self._content.expire(now)

    def next_event(self, now: Now) -> float | None:
        """
        The monotonic time at which `sweep` may have work to do; it may then turn out to have none.
        """
        first = self._dispatch.next_end()
        sessions = self._content.sessions
        session_end = None if sessions is None else sessions.next_end()
        for moment in (session_end, self._content.next_date(now)):
            if moment is not None and (first is None or moment < first):
                first = moment
        return None if first == math.inf else first

    @property
    def shared_usage(self) -> QuotaUsage | None:
        """The usage that a topic shares with its subscriptions; None: of a queue."""
        return self._content.index.shared

    @property
    def used(self) -> int:
        """The bytes that count against the queue's quota."""
        return self._content.index.used

    @property
    def has_scheduled(self) -> bool:
        return self._content.index.count(State.SCHEDULED) > 0

    def forsake(self) -> None:
        """
        Delete the queue: its bytes no longer count against a quota that is shared with others.
        """
        self._content.index.forsake()

    @property
    def has_due_work(self) -> bool:
        """True if `sweep` must be called in time even if no receiver waits on this queue."""
        content = self._content
        onward = content.onward is not None or content.onward_dead is not None
        return onward or content.sessions is not None

    # --- telling

    @property
    def concerns_more(self) -> bool:
        """True if its changes concern others than the receivers that wait there."""
        content = self._content  # checked in a single expression, as every step calls this
        return (
            content.onward is not None
            or content.sessions is not None
            or content.onward_dead is not None
            or content.entity.properties.auto_delete_on_idle is not None
            or content.index.has_quarantined
        )

    def drain_news(self, now: Now) -> News:
        """The changes since the last call."""
        index, sessions = self._content.index, self._content.sessions
        active, dead, transfer = index.drain_fresh()
        news = News(active=active, dead=dead, transfer=transfer, due=self.next_event(now))
        news.quarantined = index.drain_quarantined()
        if sessions is not None:
            news.active, news.sessions = sessions.drain_fresh(), sessions.drain_woken()
            news.damaged = sessions.drain_damaged()
        return news

    def peek(self, states: Sequence[State], from_sequence: int, limit: int) -> list[Row]:
        """
        Rows from that sequence number on, in order, including locked ones, without damaged ones:
        none after those that have `MOST_PEEKED` bytes together.
        """
        number = min(max(from_sequence, 0), MAX_SEQUENCE)
        found = (self._rows_from(state, number, limit) for state in states)
        rows, size = list[Row](), 0
        for row in heapq.merge(*found, key=lambda row: row.sequence):
            if row.damaged:
                continue
            rows.append(row)
            size += row.size
            if len(rows) >= limit or size >= MOST_PEEKED:
                break
        return rows

    def _rows_from(self, state: State, number: int, limit: int) -> Iterator[Row]:
        """The rows of one state, read a few at a time if they are large."""
        first = self._content.storage.rows.first_from(state, number)
        sequence = None if first is None else first - 1
        while sequence is not None:
            page = self._content.storage.rows.page(state, sequence, limit, MOST_PEEKED)
            yield from page
            sequence = page[-1].sequence if page else None

    def info(self) -> EntityInfo:
        entity, index = self.entity, self._content.index
        return EntityInfo(
            path=entity.path,
            properties=entity.properties,
            max_message_size=entity.max_message_size,
            active=index.count(State.ACTIVE),
            dead_lettered=index.count(State.DEAD) + index.count(State.DEAD_DEFERRED),
            scheduled=index.count(State.SCHEDULED),
            deferred=index.count(State.DEFERRED),
            transfer_dead_lettered=index.count(State.TRANSFER)
            + index.count(State.TRANSFER_DEFERRED),
            size=index.bytes,
            created=to_date(entity.created),
            updated=to_date(entity.updated),
            accessed=to_date(entity.accessed) if entity.accessed else None,
            version=entity.version,
        )
