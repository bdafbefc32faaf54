"""
Tells which keys of ordered entities may have messages on the backlog, so that their sends must go
there.

A key is *at home* if none of its messages is on the backlog: then its next send may go to the
primary. The proof is a complete list of the messages in the key's backlog queue, locked ones
included, that began after the key's last diverted send had ended: the syphon completes a message
only after the primary has accepted it. A count of messages would be no proof, as some namespaces
count only those that nobody has locked.
"""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.changes import Changes
from gateway.domain.billing import UPKEEP
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.failover import State
from gateway.extensions.order.keys import OrderKey
from gateway.extensions.order.queues import ordered_queues
from gateway.extensions.order.status import OrderStatus
from gateway.offering import required
from gateway.pairing.states import EntityStates
from gateway.ports import Broker

PAGE: Final = 100  # messages per request
MOST_LISTED: Final = 1000  # messages: the list of a queue with more is incomplete
ANSWER_LIMIT: Final = 10.0  # seconds for the whole list
# Seconds from one list to the next: while a send waits for it; while keys may come home; else.
AT_ONCE: Final = 0.1
SOON: Final = 1.0
LATER: Final = 5.0
MOST_AWAY: Final = 100_000  # keys of a queue; with more, all keys of the queue count as away
# States in which keys may return soon.
MAY_REACH_PRIMARY: Final = frozenset({State.PRIMARY, State.SUSPECT, State.HALF_OPEN})


@attrs.define(eq=False)
class _Away:
    """A key with messages on the backlog, or perhaps some."""

    entity: EntityPath | None  # None: not known
    version: int  # of the queue, when the key's last diverted send began or ended
    # Messages on the backlog by the last complete list, and those diverted since; None: no list.
    left: int | None = None
    took: float = 0.0  # seconds that the key's last diverted send took
    no_wait_before: float = 0.0  # no send waits for the key's return before that time


@attrs.define(eq=False)
class OrderedQueue:
    """A backlog queue of ordered entities, as this gateway knows it."""

    path: EntityPath
    # Since that version the queue may have messages of any key; None: only of those in `away`.
    any_key: int | None = 0
    most_away: int = MOST_AWAY  # keys
    away: dict[str, _Away] = attrs.field(factory=dict, init=False)  # by the key's digest
    waiting: int = attrs.field(default=0, init=False)  # sends that wait for a key's return
    # While it may have messages of any key, no send waits for a key's return before that time.
    no_wait_before: float = attrs.field(default=0.0, init=False)
    is_long: bool = attrs.field(default=False, init=False)  # too long to be listed as a whole
    wanted: Changes = attrs.field(factory=Changes, init=False)  # a list is wanted earlier
    _version: int = attrs.field(default=0, init=False)

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_home(self) -> bool:
        """True if no key has a message on this queue."""
        return self.any_key is None and not self.away

    def may_return_soon(self, key: OrderKey, few: int) -> bool:
        """True if a send may wait for the key's return: at most `few` messages may be left."""
        now, away = trio.current_time(), self.away.get(key.digest)
        if self.any_key is not None:
            return not self.is_long and now >= self.no_wait_before
        if away is None:
            return True
        return away.left is not None and away.left <= few and now >= away.no_wait_before

    def record_wait_in_vain(self, key: OrderKey, seconds: float) -> None:
        """For so long no send waits for the key's return."""
        no_wait_before = trio.current_time() + seconds
        if self.any_key is not None:
            self.no_wait_before = no_wait_before
        if (away := self.away.get(key.digest)) is not None:
            away.no_wait_before = no_wait_before

    def record_diverted(self, key: OrderKey, messages: int) -> None:
        """A send of that key with so many messages to this queue begins; or it has ended (0)."""
        self._version += 1
        away = self.away.get(key.digest)
        if away is not None:
            away.entity, away.version = key.entity, self._version
            away.left = None if away.left is None else away.left + messages
        elif len(self.away) < self.most_away:
            self.away[key.digest] = _Away(key.entity, self._version)
            self.wanted.notify()
        else:
            self.any_key = self._version

    def record_refused(self, key: OrderKey) -> None:
        """The queue has certainly not got the messages of the first send of that key."""
        self.away.pop(key.digest, None)

    def forget(self) -> None:
        """Other gateways may have sent messages of any key to the queue."""
        self._version += 1
        self.any_key, self.no_wait_before = self._version, 0.0
        self.wanted.notify()

    def record_list(self, found: Counter[str], version: int) -> None:
        """
        Note a complete list of the queue: the number of messages of each key. `version` is the
        queue's when the list began.
        """
        for digest, away in list(self.away.items()):
            away.left = found[digest]
            if not away.left and away.version <= version:
                del self.away[digest]
        if self.any_key is not None and self.any_key <= version:
            self.any_key = None
            for digest, messages in found.items():
                self.away.setdefault(digest, _Away(None, version, messages))
        self.is_long = False


