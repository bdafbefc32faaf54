"""
The heartbeats of syphons: small messages in a queue of their own on the secondary.

Each syphon sends one every `heartbeat_interval`, with a short time to live, so that the queue stays
small and nobody has to receive from it. Each reading of the backlog's depth peeks them. A secondary
that can't show its messages gets no heartbeats; RabbitMQ tells instead whether other processes
receive from the backlog.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain import backlog
from gateway.domain.billing import UPKEEP
from gateway.domain.clocks.clock_note import LARGE
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound, NotSupported
from gateway.domain.events.gateway import HeartbeatsNotLeft
from gateway.domain.health.heartbeats import Heartbeat, SyphonsSeen, newest_among
from gateway.domain.message import Delivery, Message
from gateway.offering import offered
from gateway.ports import Broker, NewId, Observer, WallClock

ANSWER_LIMIT: Final = 5.0  # seconds
LOOK_LIMIT: Final = 1.0
PAGE: Final = 100
MOST_PAGES: Final = 10
MOST_KEPT: Final = 1000  # syphons that a reader remembers
LONGEST_NAME: Final = 100  # characters
SELDOM: Final = 600.0  # seconds until the next attempt after a refusal
LONGEST_INTERVAL: Final = 86_400.0  # seconds
_KEY: Final = "pairgate-syphon"


@attrs.define(eq=False, kw_only=True)
class Heartbeats:
    """
    Leaves the heartbeats of one syphon. They never disturb it: a failure is no evidence about the
    secondary, and a refusal is reported once.
    """

    secondary: Broker
    label: str
    interval: float
    host: str
    process: str
    pid: int
    clock: WallClock
    new_id: NewId
    observer: Observer
    moved: Callable[[], int]  # messages since the start
    paused: Callable[[], bool]
    _refused: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return at once if the secondary can't show messages; else run until cancelled."""
        task_status.started()
        if not await self._can_be_read():
            return
        UPKEEP.set(True)  # of this task
        syphon, started = self.new_id(), self.clock()
        while True:
            heartbeat = Heartbeat(
                syphon=syphon,
                host=self.host[:LONGEST_NAME],
                process=self.process,
                pid=self.pid,
                started=started,
                at=self.clock(),
                interval=self.interval,
                moved=self.moved(),
                paused=self.paused(),
            )
            with trio.move_on_after(ANSWER_LIMIT):
                await self._leave(heartbeat)
            await trio.sleep(max(self.interval, SELDOM) if self._refused else self.interval)

    async def _can_be_read(self) -> bool:
        """False if the secondary can show no messages, so that nobody would see a heartbeat."""
        await trio.lowlevel.checkpoint()
        peeks = offered(self.secondary, Peeks)
        if peeks is None:
            return False
        with trio.move_on_after(ANSWER_LIMIT):
            try:
                await peeks.peek(backlog.heartbeat_queue(self.label))
            except NotSupported:
                return False
            except BrokerError:
                return True
        return True

    async def _leave(self, heartbeat: Heartbeat) -> None:
        message = Message(
            message_id=self.new_id(),
            body=body_of(heartbeat),
            content_type="application/json",
            time_to_live=heartbeat.lifetime,
        )
        queue = backlog.heartbeat_queue(self.label)
        try:
            try:
                await self.secondary.send(queue, [message])
            except EntityNotFound:
                with suppress(EntityExists):
                    await self.secondary.create_queue(queue, QueueProperties())
                await self.secondary.send(queue, [message])
        except BrokerError as error:
            if error.counts_as_outage:
                return  # of which everybody knows by other signs
            if not self._refused:
                self.observer.report(HeartbeatsNotLeft(queue=queue, reason=str(error)))
            self._refused = True
        else:
            self._refused = False


@attrs.frozen
class _LastSeen:
    """The last heartbeat of a syphon, which counts as alive until then, by Trio's clock."""

    heartbeat: Heartbeat
    until: float


