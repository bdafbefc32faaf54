"""
The poison queue of a queue, which keeps its dead letters, since the service has no dead-letter
sub-queues.
"""

import attrs

from gateway.brokers.storage_queue.peer import AccountQueue
from gateway.domain.errors import EntityNotFound, MessageTooLarge
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, DeadLetter, Message
from gateway.ports import WallClock
from gateway.wire.storage_queue.body import build_put
from gateway.wire.storage_queue.operations import CreateQueue, PutMessage


@attrs.frozen(eq=False, kw_only=True)
class PoisonQueue:
    """Created on first use. Nothing in it expires."""

    _queue: AccountQueue
    _clock: WallClock

    async def put(self, message: Message, why: DeadLetter) -> None:
        """
        Store the message, with the reason; returns once the service has it.

        A message without room for a long reason is stored without it.

        Raises:
            BrokerError: the message couldn't be stored.
        """
        put = self._build(message, why)
        try:
            await self._queue.peer.run(put)
        except EntityNotFound:
            await self._queue.peer.run(CreateQueue(queue=self._queue.name))
            await self._queue.peer.run(put)

    def _build(self, message: Message, why: DeadLetter) -> PutMessage:
        bare = attrs.evolve(message, scheduled=None, time_to_live=None, absolute_expiry=None)
        reason = {DEAD_LETTER_REASON: why.reason, DEAD_LETTER_DESCRIPTION: why.description}
        told = attrs.evolve(bare, properties={**bare.properties, **why.properties, **reason})
        try:
            return build_put(self._queue.name, told, self._clock())
        except MessageTooLarge:
            return build_put(self._queue.name, bare, self._clock(), keep_ids=False)
