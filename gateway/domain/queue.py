"""
The rules of one queue and its sub-queues, for every namespace that we keep ourselves.

They decide; `Storage` keeps and finds. Each rule changes the rows first and what is in memory
after, and a rule that refuses (a `BrokerError`) does so before it changes anything.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from gateway.domain.contents import Contents, Entity, Onward
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    InvalidRequest,
    MessageNotFound,
    SessionRequired,
)
from gateway.domain.handout import Handout
from gateway.domain.holdings import Account
from gateway.domain.intake import Intake
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, ReceiveMode, Settlement
from gateway.domain.packing import Packing
from gateway.domain.queue_checks import check_reason
from gateway.domain.queue_values import News, Taken
from gateway.domain.session_rules import SessionRules
from gateway.domain.sessions import Sessions
from gateway.domain.stored import (
    MAX_SEQUENCE,
    Incoming,
    Now,
    Row,
    State,
    Storage,
    to_date,
)
from gateway.domain.visibility import VisibilityRules

_GIVES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED})


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a queue is given by its namespace."""

    next_sequence: Callable[[], int]  # ever higher, never the same again
    new_token: Callable[[], str]
    packing: Packing
    concern: Callable[[EntityPath], None]  # a message that was forwarded has come there


@attrs.define(eq=False, kw_only=True)
class Queue:
    """One queue. Every method is one step; none waits."""

    entity: Entity
    intake: Intake
    visibility: VisibilityRules
    _contents: Contents
    _handout: Handout
    _concern: Callable[[EntityPath], None]

    @classmethod
    def make(
        cls,
        entity: Entity,
        storage: Storage,
        around: Surroundings,
        account: Account | None = None,
    ) -> "Queue":
        """A queue with what is stored of it."""
        sessions = None
        if entity.properties.requires_session:
            sessions = Sessions(entity.path, storage, around.new_token)
        account, number = account or Account(), around.next_sequence
        contents = Contents(entity, storage, number, account, sessions, around.packing)
        return cls(
            entity=entity,
            intake=Intake(contents, around.packing.id_of),
            visibility=VisibilityRules(contents),
            contents=contents,
            handout=Handout(contents, around.new_token),
            concern=around.concern,
        )

    def reload(self) -> None:
        """Forget what is in memory, all locks too, and begin with what is stored."""
        self._contents.reload()
        self._handout.clear()

    @property
    def path(self) -> EntityPath:
        return self.entity.path

    @property
    def properties(self) -> QueueProperties:
        return self.entity.properties

    # --- sending

    def send(self, messages: Sequence[Incoming], now: Now) -> list[int]:
        """
        Take all messages, in this order, or none; return their sequence numbers.

        A duplicate is taken and not kept: its number finds nothing.
        """
        self.intake.check_sendable()
        self.sweep(now)
        self.entity.touch(now)
        return self.intake.send(messages, now)

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        """As `Target.arrive`."""
        self._concern(self.path)
        self.intake.arrive(row, hops, now)

    def lead(self, onward: Onward | None, onward_dead: Onward | None) -> None:
        """Say where messages and dead letters go from now on; None: they stay."""
        self._contents.onward, self._contents.onward_dead = onward, onward_dead

    @property
    def passes_on(self) -> bool:
        """Whether its messages go on to others."""
        return self._contents.onward is not None

    def cancel(self, sequences: Sequence[int], now: Now) -> None:
        """
        Remove scheduled messages, all or none.

        Raises:
            MessageNotFound: one isn't there, or only hidden; it may have become due.
        """
        self.sweep(now)
        find = self._contents.find
        rows = [find(sequence, State.SCHEDULED) for sequence in dict.fromkeys(sequences)]
        for row in rows:
            if row.stamp:
                raise MessageNotFound(f"{self.path}: message {row.sequence} isn't scheduled")
        self.entity.touch(now)
        for row in rows:
            self._contents.holdings.remove(row)

    # --- receiving

    def check_active(self) -> None:
        """
        Raises:
            EntityDisabled: it gives nothing.
        """
        status = self.properties.status
        if status in _GIVES_NOTHING:
            raise EntityDisabled(f"{self.path} is {status.value}")

    def check_receivable(self, state: State = State.ACTIVE) -> None:
        """
        Raises:
            EntityDisabled: it gives nothing.
            SessionRequired: a receiver has to name a session.
            InvalidRequest: all of its messages go on to others.
        """
        self.check_active()
        if self.passes_on and state is State.ACTIVE:
            raise InvalidRequest(f"{self.path} passes its messages on: nobody receives from it")
        if self._contents.sessions is not None and state is State.ACTIVE:
            raise SessionRequired(f"{self.path} requires sessions: a receiver has to name one")

    @property
    def sessions(self) -> SessionRules:
        """
        Raises:
            InvalidRequest: this queue has none.
        """
        if self._contents.sessions is None:
            raise InvalidRequest(f"{self.path} has no sessions")
        return SessionRules(self, self._contents.sessions, self._handout)

    def take(self, state: State, limit: int, mode: ReceiveMode, now: Now) -> list[Taken]:
        """Hand out up to `limit` messages, the oldest first; none if there is none."""
        self.check_receivable(state)
        self.sweep(now)
        holdings = self._contents.holdings
        return self._handout.take(lambda more: holdings.next(state, more), limit, mode, now)

    def take_deferred(self, sequences: Sequence[int], mode: ReceiveMode, now: Now) -> list[Taken]:
        """
        Hand out deferred messages, all or none. One that has expired goes where it belongs.

        Raises:
            MessageNotFound: one isn't there, or somebody has it.
        """
        self.check_receivable()
        self.sweep(now)
        return self._handout.take_deferred(sequences, mode, now)

    # --- settling

    def settle(self, token: str | None, settlement: Settlement, now: Now) -> None:
        self.sweep(now)
        lock = self._handout.find(token, now)
        match settlement:
            case Complete():
                self._contents.holdings.remove(lock.held)
            case DeadLetter():
                self._check_main(lock.held)
                check_reason(settlement)
                row = self._contents.amended(lock.held, settlement.properties)
                self._contents.bury(row, settlement, now)
            case Defer():
                self._check_main(lock.held)
                row = self._contents.amended(lock.held, settlement.properties)
                self._contents.holdings.replace(row, attrs.evolve(row, state=State.DEFERRED))
            case Abandon(delivered=delivered):
                row = self._contents.amended(lock.held, settlement.properties)
                self._give_back(row, now, delivered=delivered)
        self._handout.end(lock)
        self.entity.touch(now)

    def renew(self, token: str | None, now: Now) -> int:
        """Extend a lock by the lock duration; return until when (wall) it holds."""
        return self._handout.renew(token, now)

    def release(self, tokens: Iterable[str], now: Now, *, delivered: bool = True) -> None:
        """
        Give back what is still locked of `tokens`.

        With `delivered=False` nobody has seen the messages, so that it doesn't count.
        """
        for token in tokens:
            lock = self._handout.find_if_held(token, now)
            if lock is None:
                continue
            self._give_back(lock.held, now, delivered=delivered)
            self._handout.end(lock)

    def _give_back(self, row: Row, now: Now, *, delivered: bool) -> None:
        if not delivered:
            row = attrs.evolve(row, deliveries=row.deliveries - 1)
            self._contents.storage.rows.count_delivery(row, row.deliveries, durable=False)
        self._contents.give_back(row, now)

    def quarantine(self, token: str, now: Now) -> None:
        """Put a locked message aside: it can't be read."""
        lock = self._handout.find(token, now)
        self._contents.holdings.quarantine(lock.held)
        self._handout.end(lock)

    def _check_main(self, row: Row) -> None:
        if row.state in {State.DEAD, State.TRANSFER}:
            raise InvalidRequest(f"{self.path}: a dead letter can be completed or given back only")

    # --- what becomes due

    def sweep(self, now: Now) -> None:
        """Do what time has brought about: locks that ran out, scheduled and expired messages."""
        first_end = self._handout.next_end()
        if first_end is not None and first_end <= now.monotonic:
            for row in self._handout.run_out(now):
                self._contents.give_back(row, now)
        sessions = self._contents.sessions
        if sessions is not None:
            for session in sessions.run_out(now):
                self.release(session.held.tokens, now)
                sessions.let_go(session)
        self._contents.sweep(now)

    def next_event(self, now: Now) -> float | None:
        """When (monotonic) `sweep` finds something to do; it may be less than it seems."""
        first = self._handout.next_end()
        sessions = self._contents.sessions
        session_end = None if sessions is None else sessions.next_end()
        for moment in (session_end, self._contents.next_date(now)):
            if moment is not None and (first is None or moment < first):
                first = moment
        return None if first == math.inf else first

    @property
    def account(self) -> Account:
        return self._contents.account

    @property
    def has_scheduled(self) -> bool:
        return self._contents.holdings.count(State.SCHEDULED) > 0

    def forsake(self) -> None:
        """Give up the queue: what it holds counts no more against a quota shared with others."""
        self._contents.holdings.forsake()

    @property
    def has_errands(self) -> bool:
        """Whether `sweep` is needed in time even if nobody waits for a message here."""
        contents = self._contents
        onward = contents.onward is not None or contents.onward_dead is not None
        return onward or contents.sessions is not None

    # --- telling

    def drain_news(self, now: Now) -> News:
        """What has changed for others since the last call."""
        holdings, sessions = self._contents.holdings, self._contents.sessions
        active, dead, transfer = holdings.drain_fresh()
        news = News(active=active, dead=dead, transfer=transfer, due=self.next_event(now))
        if holdings.quarantined:
            news.quarantined, holdings.quarantined = holdings.quarantined, []
        if sessions is not None:
            news.active, news.sessions = sessions.drain_fresh(), sessions.drain_rung()
            news.damaged = sessions.drain_damaged()
        return news

    def peek(self, states: Sequence[State], from_sequence: int, limit: int) -> list[Row]:
        """Rows from that sequence number on, in order, locked ones too; damaged ones never."""
        stored = self._contents.storage.rows
        first = min(max(from_sequence, 0), MAX_SEQUENCE)
        found = (stored.after(state, first - 1, limit) for state in states)
        rows = heapq.merge(*found, key=lambda row: row.sequence)
        return [row for row in rows if not row.damaged][:limit]

    def info(self) -> EntityInfo:
        entity, holdings = self.entity, self._contents.holdings
        return EntityInfo(
            path=entity.path,
            properties=entity.properties,
            max_message_size=entity.max_message_size,
            active=holdings.count(State.ACTIVE),
            dead_lettered=holdings.count(State.DEAD),
            scheduled=holdings.count(State.SCHEDULED),
            deferred=holdings.count(State.DEFERRED),
            transfer_dead_lettered=holdings.count(State.TRANSFER),
            size=holdings.bytes,
            created=to_date(entity.created),
            updated=to_date(entity.updated),
            accessed=to_date(entity.accessed) if entity.accessed else None,
            version=entity.version,
        )
