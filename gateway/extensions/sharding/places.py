"""
Leads each shard to the namespace that has it.

A shard that gets no more messages, because it drains or isn't configured any more, gets none from a
syphon either: those go to the shard that their keys lead to now.
"""

from collections.abc import Mapping, Sequence

import attrs

from gateway.brokers.routing_broker import RoutingBroker
from gateway.capabilities import Batches, outcome_of
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.message import AcceptedBy, Message
from gateway.extensions.sharding.halfway import halfway
from gateway.extensions.sharding.table import ShardTable
from gateway.ports import Broker


def elsewhere(shard: EntityPath) -> NotSupported:
    return NotSupported(
        f"{shard} is in another namespace than the first shard: a transaction is one namespace's"
    )


@attrs.frozen(eq=False, kw_only=True)
class ShardPlaces(RoutingBroker):
    """
    The namespace `home`, with those shards of its queues that are in `others`, by their names. It
    offers the capabilities of `home`. An operation that the namespace of a shard lacks is refused
    there.
    """

    home: Broker
    others: Mapping[str, Broker]
    table: ShardTable

    @property
    def inner(self) -> Broker:
        return self.home

    def of(self, entity: EntityPath) -> Broker:
        """The namespace that has the entity."""
        if not self.others:
            return self.home
        whole = entity.whole
        queue = self.table.find(whole)
        name = None if queue is None else queue.rule.namespace_of(entity.shard_number)
        return self.home if name is None else self.others.get(name, self.home)

    def elsewhere(self, entity: EntityPath) -> NotSupported:
        """As `RoutingBroker.elsewhere`."""
        return elsewhere(entity)

    def _is_closed(self, entity: EntityPath) -> bool:
        """True if it is a shard that gets no more messages."""
        queue = self.table.find(entity.whole)
        if queue is None or entity.is_dead_letter:
            return False
        number = entity.shard_number
        return number not in queue.numbers or number in queue.rule.drain

    # --- sending

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return
        await super().send(entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`."""
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return
        await super().try_send(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        if self._is_closed(entity):
            await self._send_elsewhere(entity, messages)
            return AcceptedBy.PRIMARY
        return await super().send_diverting(entity, messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        if not self._is_closed(entity):
            return await super().send_many(entity, batches, fails_fast=fails_fast)
        return [await outcome_of(self._send_elsewhere, entity, batch) for batch in batches]

    async def _send_elsewhere(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        Send each message to the shard that its key leads to now; without a key, to the first active
        shard.
        """
        queue = self.table.find(entity.whole)
        assert queue is not None, "it was found to be closed"
        by_shard: dict[int, list[Message]] = {}
        for message in messages:
            by_shard.setdefault(queue.shard_for(message, queue.active[0]), []).append(message)
        sent = 0
        for shard, part in by_shard.items():
            path = queue.path.shard(shard)
            with halfway(sent, f"{sent} of {len(messages)} messages were accepted, then"):
                await self.of(path).send(path, part)
            sent += len(part)
