"""
Reads the records of a pair's processes from the secondary, without taking them away.

A secondary that can't show its messages gets no records. RabbitMQ tells of processes without one
whether they receive from the backlog.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import inf
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain import backlog
from gateway.domain.clocks.clock_note import LARGE
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.domain.events.gateway import RecordRefused
from gateway.domain.health.heartbeats import MISSED
from gateway.domain.health.process_records import MOST_RECORDS, PairRecords, ProcessRecord
from gateway.domain.health.record_coding import WrongSeal, record_in
from gateway.domain.message import Delivery
from gateway.domain.operators.given_orders import GivenOrder
from gateway.pairing.records.place import RecordPlace, place_of
from gateway.ports import Broker, Observer, WallClock

LOOK_LIMIT: Final = 1.0  # seconds; somebody waits for a status or a start
PAGE: Final = 100
MOST_PAGES: Final = 50  # of one look; the next one goes on
# Seconds after which a queue without new records is asked whether it was created again.
RECHECK: Final = 20.0
# Seconds until a stream is read again that this process may not read, or that is missing.
REFUSED: Final = 3600.0
MISSING: Final = 600.0

Keys = Callable[[], Sequence[EnvelopeKey]]
"""The keys of the envelope at present; a reload changes them."""


def no_keys() -> Sequence[EnvelopeKey]:
    """Return no key: seals aren't checked."""
    return ()


@attrs.frozen
class _LastSeen:
    """The last record of a process; the dates are by Trio's clock."""

    record: ProcessRecord
    until: float  # for as long the process counts as alive
    orders_until: float  # for as long its orders hold
    problems_until: float  # for as long its problems hold, if it doesn't tell them again


