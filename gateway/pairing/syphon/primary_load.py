"""
The load of one syphon on the primary, over all entities and backlog queues.

A syphon begins with a few sends at a time (`slow_start`), so that live traffic has room. While the
primary can't be reached it sends and receives nothing, and probes the primary, less often each
time. A syphon inside a gateway leaves that to the gateway's prober.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Unreachable
from gateway.domain.health.reachability import Reachability
from gateway.pairing.syphon.slow_start import Room, SlowStart
from gateway.ports import Broker

FIRST: Final = 8  # sends in flight at the start, and after a return of the primary
LEAST: Final = 4
MOST: Final = 256
PATIENCE: Final = 1.0  # seconds after which a send without an answer leaves room for others
MOST_SEEN: Final = 1000  # entities


@attrs.define(eq=False, kw_only=True)
class PrimaryLoad:
    """Shared by the drains of a syphon. `run` must live as long as they do."""

    primary: Broker
    rng: random.Random
    retry: Backoff
    attempt_timeout: float  # seconds, of a probe
    probes: bool = True  # false: a gateway's prober does it
    changes: Changes = attrs.field(factory=Changes, init=False)  # each loss and return
    _slow_start: SlowStart = attrs.field(
        factory=lambda: SlowStart(first=FIRST, least=LEAST, most=MOST), init=False
    )
    _reachability: Reachability = attrs.field(factory=Reachability, init=False)
    # Some may be in trouble alone, so that any of them is probed.
    _seen: Bounded[str, EntityPath] = attrs.field(factory=lambda: Bounded(MOST_SEEN), init=False)

    @property
    def is_lost(self) -> bool:
        """True while the primary can't be reached: several entities failed, and none answers."""
        return self._reachability.is_lost

    @property
    def limit(self) -> int:
        """The number of sends that may be in flight."""
        return self._slow_start.limit

    @asynccontextmanager
    async def room(self, entity: EntityPath) -> AsyncIterator[Room]:
        """
        Wait until a send to the entity may begin. The room ends with the block, or by `Room.leave`.
        """
        self._seen[entity.key] = entity
        async with self._slow_start.room() as room:
            yield room

    def answered(self, began: float, messages: int = 1) -> None:
        """Record that the primary accepted a send of `messages` messages that began at `began`."""
        self._found(began)
        self._slow_start.answered(began, messages)

    def failed(self, entity: EntityPath, began: float, error: BrokerError) -> None:
        """Record that a send that began at `began` failed, or has had no answer in time."""
        if isinstance(error, Busy):
            self._slow_start.lower(began)
        if not error.counts_as_outage:
            self._found(began)
            return
        if not self.probes:
            return
        self._seen[entity.key] = entity
        now, was_lost = trio.current_time(), self.is_lost
        if isinstance(error, Unreachable):
            self._reachability.unconnected(str(error), now)
        else:
            self._reachability.silent(entity.key, began, now)
        if self.is_lost and not was_lost:
            self._slow_start.start_again()
            self.changes.note()

    def backlog_busy(self, began: float) -> None:
        """
        Record that the backlog was too busy for a settlement that began at `began`. Each send to
        the primary has one, so fewer sends help.
        """
        self._slow_start.lower(began)

    async def wait_found(self) -> None:
        """Return when the primary isn't known to be unreachable; a checkpoint only if it is."""
        while self.is_lost:
            await self.changes.wait_next()

    async def wait_for_room(self) -> None:
        """Return when no send waits for room: more messages would only be kept locked."""
        await self._slow_start.wait_for_room()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, probe the primary while it can't be reached."""
        task_status.started()
        while True:
            seen, failures = self.changes.version, 0
            while self.is_lost:
                failures += 1
                with trio.move_on_after(self.retry.delay(failures, self.rng)):
                    await self.wait_found()
                if self.is_lost:
                    await self._probe()
            if self.changes.version == seen:
                await self.changes.wait(seen)

    async def _probe(self) -> None:
        entity = self.rng.choice([*self._seen.values()])
        began = trio.current_time()
        with trio.move_on_after(self.attempt_timeout) as scope:
            try:
                await self.primary.probe(entity)
            except BrokerError as error:
                if error.counts_as_outage:
                    return
        if not scope.cancelled_caught:
            self._found(began)

    def _found(self, began: float) -> None:
        if self._reachability.answered(began):
            self.changes.note()
