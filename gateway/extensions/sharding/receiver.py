"""Receives from all shards of a queue, as `gateway/brokers/joined` does from several queues."""

import random
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.sharding.places import elsewhere
from gateway.extensions.sharding.table import ShardTable
from gateway.ports import Broker, Receiver

_AGAIN: Final = Backoff(first=0.5, cap=10.0)  # of a shard that can't be received from


@attrs.frozen(eq=False, kw_only=True)
class ShardsOfQueue:
    """`JoinedQueues`: the shards of one queue, each at the place of its number."""

    leading: ClassVar[int | None] = None
    in_order: ClassVar[bool] = False
    broker: Broker
    entity: EntityPath
    table: ShardTable
    rng: random.Random

    @property
    def changes(self) -> Changes:
        return self.table.changes

    def places(self) -> Collection[int]:
        """As `JoinedQueues.places`."""
        queue = self.table.find(self.entity)
        return () if queue is None else queue.numbers

    def open_receiver(self, place: int) -> AbstractAsyncContextManager[Receiver]:
        """As `JoinedQueues.open_receiver`."""
        return self.broker.open_receiver(self.entity.shard(place))

    async def wait_before_retry(self, place: int, error: BrokerError, failures: int) -> None:
        """As `JoinedQueues.wait_before_retry`."""
        await trio.sleep(_AGAIN.delay(failures, self.rng))

    def check_enlisted(self, place: int) -> None:
        """As `JoinedQueues.check_enlisted`: only a shard in the primary can be settled so."""
        queue = self.table.find(self.entity)
        if queue is not None and not queue.rule.is_in_primary(place):
            raise elsewhere(self.entity.shard(place))