@attrs.define(eq=False, kw_only=True)
class RecordReader:
    """
    Finds out which processes the pair has, and what they tell.

    A record's age is the time since its date, where both clocks agree. A record from the future, or
    one that follows another of its process, has just come, whatever its date says.
    """

    secondary: Broker
    label: str
    clock: WallClock
    process: str = ""  # the id of this process, whose record is among those that are read
    keys: Keys = attrs.field(default=no_keys, on_setattr=attrs.setters.frozen)
    observer: Observer | None = None  # of records that are refused
    changes: Changes = attrs.field(factory=Changes, init=False)  # after each look
    # The secondary lets this process read records; None: not known yet.
    may_read: bool | None = attrs.field(default=None, init=False)
    # False: the secondary shows messages to nobody, so that there are no records.
    exists: bool = attrs.field(default=True, init=False)
    known: PairRecords = attrs.field(factory=PairRecords, init=False)  # by the last look
    pages: int = attrs.field(default=0, init=False)  # that the last look has asked for
    _seen: dict[str, _LastSeen] = attrs.field(factory=dict, init=False)  # by process
    _next: int = attrs.field(default=0, init=False)  # sequence number
    _first: tuple[int, object] = attrs.field(init=False)  # number and message id, once one is read
    _checked: float = attrs.field(default=0.0, init=False)  # by Trio's clock
    _last: datetime | None = attrs.field(default=None, init=False)
    _since: datetime | None = attrs.field(default=None, init=False)
    _refused: int = attrs.field(default=0, init=False)
    _looked: float = attrs.field(default=-inf, init=False)  # by Trio's clock
    _not_before: float = attrs.field(default=-inf, init=False)  # by Trio's clock
    _has_all: bool = attrs.field(default=False, init=False)  # that were there at the first look
    _unread: str = attrs.field(default="", init=False)  # why the stream can't be read
    _is_missing: bool = attrs.field(default=False, init=False)  # the stream, by the last read
    _looking: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def look(self, seconds: float = LOOK_LIMIT) -> PairRecords:
        """
        Ask the secondary, or wait for a call that asks it now; for so long at most. Raises nothing:
        `unknown` has the reason for which nothing was read. The orders in force by older records
        are told all the same.
        """
        if self._looking.locked():
            with trio.move_on_after(seconds):
                await self.changes.wait_next()
            return self.known
        async with self._looking:
            return await self._ask(seconds)

    async def _ask(self, seconds: float) -> PairRecords:
        self.pages, self._looked = 0, trio.current_time()
        consumers, unknown = 0, "the secondary doesn't answer"
        with trio.move_on_after(seconds):
            try:
                consumers = await self._look()
                unknown = ""
            except EntityNotFound:
                unknown = self._without_queue()
            except (NotAuthorized, NotSupported) as error:
                self.may_read = False
                self.exists = isinstance(error, NotAuthorized)
                unknown = str(error) if self.exists else "the secondary can't show messages"
            except BrokerError as error:
                unknown = str(error)
        self.known = self._told(consumers, unknown)
        self.changes.notify()
        return self.known

    @property
    def others(self) -> Sequence[ProcessRecord]:
        """The other processes that are alive."""
        return [each for each in self.known.alive if each.process != self.process]

    async def look_again(self, seconds: float) -> None:
        """As `look`, unless somebody has looked in the last `seconds`, or nothing may be read."""
        if self.may_read is not False and trio.current_time() >= self._looked + seconds:
            await self.look()

    def expect_stream(self) -> None:
        """Read a stream again that was missing: this process could leave a record on it."""
        if self._is_missing:
            self._is_missing, self.exists, self.may_read, self._not_before = False, True, None, -inf
            self.changes.notify()

    async def _look(self) -> int:
        """Read what is new; return the number of consumers where no syphon tells of itself."""
        place = place_of(self.secondary, self.label)
        if place is None:
            self.may_read = False
            return await self._count_consumers()
        if not place.is_stream:
            await self._read_news(place)
            return 0
        if trio.current_time() >= self._not_before:
            await self._read_stream(place)
        if not self.may_read:
            return await self._count_consumers()
        if any(each.syphon for each in self._alive()):
            return 0
        with suppress(BrokerError):  # the records tell enough
            return await self._count_consumers()
        return 0

    async def _read_stream(self, place: RecordPlace) -> None:
        """Note that nothing can be read, or read what is new. Raises other errors."""
        try:
            await self._read_news(place)
        except (EntityNotFound, NotAuthorized, NotSupported) as error:
            self.may_read, self.exists = False, isinstance(error, NotAuthorized)
            self._unread, self._is_missing = str(error), isinstance(error, EntityNotFound)
            self._not_before = trio.current_time() + (MISSING if self._is_missing else REFUSED)

    async def _read_news(self, place: RecordPlace) -> None:
        if not await self._read(place) and await self._was_created_again(place):
            self._next, self._has_all = 0, False
            await self._read(place)
        self.may_read = self.exists = True
        self._unread, self._is_missing = "", False

    async def _read(self, place: RecordPlace) -> int:
        """Read the records from `_next` on; return how many messages there were."""
        count = 0
        for _ in range(MOST_PAGES):
            peeked = await self._page(place, self._next, PAGE)
            if not peeked:
                self._has_all = True
                break
            if not self._next:
                self._first = _place_of(peeked[0])
            self._note(peeked, is_old=place.is_stream and not self._has_all)
            count += len(peeked)
            self._next = max(each.sequence_number for each in peeked) + 1
        return count

    async def _was_created_again(self, place: RecordPlace) -> bool:
        """True if the queue's numbers have started again; it is asked now and then."""
        now = trio.current_time()
        if not self._next or now < self._checked + RECHECK:
            return False
        self._checked = now
        peeked = await self._page(place, 0, 1)
        if not peeked:
            return False
        first, self._first = self._first, _place_of(peeked[0])
        return self._first[0] < first[0] or (self._first[0] == first[0] and self._first != first)

    async def _page(self, place: RecordPlace, first: int, limit: int) -> Sequence[Delivery]:
        self.pages += 1
        return await place.read(first, limit)

    def _note(self, peeked: Sequence[Delivery], *, is_old: bool) -> None:
        """`is_old`: they were left before this process looked, and may have expired."""
        for record in filter(None, map(self._open, peeked)):
            before = self._seen.get(record.process)
            if before is not None and not _follows(record, before.record):
                continue
            age = max(self.clock() - record.at, timedelta())
            if age > record.kept_for:
                if is_old:
                    continue
                age = timedelta() if before is not None else age
            now = trio.current_time() - age.total_seconds()
            self._seen.pop(record.process, None)
            self._seen[record.process] = _LastSeen(
                record=record,
                until=now + record.alive_for.total_seconds(),
                orders_until=now + record.kept_for.total_seconds(),
                problems_until=now + (record.renewal * MISSED).total_seconds(),
            )
            if len(self._seen) > MOST_RECORDS:
                del self._seen[next(iter(self._seen))]
            if record.syphon and (self._last is None or _is_later(record.at, self._last)):
                self._last = record.at

    def _open(self, delivery: Delivery) -> ProcessRecord | None:
        try:
            return record_in(
                delivery.message.body, self.label, self.keys(), enqueued=delivery.enqueued
            )
        except WrongSeal as error:
            self._refused += 1
            if self._refused == 1 and self.observer is not None:
                queue = backlog.heartbeat_queue(self.label)
                self.observer.report(RecordRefused(queue=queue, reason=str(error)))
            return None

    async def _count_consumers(self) -> int:
        """RabbitMQ counts the consumers of a queue, also those that leave no records."""
        info = await self.secondary.inspect(backlog.queue_name(self.label, 0))
        if info.active is None and not info.other_consumers:
            raise NotSupported("the secondary neither shows messages nor counts receivers")
        if info.other_consumers:
            self._last = self.clock()
        return info.other_consumers

    def _without_queue(self) -> str:
        """Known only if this process has seen a syphon before: others may lack the rights."""
        return "" if self._last else "no syphon has left a heartbeat on the secondary yet"

    def _alive(self) -> list[ProcessRecord]:
        """The records of the processes that are alive, the newest first."""
        now = trio.current_time()
        here = [
            e.record if now <= e.problems_until else attrs.evolve(e.record, problems=())
            for e in self._seen.values()
            if now <= e.until and not e.record.ended
        ]
        return sorted(here, key=lambda each: each.at, reverse=True)

    def _told(self, consumers: int, unknown: str) -> PairRecords:
        now = trio.current_time()
        if not unknown:
            self._since = self._since or self.clock()
        seen = sorted(self._seen.values(), key=lambda each: each.record.at, reverse=True)
        orders: list[GivenOrder] = []
        for each in seen:
            orders += each.record.orders if now <= each.orders_until else ()
        return PairRecords(
            at=None if unknown else self.clock(),
            alive=tuple(self._alive()),
            stale=tuple(each.record for each in seen if now > each.until and not each.record.ended),
            ended=tuple(each.record for each in seen if each.record.ended),
            orders=tuple(orders),
            consumers=consumers,
            last_syphon=self._last,
            since=self._since,
            refused=self._refused,
            unknown=unknown,
            unread=self._unread,
        )


def _place_of(delivery: Delivery) -> tuple[int, object]:
    return delivery.sequence_number, delivery.message.message_id


def _follows(record: ProcessRecord, earlier: ProcessRecord) -> bool:
    if record.version and earlier.version:
        return record.revision > earlier.revision
    return _is_later(record.at, earlier.at)


def _is_later(date: datetime, earlier: datetime) -> bool:
    """True for a later date, also if the clock was set back by years meanwhile."""
    return date > earlier or earlier - date > timedelta(seconds=LARGE)
