"""Schedules messages of a sharded queue in its shards, and cancels them."""

from collections.abc import Sequence

from gateway.brokers.joined.sequence import by_place, outward_number
from gateway.capabilities import Schedules
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    MessageNotFound,
    NotSupported,
    OutcomeUnknown,
)
from gateway.domain.message import Message
from gateway.extensions.sharding.halfway import halfway
from gateway.extensions.sharding.table import ShardedQueue


async def schedule_in_shards(
    schedules: Schedules, queue: ShardedQueue, messages: Sequence[Message], keyless: int
) -> Sequence[int]:
    """
    As `Schedules.schedule`. Messages without a key go to the shard `keyless`. Messages of several
    shards aren't scheduled in one step: after an error, the outcome is unknown if a shard has
    accepted some of them.
    """
    of_shard: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        of_shard.setdefault(queue.shard_for(message, keyless), []).append(index)
    numbers: dict[int, int] = {}
    for shard, indexes in of_shard.items():
        with halfway(numbers, f"{len(numbers)} of {len(messages)} messages were scheduled"):
            found = await _schedule_in(schedules, queue, shard, [messages[i] for i in indexes])
        numbers.update(zip(indexes, found, strict=True))
    return [numbers[index] for index in range(len(messages))]


async def _schedule_in(
    schedules: Schedules, queue: ShardedQueue, shard: int, messages: Sequence[Message]
) -> Sequence[int]:
    """
    As `schedule_in_shards`, in one shard. If the numbers that it gives have no room for the
    shard's, the messages are cancelled.
    """
    path = queue.path.shard(shard)
    found = await schedules.schedule(path, messages)
    try:
        return [outward_number(number, shard) for number in found]
    except NotSupported as error:
        refusal = error
    try:
        await schedules.cancel_scheduled(path, found)
    except BrokerError as error:
        text = f"{path}: the messages were scheduled, and not cancelled: {error}"
        raise OutcomeUnknown(text) from error
    raise refusal


async def cancel_in_shards(
    schedules: Schedules, queue: ShardedQueue, entity: EntityPath, sequence_numbers: Sequence[int]
) -> None:
    """
    As `Schedules.cancel_scheduled`. After an error, the outcome is unknown if the messages of
    another shard were removed.
    """
    in_shards = by_place(sequence_numbers)
    for shard in in_shards:
        if shard not in queue.numbers:
            raise MessageNotFound(
                f"{entity}: a sequence number names shard {shard}, which doesn't exist"
            )
    removed = 0
    for shard, numbers in in_shards.items():
        with halfway(removed, f"{removed} of {len(sequence_numbers)} messages were removed"):
            await schedules.cancel_scheduled(entity.shard(shard), numbers)
        removed += len(numbers)
