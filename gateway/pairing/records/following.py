"""Lets a process follow the orders in the records of the pair's other processes."""

import random
from typing import Final

import attrs
import trio

from gateway.domain.backoff import jittered
from gateway.domain.health.process_records import PairRecords
from gateway.pairing.control import Control
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import LOOK_LIMIT, REFUSED, RecordReader

# Seconds between two readings of a process that moves messages: with the jitter at most two.
SYPHON_READS: Final = 1.8
# The same for each of many: all together read five times a second.
SYPHONS_A_SECOND: Final = 5.0
# Seconds for each process of the pair and each page of records, between two readings of a gateway
# that moves nothing: all together read once in two seconds.
GATEWAY_READS: Final = 2.0
LEAST: Final = 60.0
JITTER: Final = 0.1
# Seconds for a reading that nobody waits for: a busy secondary may take longer than a status waits.
PATIENCE: Final = 5.0


@attrs.define(eq=False, kw_only=True)
class OrderFollower:
    """Reads the records and puts the orders of other processes into force here."""

    reader: RecordReader
    control: Control
    book: OrderBook
    moves: bool  # this process moves the backlog
    host: str
    kind: str
    rng: random.Random
    # There is no state file: the orders of the process before, on the same host, are taken over.
    inherits: bool = False
    # Nothing is moved until the records were read, or can't be: not even if that takes long.
    waits: bool = False
    _heard: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. What moves messages starts after the first reading."""
        self.control.pauses.blind = self.waits
        if self.moves:
            with trio.move_on_after(LOOK_LIMIT):
                self.follow(await self.reader.look())
        task_status.started()
        seen = self.reader.changes.version
        if not self.moves:
            with trio.move_on_after(self.rng.uniform(0.0, LEAST)):
                await self.reader.changes.wait(seen)
        while True:
            if self.reader.changes.version == seen:
                await self.reader.look(PATIENCE)
            seen = self.reader.changes.version
            self.follow(self.reader.known)
            with trio.move_on_after(jittered(self.pause(), JITTER, self.rng)):
                await self.reader.changes.wait(seen)

    def follow(self, records: PairRecords) -> None:
        """Put the orders of these records into force; without a reading, until they expire."""
        is_over = self.reader.may_read is False or not records.unknown
        if is_over and self.control.pauses.blind:
            self.control.pauses.blind = False
            self.control.pauses.apply()
        if self.inherits and not records.unknown and not self._heard:
            for each in (*records.alive, *records.stale, *records.ended):
                if (each.host, each.kind) == (self.host, self.kind):
                    self.book.adopt(each.orders)
        self._heard = self._heard or not records.unknown
        if not records.unknown:
            others = [each for each in records.alive if each.process != self.book.process]
            self.book.hear_reload(max((each.reload for each in others), default=0))
        if self._heard:
            self.control.follow(records.orders)
        else:
            self.control.forget_expired()

    def pause(self) -> float:
        """Seconds until the next reading, on average."""
        if self.reader.may_read is False:
            return REFUSED
        known = self.reader.known
        if self.moves:
            syphons = sum(each.syphon is not None for each in known.alive)
            return max(SYPHON_READS, syphons / SYPHONS_A_SECOND)
        return max(LEAST, GATEWAY_READS * len(known.alive) * max(1, self.reader.pages))
