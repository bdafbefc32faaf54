"""
Service Bus management operations become calls of a namespace.

Updates of queues need a namespace that is `Updates`; topics, subscriptions and rules need one that
is a `Topology`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from gateway.capabilities import DeletesByVersion, Topology, Updates, described
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotSupported,
    PreconditionFailed,
)
from gateway.offering import offered, required
from gateway.ports import Broker
from gateway.wire.servicebus import atom_operations as atom

Listed = TypeVar("Listed", bound=atom.Info)

_CHUNK: Final = 100  # entries read at once where a continued list is looked for


async def manage(
    broker: Broker, operation: atom.Operation, namespace: atom.NamespaceInfo
) -> atom.Answer:
    """
    Return the answer once the operation is done; `namespace` describes this gateway.

    Raises:
        BrokerError: as the method of `Broker`, `Updates` or `Topology` that it calls.
        NotSupported: the namespace lacks the capability that the operation needs.
    """
    try:
        return await _manage(broker, operation, namespace)
    except EntityExists as error:
        if isinstance(operation, atom.PutOperation) and operation.only_new:
            raise PreconditionFailed(f"If-None-Match: {error}") from error
        raise


async def _manage(
    broker: Broker, operation: atom.Operation, namespace: atom.NamespaceInfo
) -> atom.Answer:
    match operation:
        case atom.GetNamespace():
            return namespace
        case atom.GetEntity(entity=entity):
            return await _inspect(broker, entity)
        case atom.DeleteEntity():
            await _delete(broker, operation)
            return None
        case atom.ListQueues(prefix=prefix):
            return await _page(
                operation, lambda skip, top: broker.list_queues(prefix, skip=skip, top=top)
            )
        case atom.PutQueue() | atom.PutTopic() if namespace.tier == atom.STANDARD:
            _check_standard(operation)
    match operation:
        case atom.PutQueue():
            return await _put_queue(broker, operation)
    return await _WITH_TOPICS[type(operation)](required(broker, Topology), operation)


def _check_standard(wish: atom.PutQueue | atom.PutTopic) -> None:
    """
    Check that the entity has no message size of its own, as in the Standard tier. An update may
    have the size that a client has read, which changes nothing.
    """
    if wish.properties.max_message_size is not None and not wish.update:
        raise InvalidRequest(
            f"MaxMessageSizeInKilobytes: {wish.entity}: no entity of the Standard tier"
            " has its own maximum message size"
        )


async def _inspect(broker: Broker, entity: EntityPath) -> atom.Answer:
    """The queue or topic with that name, or None."""
    try:
        return await described(broker, entity)
    except EntityNotFound:
        topology = offered(broker, Topology)
        if topology is None:
            return None
    try:
        return await topology.inspect_topic(entity)
    except EntityNotFound:
        return None


async def _delete(broker: Broker, wish: atom.DeleteEntity) -> None:
    if wish.if_version is not None:
        versions = required(broker, DeletesByVersion)
        return await versions.delete_version(wish.entity, wish.if_version)
    try:
        await broker.delete_queue(wish.entity)
    except EntityNotFound:
        topology = offered(broker, Topology)
        if topology is None:
            raise
        try:
            await topology.delete_topic(wish.entity)
        except EntityNotFound as error:
            raise EntityNotFound(f"there is no queue or topic {wish.entity}") from error


async def _put_queue(broker: Broker, wish: atom.PutQueue) -> atom.Answer:
    if not wish.update:
        return await broker.create_queue(wish.entity, wish.properties)
    updates = offered(broker, Updates)
    if updates is None:
        raise NotSupported(
            f"queue {wish.entity} can't be changed in this namespace: delete and recreate it"
        )
    return await updates.update_queue(wish.entity, wish.properties, if_version=wish.if_version)


async def _page(
    wish: atom.ListOperation, read: Callable[[int, int], Awaitable[Sequence[Listed]]]
) -> tuple[Listed, ...]:
    """
    The page that the client asks for. `read` returns the entries from a number on, sorted by name.

    A continued list begins behind the name that ended the page before. That name has moved if
    entries before it were created or deleted meanwhile, so its place is searched for.
    """
    skip, after = wish.skip, wish.after.lower()
    if not after or not wish.top:
        return tuple(await read(skip, wish.top))
    size = back = max(wish.top, _CHUNK)
    found = await read(skip, size)
    while skip > 0 and (not found or atom.name_of(found[0]).lower() > after):
        # Few reads, whatever `skip` the client asks for.
        skip = max(0, skip - back) if found else skip // 2
        back *= 2
        found = await read(skip, size)
    page: list[Listed] = []
    while found:
        page += [each for each in found if atom.name_of(each).lower() > after]
        if len(page) >= wish.top or len(found) < size:
            break
        skip += len(found)
        found = await read(skip, size)
    return tuple(page[: wish.top])


async def _put_topic(broker: Topology, wish: atom.PutTopic) -> atom.Answer:
    if wish.update:
        return await broker.update_topic(wish.entity, wish.properties, if_version=wish.if_version)
    return await broker.create_topic(wish.entity, wish.properties)


async def _list_topics(broker: Topology, wish: atom.ListTopics) -> atom.Answer:
    return await _page(wish, lambda skip, top: broker.list_topics(wish.prefix, skip=skip, top=top))


async def _get_subscription(broker: Topology, wish: atom.GetSubscription) -> atom.Answer:
    return await broker.inspect_subscription(wish.topic, wish.name)


async def _put_subscription(broker: Topology, wish: atom.PutSubscription) -> atom.Answer:
    if wish.update:
        return await broker.update_subscription(
            wish.topic, wish.name, wish.properties, if_version=wish.if_version
        )
    return await broker.create_subscription(wish.topic, wish.name, wish.properties, wish.rule)


async def _list_subscriptions(broker: Topology, wish: atom.ListSubscriptions) -> atom.Answer:
    return await _page(
        wish, lambda skip, top: broker.list_subscriptions(wish.topic, skip=skip, top=top)
    )


async def _delete_subscription(broker: Topology, wish: atom.DeleteSubscription) -> atom.Answer:
    if wish.if_version is None:
        await broker.delete_subscription(wish.topic, wish.name)
    else:
        path = EntityPath(f"{wish.topic}/subscriptions/{wish.name}")
        await required(broker, DeletesByVersion).delete_version(path, wish.if_version)
    return None


async def _get_rule(broker: Topology, wish: atom.GetRule) -> atom.Answer:
    return await broker.inspect_rule(wish.topic, wish.subscription, wish.name)


async def _put_rule(broker: Topology, wish: atom.PutRule) -> atom.Answer:
    if wish.update:
        return await broker.update_rule(wish.topic, wish.subscription, wish.rule)
    return await broker.create_rule(wish.topic, wish.subscription, wish.rule)


async def _list_rules(broker: Topology, wish: atom.ListRules) -> atom.Answer:
    return await _page(
        wish,
        lambda skip, top: broker.list_rules(wish.topic, wish.subscription, skip=skip, top=top),
    )


async def _delete_rule(broker: Topology, wish: atom.DeleteRule) -> atom.Answer:
    await broker.delete_rule(wish.topic, wish.subscription, wish.name)
    return None


_WITH_TOPICS: Final[dict[type, Callable[[Topology, Any], Awaitable[atom.Answer]]]] = {
    atom.PutTopic: _put_topic,
    atom.ListTopics: _list_topics,
    atom.GetSubscription: _get_subscription,
    atom.PutSubscription: _put_subscription,
    atom.ListSubscriptions: _list_subscriptions,
    atom.DeleteSubscription: _delete_subscription,
    atom.GetRule: _get_rule,
    atom.PutRule: _put_rule,
    atom.ListRules: _list_rules,
    atom.DeleteRule: _delete_rule,
}
