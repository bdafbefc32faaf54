"""
Leaves the records of one process on the secondary: small messages with a short time to live, so
that their queue stays small and nobody has to receive from it.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import jittered
from gateway.domain.billing import UPKEEP
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound, NotSupported
from gateway.domain.events.gateway import HeartbeatsNotLeft
from gateway.domain.health.process_records import ProcessRecord
from gateway.domain.health.record_coding import body_of
from gateway.domain.message import Message
from gateway.pairing.records.place import RecordPlace, place_of
from gateway.pairing.records.reader import Keys
from gateway.ports import Broker, NewId, Observer

ANSWER_LIMIT: Final = 5.0  # seconds
SELDOM: Final = 600.0  # seconds until the next attempt after a refusal
# Seconds from one record to the next of a process without a syphon. A thousand of them leave fewer
# than two records a second while they have nothing to tell, and nine while they divert.
USUAL: Final = 600.0
FIGURES: Final = 120.0
JITTER: Final = 0.1
SOON: Final = 2.0  # seconds until an order is told again that couldn't be told
LAST_WORD: Final = 1.0  # seconds: the end of a process doesn't wait for longer


@attrs.define(eq=False, kw_only=True)
class RecordWriter:
    """
    Leaves the records of one process: at once after each change of `urgent`; every `interval`; and
    every `FIGURES` seconds while its figures change or it has problems. They never disturb the
    process: a failure is no evidence about the secondary, and a refusal is reported once.
    """

    secondary: Broker
    label: str
    keys: Keys = attrs.field(on_setattr=attrs.setters.frozen)
    describe: Callable[[], Awaitable[ProcessRecord]]  # at present
    interval: float  # seconds
    rng: random.Random
    new_id: NewId
    observer: Observer
    urgent: Changes = attrs.field(factory=Changes)
    on_left: Callable[[], None] = lambda: None  # after each record that the secondary has
    first_after: float = 0.0  # seconds: processes that start together leave theirs one by one
    _refused: bool = attrs.field(default=False, init=False)
    _failed: bool = attrs.field(default=False, init=False)
    _revision: int = attrs.field(default=0, init=False)
    _left: ProcessRecord | None = attrs.field(default=None, init=False)
    _left_at: float = attrs.field(default=0.0, init=False)  # by Trio's clock

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Return at once if the secondary can't show messages; else run until cancelled. The last
        record tells of the end, if the one before it could be left.
        """
        task_status.started()
        seen = self.urgent.version
        if not seen:
            with trio.move_on_after(self.first_after):
                seen = await self.urgent.wait(seen)
        place = place_of(self.secondary, self.label)
        if place is None or not await self._can_be_read(place):
            return
        UPKEEP.set(True)  # of this task
        try:
            await self._leave_until_cancelled(place, seen)
        finally:
            if self._left is not None and not self._failed:
                with trio.move_on_after(LAST_WORD, shield=True):
                    await self._leave(place, attrs.evolve(self._left, ended=True))

    async def _leave_until_cancelled(self, place: RecordPlace, seen: int) -> None:
        while True:
            await self._leave(place, await self.describe())
            seen = await self._wait(place, seen)

    async def _wait(self, place: RecordPlace, seen: int) -> int:
        """Return the version of `urgent` when the next record is due."""
        while True:
            with trio.move_on_after(self._pause(place)) as pause:
                return await self.urgent.wait(seen)
            if pause.cancelled_caught and (self._failed or await self._is_due()):
                return seen

    def _pause(self, place: RecordPlace) -> float:
        if self._refused:
            return max(self.interval, SELDOM)
        if self._failed and self.urgent.version:
            return SOON
        return jittered(self._renews(place), JITTER, self.rng)

    def _renews(self, place: RecordPlace) -> float:
        """Seconds between two records of a process with problems."""
        return self.interval if place.piles_up else min(self.interval, FIGURES)

    async def _is_due(self) -> bool:
        if trio.current_time() - self._left_at >= self.interval * (1 - 2 * JITTER):
            return True
        now, left = await self.describe(), self._left
        return (
            left is None
            or bool(now.problems)
            or (now.gateway, now.syphon, now.problems)
            != (
                left.gateway,
                left.syphon,
                left.problems,
            )
        )

    async def _can_be_read(self, place: RecordPlace) -> bool:
        """False if the secondary can show no messages, so that nobody would see a record."""
        if place.is_stream:  # this process may have no right to read it
            return True
        with trio.move_on_after(ANSWER_LIMIT):
            try:
                await place.read(0, 1)
            except NotSupported:
                return False
            except BrokerError:
                return True
        return True

    async def _leave(self, place: RecordPlace, record: ProcessRecord) -> None:
        self._revision += 1
        record = attrs.evolve(
            record,
            revision=self._revision,
            interval=self.interval,
            renews=self._renews(place),
        )
        until_next = timedelta(seconds=self.interval * (1 + 2 * JITTER))
        message = Message(
            message_id=self.new_id(),
            body=body_of(record, self.label, self.keys()),
            content_type="application/json",
            time_to_live=until_next if place.piles_up and not record.orders else record.kept_for,
        )
        self._failed = True
        with trio.move_on_after(ANSWER_LIMIT):
            self._failed = not await self._is_left(place, message)
        if not self._failed:
            self._left, self._left_at = record, trio.current_time()
            self.on_left()

    async def _is_left(self, place: RecordPlace, record: Message) -> bool:
        try:
            try:
                await place.leave(record)
            except EntityNotFound:
                with suppress(EntityExists):
                    await place.create()
                await place.leave(record)
        except BrokerError as error:
            if error.counts_as_outage:
                return False  # of which everybody knows by other signs
            if not self._refused:
                self.observer.report(HeartbeatsNotLeft(queue=place.queue, reason=str(error)))
            self._refused = True
            return False
        self._refused = False
        return True
