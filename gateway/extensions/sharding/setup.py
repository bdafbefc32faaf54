"""
Makes the shards that are missing, lets new shards join when they exist, and reports when a draining
shard is empty.
"""

import random
from typing import Final

import attrs
import trio

from gateway.capabilities import described
from gateway.config.options import Config
from gateway.domain.backoff import Backoff
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound
from gateway.domain.events.gateway import Doubtful
from gateway.extensions.sharding.events import ShardAdded, ShardDrained
from gateway.extensions.sharding.options import SHARDING, reloaded
from gateway.extensions.sharding.shards import is_empty, not_counted
from gateway.extensions.sharding.table import ShardedQueue, ShardTable
from gateway.ports import Broker, Observer

_AGAIN: Final = Backoff(first=1.0, cap=30.0)
_ASK_SECONDS: Final = 10.0  # of one answer about a shard
_DRAIN_INTERVAL: Final = 30.0  # seconds between two looks at a draining shard


@attrs.define(eq=False, kw_only=True)
class ShardSetup:
    """A service. `broker` has the shards; the table says which join and which drain."""

    broker: Broker
    table: ShardTable
    observer: Observer
    rng: random.Random
    watches_drains: bool = True  # not in a worker, whose parent does
    drain_interval: float = _DRAIN_INTERVAL
    _empty: set[tuple[str, int]] = attrs.field(factory=set, init=False)  # and reported

    def reload(self, start: Config, fresh: Config) -> None:
        """Use the rules of `fresh` that a process which started with `start` can take over."""
        self.table.replace(reloaded(start, fresh).of(SHARDING))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_join)
            if self.watches_drains:
                nursery.start_soon(self._make_missing)
                nursery.start_soon(self._watch_drains)

    async def _make_missing(self) -> None:
        """
        Make those of the start: nothing else does if the primary's plan doesn't name the queue.

        Meanwhile they are taken to exist, as they mostly do: otherwise each restart in an outage
        would spread the keys over fewer shards.
        """
        known = {(q.path.key, 0) for q in self.table.queues}
        failures = 0
        while missing := [
            (queue, number)
            for queue in self.table.queues
            for number in queue.active
            if (queue.path.key, number) not in known
        ]:
            for queue, number in missing:
                if await self._is_there(queue, number, failures == 0):
                    known.add((queue.path.key, number))
            failures += 1
            await trio.sleep(_AGAIN.delay(failures, self.rng))

    async def _is_there(self, queue: ShardedQueue, number: int, reports: bool) -> bool:
        """Create the shard if it is missing; True: it exists."""
        path = queue.path.shard(number)
        try:
            with trio.fail_after(_ASK_SECONDS):
                try:
                    await self.broker.probe(path)
                except EntityNotFound:
                    await self._make(queue, number)
                    self.observer.report(ShardAdded(queue=queue.path, shard=number))
        except (BrokerError, trio.TooSlowError) as error:
            if reports:
                why = str(error) or "no answer"
                text = f"sharding: {path} isn't known to exist, and can't be made: {why}"
                self.observer.report(Doubtful(text=text))
            return False
        return True

    async def _let_join(self) -> None:
        failures = 0
        while True:
            seen = self.table.changes.version
            joining = [(q, number) for q in self.table.queues for number in sorted(q.joining)]
            done = [await self._joins(queue, number, failures == 0) for queue, number in joining]
            if all(done):
                failures = 0
                if not joining:
                    await self.table.changes.wait(seen)
                continue
            failures += 1
            with trio.move_on_after(_AGAIN.delay(failures, self.rng)):
                # Changes by the shards that joined just now don't count.
                await self.table.changes.wait(seen + sum(done))

    async def _joins(self, queue: ShardedQueue, number: int, reports: bool) -> bool:
        """Create the shard if it is missing; True: it gets messages from now on."""
        path = queue.path.shard(number)
        try:
            with trio.fail_after(_ASK_SECONDS):
                await self._make(queue, number)
        except (BrokerError, trio.TooSlowError) as error:
            if reports:
                why = str(error) or "no answer"
                text = f"sharding: {path} gets no messages before it exists: {why}"
                self.observer.report(Doubtful(text=text))
            return False
        self.table.join(queue.path, number)
        self.observer.report(ShardAdded(queue=queue.path, shard=number))
        return True

    async def _make(self, queue: ShardedQueue, number: int) -> None:
        """
        Return when the shard exists, with the properties of the first.

        Raises:
            BrokerError: it can't be created, and a probe doesn't find it.
        """
        path = queue.path.shard(number)
        try:
            properties = (await described(self.broker, queue.path)).properties
            await self.broker.create_queue(path, properties)
        except EntityExists:
            return
        except BrokerError:  # perhaps without the right to create queues
            await self.broker.probe(path)

    async def _watch_drains(self) -> None:
        while True:
            seen = self.table.changes.version
            drains = [(q, number) for q in self.table.queues for number in q.draining]
            self._empty &= {(queue.path.key, number) for queue, number in drains}
            for queue, number in drains:
                if (queue.path.key, number) not in self._empty:
                    await self._inspect(queue, number)
            if all((queue.path.key, number) in self._empty for queue, number in drains):
                await self.table.changes.wait(seen)
                continue
            with trio.move_on_after(self.drain_interval):
                await self.table.changes.wait(seen)

    async def _inspect(self, queue: ShardedQueue, number: int) -> None:
        try:
            with trio.fail_after(_ASK_SECONDS):
                info = await self.broker.inspect(queue.path.shard(number))
        except (BrokerError, trio.TooSlowError):
            return  # the next look may find out
        if is_empty(info):
            self._empty.add((queue.path.key, number))
            states = ", ".join(not_counted(info))
            self.observer.report(ShardDrained(queue=queue.path, shard=number, not_counted=states))