@attrs.define(eq=False, kw_only=True)
class HeartbeatReader:
    """
    Finds out which syphons are alive.

    A heartbeat's age is the time since its date, where both clocks agree. A heartbeat from the
    future, or one that follows another of its syphon, has just come, whatever its date says.
    """

    secondary: Broker
    label: str
    clock: WallClock
    _seen: dict[str, _LastSeen] = attrs.field(factory=dict, init=False)  # by syphon
    _next: int = attrs.field(default=0, init=False)  # sequence number
    _last: datetime | None = attrs.field(default=None, init=False)
    _since: datetime | None = attrs.field(default=None, init=False)

    async def look(self) -> SyphonsSeen:
        """Ask the secondary, for `LOOK_LIMIT` at most. Raises nothing."""
        found = SyphonsSeen(unknown="the secondary doesn't answer")
        with trio.move_on_after(LOOK_LIMIT):
            try:
                found = await self._look()
            except EntityNotFound:
                found = self._without_queue()
            except NotSupported:
                found = SyphonsSeen(unknown="the secondary can't show messages")
            except BrokerError as error:
                found = SyphonsSeen(unknown=str(error))
        return found

    async def _look(self) -> SyphonsSeen:
        await trio.lowlevel.checkpoint()
        peeks = offered(self.secondary, Peeks)
        if peeks is None:
            return await self._count_consumers()
        if not await self._read(peeks, self._next) and self._next:
            # Perhaps the queue was created again, with new numbers.
            await self._read(peeks, 0)
        now = trio.current_time()
        alive = [each.heartbeat for each in self._seen.values() if now <= each.until]
        return self._told(self.clock(), alive=newest_among(alive))

    async def _read(self, peeks: Peeks, first: int) -> int:
        """Read the heartbeats from that sequence number on; return how many messages there were."""
        count, page, self._next = 0, PAGE, first
        for _ in range(MOST_PAGES):
            peeked = await peeks.peek(
                backlog.heartbeat_queue(self.label), from_sequence=self._next, limit=PAGE
            )
            self._note(peeked)
            count += len(peeked)
            page = len(peeked)
            if peeked:
                self._next = max(each.sequence_number for each in peeked) + 1
            if page < PAGE:
                break
        return count

    def _note(self, peeked: Sequence[Delivery]) -> None:
        for heartbeat in filter(None, map(heartbeat_in, peeked)):
            before = self._seen.get(heartbeat.syphon)
            if before is not None and not _follows(heartbeat.at, before.heartbeat.at):
                continue
            age = max(self.clock() - heartbeat.at, timedelta())
            if before is not None and age > heartbeat.lifetime:
                age = timedelta()
            until = trio.current_time() + (heartbeat.lifetime - age).total_seconds()
            self._seen.pop(heartbeat.syphon, None)
            self._seen[heartbeat.syphon] = _LastSeen(heartbeat, until)
            if len(self._seen) > MOST_KEPT:
                del self._seen[next(iter(self._seen))]
            if self._last is None or _follows(heartbeat.at, self._last):
                self._last = heartbeat.at

    async def _count_consumers(self) -> SyphonsSeen:
        """RabbitMQ shows no message, but counts the consumers of a queue."""
        info = await self.secondary.inspect(backlog.queue_name(self.label, 0))
        if info.active is None and not info.other_consumers:
            return SyphonsSeen(unknown="the secondary neither shows messages nor counts receivers")
        now = self.clock()
        if info.other_consumers:
            self._last = now
        return self._told(now, consumers=info.other_consumers)

    def _without_queue(self) -> SyphonsSeen:
        """Known only if this process has seen a syphon before: others may lack the rights."""
        if self._last is None:
            return SyphonsSeen(unknown="no syphon has left a heartbeat on the secondary yet")
        return self._told(self.clock())

    def _told(
        self, now: datetime, *, alive: tuple[Heartbeat, ...] = (), consumers: int = 0
    ) -> SyphonsSeen:
        self._since = self._since or now
        known = [each.heartbeat for each in self._seen.values()]
        latest = max(known, key=lambda each: each.at, default=None)
        return SyphonsSeen(
            at=now,
            alive=alive,
            consumers=consumers,
            last=self._last,
            gone=None if alive or consumers else latest,
            since=self._since,
            unknown="",
        )


def body_of(heartbeat: Heartbeat) -> bytes:
    """The heartbeat as the body of a message."""
    value = {**attrs.asdict(heartbeat), "started": heartbeat.started.isoformat()}
    value["at"] = heartbeat.at.isoformat()
    return json.dumps({_KEY: value}).encode()


def heartbeat_in(delivery: Delivery) -> Heartbeat | None:
    """The heartbeat in a message; None: the message is another's."""
    body = delivery.message.body
    if not isinstance(body, bytes):
        return None
    try:
        found: Any = json.loads(body)[_KEY]
        heartbeat = Heartbeat(
            syphon=str(found["syphon"])[:LONGEST_NAME],
            host=str(found["host"])[:LONGEST_NAME],
            process=str(found["process"])[:LONGEST_NAME],
            pid=int(found["pid"]),
            started=_date(found["started"]),
            at=delivery.enqueued or _date(found["at"]),
            interval=float(found["interval"]),
            moved=int(found["moved"]),
            paused=found["paused"] is True,
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return heartbeat if 0.0 < heartbeat.interval <= LONGEST_INTERVAL else None


def _follows(date: datetime, earlier: datetime) -> bool:
    """True for a later date, also if the clock was set back by years meanwhile."""
    return date > earlier or earlier - date > timedelta(seconds=LARGE)


def _date(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
