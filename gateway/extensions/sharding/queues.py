"""Lists, creates, updates and deletes sharded queues, each as a whole."""

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import attrs

from gateway.capabilities import Updates, Verifies, described
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, EntityNotFound
from gateway.extensions.sharding.halfway import halfway
from gateway.extensions.sharding.table import ShardedQueue, ShardTable
from gateway.offering import required
from gateway.ports import Broker

_COUNTS: Final = (
    "active",
    "dead_lettered",
    "scheduled",
    "deferred",
    "transfer_dead_lettered",
    "size",
)
_MOST_LISTED: Final = 1000  # queues of one page
_CREATED: Final = "shards were created, then"
_UPDATED: Final = "shards were updated, then"
_DELETED: Final = "shards were deleted, then"


async def inspect_shards(broker: Broker, queue: ShardedQueue, entity: EntityPath) -> EntityInfo:
    """
    As `Broker.inspect`: the properties of the first shard, and the counts of all. A count that one
    of them doesn't report is unknown.
    """
    infos: list[EntityInfo] = []
    for number in queue.numbers:
        with _made_later(queue, number):
            infos.append(await broker.inspect(entity.shard(number)))
    return summed(entity, infos)


async def describe_shards(broker: Broker, queue: ShardedQueue, entity: EntityPath) -> EntityInfo:
    """As `Describes.describe`, and as `inspect_shards`."""
    properties = (await described(broker, entity)).properties
    return attrs.evolve(await inspect_shards(broker, queue, entity), properties=properties)


async def list_whole_queues(
    broker: Broker, table: ShardTable, prefix: str, skip: int, top: int
) -> Sequence[EntityInfo]:
    """As `Broker.list_queues`; shards are counted with their queue."""
    found: list[EntityInfo] = []
    seen, size = 0, min(_MOST_LISTED, skip + top)
    while size and len(found) < skip + top:
        page = await broker.list_queues(prefix, skip=seen, top=size)
        found += [info for info in page if not _is_further_shard(table, info.path)]
        seen += len(page)
        if len(page) < size:
            break
    listed = []
    for info in found[skip : skip + top]:
        whole, queue = info, table.find(info.path)
        if queue is not None:
            with suppress(EntityNotFound):  # a shard is missing
                whole = await inspect_shards(broker, queue, info.path)
        listed.append(whole)
    return listed


def _is_further_shard(table: ShardTable, path: EntityPath) -> bool:
    number = path.shard_number
    queue = table.find(path.whole) if number else None
    return queue is not None and number in queue.numbers


async def create_shards(
    broker: Broker, queue: ShardedQueue, entity: EntityPath, properties: QueueProperties
) -> EntityInfo:
    """
    As `Broker.create_queue`: creates all shards. The queue exists if none of them is missing. After
    an error, also of the inspection at the end, the outcome is unknown if a shard was created.
    """
    is_new = False
    for path in reversed(_paths(queue, entity)):  # the first stands for the queue
        with halfway(is_new, _CREATED), suppress(EntityExists):
            await broker.create_queue(path, properties)
            is_new = True
    if not is_new:
        raise EntityExists(f"{entity}: a queue of this name exists already")
    with halfway(True, _CREATED):
        return await describe_shards(broker, queue, entity)


async def update_shards(
    broker: Broker,
    queue: ShardedQueue,
    entity: EntityPath,
    properties: QueueProperties,
    if_version: int | None,
) -> EntityInfo:
    """
    As `Updates.update_queue`; the version is that of the first shard. After an error, also of the
    inspection at the end, the outcome is unknown if a shard was updated.
    """
    updates = required(broker, Updates)
    first, *others = queue.numbers
    await updates.update_queue(entity.shard(first), properties, if_version=if_version)
    for number in others:
        with halfway(True, _UPDATED), _made_later(queue, number):
            await updates.update_queue(entity.shard(number), properties)
    with halfway(True, _UPDATED):
        return await describe_shards(broker, queue, entity)


async def delete_shards(
    broker: Broker, queue: ShardedQueue, entity: EntityPath, delete_first: Awaitable[None]
) -> None:
    """
    Delete all shards. A queue without its first shard exists as long as another one does: an
    earlier deletion has failed halfway.
    """
    missing: EntityNotFound | None = None
    try:
        await delete_first
    except EntityNotFound as error:
        missing = error
    for path in _paths(queue, entity)[1:]:
        with halfway(missing is None, _DELETED), suppress(EntityNotFound):
            await broker.delete_queue(path)
            missing = None
    if missing is not None:
        raise missing


async def verify_shards(
    verifies: Verifies, queue: ShardedQueue, entity: EntityPath, is_backlog: bool
) -> Sequence[str]:
    """As `Verifies.verify`, of all shards."""
    found: list[str] = []
    for number in queue.numbers:
        with _made_later(queue, number):
            found += await verifies.verify(entity.shard(number), is_backlog=is_backlog)
    return found


@contextmanager
def _made_later(queue: ShardedQueue, number: int) -> Iterator[None]:
    """A context in which that shard may be missing if it joins: it is made like the first."""
    try:
        yield
    except EntityNotFound:
        if number not in queue.joining:
            raise


def summed(entity: EntityPath, infos: Sequence[EntityInfo]) -> EntityInfo:
    """The facts of the queue that is made of these shards."""
    counts: dict[str, Any] = {}
    for name in _COUNTS:
        each = [getattr(info, name) for info in infos]
        counts[name] = None if None in each else sum(each)
    sizes = [info.max_message_size for info in infos if info.max_message_size is not None]
    return attrs.evolve(
        infos[0],
        path=entity,
        max_message_size=min(sizes, default=None),
        locked_here=sum(info.locked_here for info in infos),
        other_consumers=max(info.other_consumers for info in infos),
        lag=max(info.lag for info in infos),
        accessed=max((each.accessed for each in infos if each.accessed), default=None),
        **counts,
    )


def _paths(queue: ShardedQueue, entity: EntityPath) -> list[EntityPath]:
    return [entity.shard(number) for number in queue.numbers]
