"""`pairgate list`, `create` and `delete`: the entities of a namespace."""

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import reason_of
from gateway.app.operations.targets import OpenNamespace, beside, cure_of_refusal
from gateway.app.operations.ways_in import NamespaceChoice, open_place
from gateway.app.runtime import Runtime
from gateway.capabilities import Topology, described
from gateway.config.options import Config
from gateway.domain import backlog
from gateway.domain.access import Right
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    GatewayError,
    InvalidRequest,
    NotAuthorized,
    NotSupported,
    Outcome,
)
from gateway.domain.health.abilities import Ability
from gateway.domain.topics.filters import DEFAULT_RULE, Rule, SqlFilter
from gateway.domain.topics.topology import (
    SubscriptionInfo,
    SubscriptionProperties,
    TopicInfo,
    TopicProperties,
)
from gateway.offering import offered, required

T = TypeVar("T")

ANSWER_SECONDS: Final = 60.0
PAGE: Final = 100  # entities of one request


class EntityKind(enum.Enum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


@attrs.frozen(kw_only=True)
class NamedEntity:
    """A queue, a topic, or a subscription of a topic."""

    kind: EntityKind
    name: str  # of a subscription: TOPIC/subscriptions/NAME

    def path(self) -> EntityPath:
        """
        The path of the entity.

        Raises:
            Failure: the name isn't one of an entity of this kind.
        """
        try:
            path = EntityPath.parse(self.name)
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error
        if path.is_dead_letter:
            text = f"{path}: a dead-letter queue is created and deleted with its queue"
            raise Failure(text, ExitCode.WRONG)
        if path.is_subscription is not (self.kind is EntityKind.SUBSCRIPTION):
            text = f"{path}: the name of a {self.kind.value} expected"
            raise Failure(text, ExitCode.WRONG)
        return path


@attrs.frozen(kw_only=True)
class Listed:
    """
    An entity of a list. A count is None if the namespace doesn't report it, or has no such count.
    """

    kind: EntityKind
    name: str
    active: int | None = None
    dead_lettered: int | None = None
    scheduled: int | None = None
    deferred: int | None = None
    bytes: int | None = None
    subscriptions: int | None = None  # of a topic
    requires_session: bool = False
    status: str = ""


@attrs.frozen(kw_only=True)
class Inventory:
    """
    The entities of one namespace, sorted by name within each kind.

    `doubt` is the reason why entities may be missing; None: the list is complete.
    """

    namespace: str
    target: str
    through_gateway: bool
    entities: tuple[Listed, ...]
    doubt: str | None = None


@attrs.frozen(kw_only=True)
class Changed:
    """An entity that was created or deleted, and its namespace."""

    kind: EntityKind
    name: str
    done: bool  # false: it existed before, and stays as it is
    is_configured: bool  # whether `serve` and `provision` create it, too
    namespace: str
    target: str
    through_gateway: bool


async def list_entities(
    config: Config, runtime: Runtime, place: NamespaceChoice, prefix: str = ""
) -> Inventory:
    """
    The entities whose names start with `prefix`. A namespace that can't list its queues is asked
    for the configured ones.

    Raises:
        Failure: the namespace doesn't answer, or refuses the credentials.
    """
    async with _opened(config, runtime, place) as target:
        attempt = partial(_answered, target, "list the entities of")
        doubt: str | None = None
        try:
            queues = await attempt(partial(_pages, target.broker.list_queues, prefix))
        except NotSupported as error:
            doubt = str(error)
            queues = await attempt(partial(_configured, config, target, prefix))
        topology = offered(target.broker, Topology)
        found = [_of_queue(each) for each in queues]
        if topology is not None and doubt is None:
            with suppress(NotSupported):  # a gateway before a namespace without topics
                found += await attempt(partial(_topics, topology, prefix))
        return Inventory(
            namespace=target.home,
            target=target.name,
            through_gateway=target.running,
            entities=tuple(found),
            doubt=doubt,
        )


async def show(
    config: Config, runtime: Runtime, place: NamespaceChoice, entity: NamedEntity
) -> Listed:
    """
    The entity as it is now. A count that the namespace doesn't report is None.

    Raises:
        Failure: the entity doesn't exist, or the namespace doesn't answer.
    """
    async with _opened(config, runtime, place) as target:
        action = f"inspect {entity.kind.value} {entity.name} of"
        return await _done(target, action, partial(_inspected, target, entity))


async def _inspected(target: OpenNamespace, entity: NamedEntity) -> Listed:
    """
    As `show`.

    Raises:
        BrokerError: there is no entity of this kind with that name, or as `Broker.inspect`.
    """
    path = entity.path()
    if entity.kind is EntityKind.QUEUE:
        return _of_queue(await described(target.broker, path))
    topology = required(target.broker, Topology)
    if entity.kind is EntityKind.TOPIC:
        info = await topology.inspect_topic(path)
        return _of_topic(info, await _pages(partial(topology.list_subscriptions, path)))
    return _of_subscription(await topology.inspect_subscription(path.topic, path.subscription))


async def create_queue(
    config: Config,
    runtime: Runtime,
    place: NamespaceChoice,
    entity: NamedEntity,
    properties: QueueProperties,
) -> Changed:
    """
    Return when the queue exists; `Changed.done` is false if it existed before, and stays as it is.

    Raises:
        Failure: the queue can't be created.
    """
    path = entity.path()
    async with _opened(config, runtime, place) as target:
        return await _created(
            config, target, entity, partial(target.broker.create_queue, path, properties)
        )


async def create_topic(
    config: Config,
    runtime: Runtime,
    place: NamespaceChoice,
    entity: NamedEntity,
    properties: TopicProperties,
) -> Changed:
    """As `create_queue`."""
    path = entity.path()
    async with _opened(config, runtime, place) as target:

        async def create() -> None:
            await required(target.broker, Topology).create_topic(path, properties)

        return await _created(config, target, entity, create)


async def create_subscription(
    config: Config,
    runtime: Runtime,
    place: NamespaceChoice,
    entity: NamedEntity,
    properties: SubscriptionProperties,
    *,
    sql: str | None = None,
) -> Changed:
    """
    As `create_queue`. With `sql` the subscription gets only the messages for which the condition is
    true.
    """
    path = entity.path()
    rule = None if sql is None else Rule(name=DEFAULT_RULE, filter=SqlFilter(expression=sql))
    async with _opened(config, runtime, place) as target:

        async def create() -> None:
            topology = required(target.broker, Topology)
            await topology.create_subscription(path.topic, path.subscription, properties, rule)

        return await _created(config, target, entity, create)


async def _created(
    config: Config,
    target: OpenNamespace,
    entity: NamedEntity,
    create: Callable[[], Awaitable[object]],
) -> Changed:
    async def attempt() -> bool:
        try:
            await create()
        except EntityExists:
            return False
        return True

    action = f"create {entity.kind.value} {entity.name} in"
    return _changed(config, target, entity, done=await _done(target, action, attempt))


async def delete_entity(
    config: Config, runtime: Runtime, place: NamespaceChoice, entity: NamedEntity
) -> Changed:
    """
    Return when the entity is deleted, with its messages.

    Raises:
        Failure: the entity doesn't exist, or can't be deleted.
    """
    path = entity.path()
    async with _opened(config, runtime, place) as target:

        async def delete() -> None:
            # Service Bus deletes by the name alone, be it a queue's or a topic's.
            await _inspected(target, entity)
            match entity.kind:
                case EntityKind.QUEUE:
                    await target.broker.delete_queue(path)
                case EntityKind.TOPIC:
                    await required(target.broker, Topology).delete_topic(path)
                case EntityKind.SUBSCRIPTION:
                    topology = required(target.broker, Topology)
                    await topology.delete_subscription(path.topic, path.subscription)

        await _done(target, f"delete {entity.kind.value} {path} of", delete)
        return _changed(config, target, entity)


def _changed(
    config: Config, target: OpenNamespace, entity: NamedEntity, *, done: bool = True
) -> Changed:
    path, plan = entity.path(), config.namespaces[target.home].plan
    names = {each.path for each in plan.queues} | {each.path for each in plan.topics}
    return Changed(
        kind=entity.kind,
        name=path.name,
        done=done,
        is_configured=path.topic in names,
        namespace=target.home,
        target=target.name,
        through_gateway=target.running,
    )


@asynccontextmanager
async def _opened(
    config: Config, runtime: Runtime, place: NamespaceChoice
) -> AsyncIterator[OpenNamespace]:
    async with AsyncExitStack() as stack:
        yield await open_place(stack, config, runtime, place, Right.MANAGE)


async def _pages(page: Callable[..., Awaitable[Sequence[T]]], *arguments: object) -> list[T]:
    """All pages of a list."""
    found: list[T] = []
    while True:
        more = await page(*arguments, skip=len(found), top=PAGE)
        found += more
        if len(more) < PAGE:
            return found


async def _configured(config: Config, target: OpenNamespace, prefix: str) -> list[EntityInfo]:
    """The queues that the configuration names for this namespace, as far as they exist."""
    names = [queue.path for queue in config.namespaces[target.home].plan.queues]
    pairing = config.pairing
    if pairing is not None and pairing.secondary == target.home and not target.running:
        label, count = pairing.options.label, pairing.options.backlog_queues
        names += [backlog.queue_name(label, index) for index in range(count)]
    found: list[EntityInfo] = []
    for path in sorted(names, key=lambda each: each.key):
        if path.key.startswith(prefix.lower()):
            try:
                found.append(await target.broker.inspect(path))
            except EntityNotFound:
                continue
    return found


async def _topics(topology: Topology, prefix: str) -> list[Listed]:
    """The topics, and the subscriptions of these topics."""
    topics: list[Listed] = []
    subscriptions: list[Listed] = []
    for topic in await _pages(topology.list_topics, prefix):
        found = await _pages(partial(topology.list_subscriptions, topic.path))
        topics.append(_of_topic(topic, found))
        subscriptions += map(_of_subscription, found)
    return topics + subscriptions


def _of_queue(info: EntityInfo) -> Listed:
    # With receivers in other processes, the namespace counts only a part of the messages.
    active = None if info.active is None or info.other_consumers else info.active
    return Listed(
        kind=EntityKind.QUEUE,
        name=info.path.name,
        active=None if active is None else active + info.locked_here,
        dead_lettered=info.dead_lettered,
        scheduled=info.scheduled,
        deferred=info.deferred,
        bytes=info.size,
        requires_session=info.requires_session,
        status=info.properties.status.value,
    )


def _of_topic(info: TopicInfo, subscriptions: Sequence[SubscriptionInfo]) -> Listed:
    """A topic; its messages are those of its subscriptions."""
    return Listed(
        kind=EntityKind.TOPIC,
        name=info.path.name,
        active=_sum([each.active for each in subscriptions]),
        dead_lettered=_sum([each.dead_lettered for each in subscriptions]),
        scheduled=info.scheduled,
        bytes=info.size,
        subscriptions=len(subscriptions),
        status=info.properties.status.value,
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None, if one of them isn't known."""
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def _of_subscription(info: SubscriptionInfo) -> Listed:
    return Listed(
        kind=EntityKind.SUBSCRIPTION,
        name=info.path.name,
        active=info.active,
        dead_lettered=info.dead_lettered,
        requires_session=info.properties.requires_session,
        status=info.properties.status.value,
    )


async def _answered(target: OpenNamespace, action: str, ask: Callable[[], Awaitable[T]]) -> T:
    """
    The answer of the namespace.

    Raises:
        NotSupported: the namespace can't do that.
        Failure: any other error.
    """
    try:
        with trio.fail_after(ANSWER_SECONDS):
            return await ask()
    except NotSupported:
        raise
    except (GatewayError, trio.TooSlowError) as error:
        raise _failed(target, action, error) from error


async def _done(target: OpenNamespace, action: str, ask: Callable[[], Awaitable[T]]) -> T:
    """As `_answered`, for an operation that the namespace must have."""
    try:
        return await _answered(target, action, ask)
    except NotSupported as error:
        raise Failure(f"{action} {_place_of(target)}: {error}") from error


def _failed(target: OpenNamespace, action: str, error: GatewayError | trio.TooSlowError) -> Failure:
    reason, code = reason_of(error, target.namespace, seconds=ANSWER_SECONDS), ExitCode.FAILED
    if isinstance(error, trio.TooSlowError):
        code = ExitCode.TEMPORARY
    elif isinstance(error, NotAuthorized):
        code = ExitCode.WRONG
        reason = f"{reason}{cure_of_refusal(target, Ability.MANAGE, error)}"
    elif isinstance(error, BrokerError):
        code = ExitCode.TEMPORARY if error.counts_as_outage else code
        if error.outcome is Outcome.UNKNOWN:
            reason += " (the outcome is unknown: it may have been done)"
    place = _place_of(target)
    return Failure(f"{action} {place}: {beside(place, reason)}", code)


def _place_of(target: OpenNamespace) -> str:
    return f"{target.name} (no gateway answers here)" if target.passes_by else target.name
