"""The poison queue of a queue: where dead letters go, since the service has no place for them."""

import attrs

from gateway.brokers.storage_queue_peer import Shard
from gateway.domain.errors import EntityNotFound, MessageTooLarge
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DeadLetter,
    Message,
)
from gateway.ports import WallClock
from gateway.wire.storage_queue_body import build_put
from gateway.wire.storage_queue_operations import CreateQueue, PutMessage


@attrs.frozen(eq=False, kw_only=True)
class PoisonQueue:
    """It's made when it's first needed. Nothing in it expires."""

    _shard: Shard
    _clock: WallClock

    async def put(self, message: Message, why: DeadLetter) -> None:
        """
        Return once it has the message, with why.

        One that has no room for a reason, a long text, goes as it is.

        Raises:
            BrokerError: it may not have it.
        """
        put = self._build(message, why)
        try:
            await self._shard.peer.run(put)
        except EntityNotFound:
            await self._shard.peer.run(CreateQueue(queue=self._shard.queue))
            await self._shard.peer.run(put)

    def _build(self, message: Message, why: DeadLetter) -> PutMessage:
        bare = attrs.evolve(message, scheduled=None, time_to_live=None, absolute_expiry=None)
        reason = {DEAD_LETTER_REASON: why.reason, DEAD_LETTER_DESCRIPTION: why.description}
        told = attrs.evolve(bare, properties={**bare.properties, **why.properties, **reason})
        try:
            return build_put(self._shard.queue, told, self._clock())
        except MessageTooLarge:
            return build_put(self._shard.queue, bare, self._clock(), keep_ids=False)