@attrs.define(eq=False, kw_only=True)
class OrderWatch:
    """
    Knows for each ordered queue which keys are away, and lists it while some are.

    `gateway.pairing.additions.Kept`: the state file has the queues that are empty at the end.
    """

    secondary: Broker
    label: str
    states: EntityStates
    key: ClassVar[str] = "empty_ordered"
    most_listed: int = MOST_LISTED  # messages
    queues: Sequence[OrderedQueue] = attrs.field(init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)  # of what is known

    @queues.default
    def _queues(self) -> Sequence[OrderedQueue]:
        return [OrderedQueue(path) for path in ordered_queues(self.label)]

    def queue_of(self, key: OrderKey) -> OrderedQueue:
        return self.queues[key.number]

    def is_home(self, key: OrderKey) -> bool:
        """True if the backlog has no message of that key."""
        queue = self.queue_of(key)
        return queue.any_key is None and key.digest not in queue.away

    def status(self) -> OrderStatus:
        """The keys in numbers."""
        return OrderStatus(
            away=sum(len(queue.away) for queue in self.queues),
            unknown=sum(queue.any_key is not None for queue in self.queues),
            waiting=sum(queue.waiting for queue in self.queues),
        )

    def names(self) -> tuple[str, ...]:
        """The names of the queues that have no message of any key."""
        return tuple(queue.path.name for queue in self.queues if queue.is_home)

    def restore(self, names: Sequence[str]) -> None:
        """As `Kept.restore`: the queues with these names were empty."""
        for queue in self.queues:
            if queue.path.name in names:
                queue.any_key = None

    async def wait_home(self, key: OrderKey, deadline: float, few: int) -> bool:
        """
        Wait for the key's return. False: it is still away at the deadline, or more than `few` of
        its messages are left.
        """
        queue = self.queue_of(key)
        queue.waiting += 1
        try:
            queue.wanted.notify()
            with trio.move_on_at(deadline):
                while not self.is_home(key) and queue.may_return_soon(key, few):
                    await self.changes.wait_next()
        finally:
            queue.waiting -= 1
        return self.is_home(key)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """List the queues until cancelled."""
        UPKEEP.set(True)  # of this task
        async with trio.open_nursery() as nursery:
            for queue in self.queues:
                nursery.start_soon(self._watch, queue)
            task_status.started()

    async def _watch(self, queue: OrderedQueue) -> None:
        while True:
            seen = queue.wanted.version
            if queue.is_home:
                await queue.wanted.wait(seen)
            await self._list(queue)
            seen = queue.wanted.version
            await trio.sleep(AT_ONCE)
            if not queue.waiting:
                with trio.move_on_after(self._pause(queue) - AT_ONCE):
                    await queue.wanted.wait(seen)

    def _pause(self, queue: OrderedQueue) -> float:
        """Seconds until the next list, if no send waits for it."""
        if queue.any_key is not None:
            return SOON
        for away in queue.away.values():
            if away.entity is None or self.states.state_of(away.entity) in MAY_REACH_PRIMARY:
                return SOON
        return LATER

    async def _list(self, queue: OrderedQueue) -> None:
        version = queue.version
        with trio.move_on_after(ANSWER_LIMIT):
            try:
                found = await self._count(queue.path)
            except BrokerError:
                return  # it is listed again soon
            if found is None:
                queue.is_long = True
            else:
                queue.record_list(found, version)
            self.changes.notify()

    async def _count(self, queue: EntityPath) -> Counter[str] | None:
        """The number of messages of each key; None: there are too many."""
        peeks, found, first = required(self.secondary, Peeks), Counter[str](), 0
        while found.total() < self.most_listed:
            try:
                page = await peeks.peek(queue, from_sequence=first, limit=PAGE)
            except EntityNotFound:
                return Counter()
            found.update(each.message.session_id or "" for each in page)
            if not page:
                return found
            first = page[-1].sequence_number + 1
        return None
