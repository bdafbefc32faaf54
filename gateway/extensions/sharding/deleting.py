"""
Deletes messages of a sharded queue without receiving them.

A shard doesn't report the age of its messages. So the number is first divided among the shards; the
rest is deleted from shards that may have more. The result is less than the number only if no shard
has another message to delete, as clients expect.
"""

from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from gateway.capabilities import check_delete_limit
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    Outcome,
    OutcomeUnknown,
    SessionLockLost,
)
from gateway.extensions.sharding.table import ShardedQueue

Delete = Callable[[EntityPath, int], Awaitable[int]]
"""
Deletes at most the given number of messages of one shard, as `DeletesMessages.delete_messages`.
"""


@attrs.define(eq=False, kw_only=True)
class ShardedDeletion:
    """Deletes at most `limit` messages of the queue, or of its dead-letter queue."""

    queue: ShardedQueue
    entity: EntityPath
    limit: int
    delete: Delete
    _deleted: dict[int, int] = attrs.field(factory=dict, init=False)  # by shard
    _errors: dict[int, BrokerError] = attrs.field(factory=dict, init=False)

    async def run(self) -> int:
        """As `DeletesMessages.delete_messages`, of the oldest messages of each shard."""
        check_delete_limit(self.limit)
        shares = _shares(self.limit, self.queue.numbers)
        async with trio.open_nursery() as nursery:
            for number, share in shares.items():
                nursery.start_soon(self._delete_from, number, share)
        self._check()
        for number in self.queue.numbers:
            share = shares.get(number, 0)
            left = self.limit - sum(self._deleted.values())
            if left and self._deleted.get(number, 0) == share:  # the shard may have more
                await self._delete_from(number, left)
                self._check()
        return sum(self._deleted.values())

    async def _delete_from(self, number: int, limit: int) -> None:
        try:
            found = await self.delete(self.entity.shard(number), limit)
        except EntityNotFound as error:
            if number not in self.queue.joining:  # otherwise the shard doesn't exist yet
                self._errors[number] = error
        except BrokerError as error:
            self._errors[number] = error
        else:
            self._deleted[number] = self._deleted.get(number, 0) + found

    def _check(self) -> None:
        """
        Raises:
            BrokerError: a shard has failed; the outcome is unknown if messages of others are gone.
        """
        if not self._errors:
            return
        number, error = min(self._errors.items())
        unknown = [e for e in self._errors.values() if e.outcome is Outcome.UNKNOWN]
        deleted = sum(self._deleted.values())
        if not deleted and not unknown:
            raise error
        raise OutcomeUnknown(
            f"{self.entity}: {deleted} messages were deleted; shard {number}: {error}"
        ) from error


async def delete_in_session(
    queue: ShardedQueue,
    entity: EntityPath,
    session_id: str,
    delete: Callable[[EntityPath], Awaitable[int]],
) -> int:
    """
    As `DeletesMessages.delete_messages`, of the shard in which the session is locked: a draining
    shard as long as it has messages of the session, then that of its id.
    """
    lost: SessionLockLost | None = None
    for number in (*queue.former_shards_of(session_id), queue.shard_of(session_id)):
        try:
            return await delete(entity.shard(number))
        except SessionLockLost as error:
            lost = error
    assert lost is not None, "each session has a shard"
    raise lost


def _shares(limit: int, numbers: Sequence[int]) -> dict[int, int]:
    """The number of messages to delete first, by shard; without the shards beyond the limit."""
    each, more = divmod(limit, len(numbers))
    shares = {number: each + (index < more) for index, number in enumerate(numbers)}
    return {number: share for number, share in shares.items() if share}
