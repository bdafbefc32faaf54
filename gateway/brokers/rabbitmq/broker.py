"""
A namespace in RabbitMQ, or a compatible broker, over AMQP 0-9-1.

Uses three connections, each dialled on demand: one for sending, which the broker blocks when it
runs out of memory or disk, one for requests, and one for receivers; more if those need more
channels than a connection may have, or further channels while they hold messages. At run time no
configure right is needed: sending needs write on `amq.default`; receiving needs read on the queue,
and dead-lettering the same as sending.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Final, Self

import attrs
import trio

from gateway.brokers.meter import Meter
from gateway.brokers.rabbitmq.address import read_address
from gateway.brokers.rabbitmq.channels import Channels
from gateway.brokers.rabbitmq.deliveries import token_prefix
from gateway.brokers.rabbitmq.limited import LimitedConnection, UserLimit
from gateway.brokers.rabbitmq.management import PluginManagement, open_management
from gateway.brokers.rabbitmq.names import candidates, name_to_make
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.rabbitmq.own_receivers import OwnReceivers
from gateway.brokers.rabbitmq.publishing import Publishing, encoded, verdict_of
from gateway.brokers.rabbitmq.receiver import WORK, RabbitmqReceiver
from gateway.brokers.rabbitmq.sender import MAX_LANES, RabbitmqSender
from gateway.brokers.rabbitmq.settings import (
    DEAD_LETTERS,
    KEEPS,
    Settings,
    arguments_for,
    doubts_of,
    properties_of,
    read_settings,
    settings_of,
)
from gateway.brokers.rabbitmq.streams import StreamReader, arguments_for_stream
from gateway.brokers.rabbitmq.unsettled import UnsettledDeliveries
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import Batches
from gateway.changes import QueueTurn, Turns
from gateway.domain.backlog import is_of_pair
from gateway.domain.backoff import Backoff
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties, first_changed, first_lost
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    PreconditionFailed,
    Unavailable,
)
from gateway.domain.identity import Identity, known_to_all, rabbitmq_identity
from gateway.domain.message import Delivery, Message, ReceiveMode, derive_message
from gateway.net.hosts import Hosts
from gateway.net.rabbitmq.connection import BrokerLogin, RabbitmqConnection, connect
from gateway.net.reconnecting import ANY_TIME, Failures, Reconnecting
from gateway.net.server_address import ServerAddress
from gateway.ports import WallClock
from gateway.wire.rabbitmq.exchanges import exchange_in
from gateway.wire.rabbitmq.frames import Login
from gateway.wire.rabbitmq.management import ManagementLogin
from gateway.wire.rabbitmq.properties import Outgoing
from gateway.wire.rabbitmq.queues import DeclareQueue, DeleteQueue

_CLOSE_TIMEOUT: Final = 2.0  # seconds: a broker that is alive answers a close within a round trip
# Bytes per message, as in Service Bus; assumed until the first message arrives.
_USUAL_LIMIT: Final = 256 * 1024
# Seconds for which the plugin's counts may be late: RabbitMQ tells them every five seconds, the
# plugin keeps them for as long, and on a busy machine both came half a second later.
_MANAGEMENT_LAG: Final = 12.0
_BACKOFF: Final = Backoff(first=0.1, cap=5.0, jitter=0.3)

CANNOT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sessions": "a session id travels with its message, but no receiver can hold a session",
        "scheduling": "a message with a date in the future is refused; a diverted one keeps it",
        "duplicate detection": "consumers must be idempotent",
        "deferral": "refused",
        "peek": "refused",
        "topics": "queues only; bind exchanges to them for producers that aren't Pairgate's",
        "listing of queues": "queues are asked for by name, unless `management` is set",
        "changes of a queue": "make another one, or set a policy",
        "new properties with an abandonment": "refused",
    }
)
"""The operations that this kind of namespace can't do, each with its substitute."""


def open_namespace(
    scheme: str, rest: str, options: RabbitmqOptions, clock: WallClock, rng: random.Random
) -> "RabbitmqBroker":
    """
    Make the adapter for `rabbitmq(s)://user:password@host:port,.../vhost`; `rest` is the part after
    the scheme.

    The hosts are the nodes of one cluster. Without a path, or with `/` alone, the vhost is `/`. The
    user may be missing if a client certificate identifies the client.

    Raises:
        InvalidRequest: a part of the URL is invalid, or a certificate can't be read.
    """
    places, login = read_address(scheme, rest, options)
    management = open_management(
        options.management,
        ManagementLogin(user=login.user, password=login.password, vhost=login.vhost),
        options.tls,
        options.connect_timeout,
        rng,
    )
    return RabbitmqBroker(
        places=places,
        login=login,
        options=options,
        clock=clock,
        rng=rng,
        management=management,
    )


@attrs.define(eq=False, kw_only=True)
class RabbitmqBroker:
    """
    `ports.Broker`, with `Describes`, `FailsFast`, `SendsMany`, `Identifies`, `Streams`, `Updates`
    and `Verifies`. Connects on first use.
    """

    _places: Sequence[ServerAddress]
    _login: Login
    _options: RabbitmqOptions
    _clock: WallClock
    _rng: random.Random
    _management: PluginManagement | None = None
    _max_lanes: int = MAX_LANES  # channels for sends
    _work: float = WORK  # seconds between two receives, before others get the rest
    meter: Meter = attrs.field(factory=Meter, init=False)
    _tasks: TaskScope = attrs.field(factory=TaskScope, init=False)
    _sender: RabbitmqSender = attrs.field(init=False)
    _channels: Channels = attrs.field(init=False)
    _publishing: Publishing = attrs.field(init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)  # to publish to an entity
    _own: OwnReceivers = attrs.field(factory=OwnReceivers, init=False)
    _streams: StreamReader = attrs.field(init=False)
    _connections: list[Reconnecting[RabbitmqConnection]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        limit = UserLimit(Failures(backoff=_BACKOFF, rng=self._rng))
        self._sender = RabbitmqSender(
            limit=limit,
            connections=self._reconnecting("sends"),
            trial=LimitedConnection(connections=self._reconnecting("trials"), limit=limit),
            clock=self._clock,
            rng=self._rng,
            has_other_hosts=len(self._places) > 1,
            max_lanes=self._max_lanes,
        )
        names = chain(["requests"], repeat("receives"))
        self._channels = Channels(
            lambda: LimitedConnection(connections=self._reconnecting(next(names)), limit=limit),
            limit,
        )
        self._publishing = Publishing(sender=self._sender, channels=self._channels)
        self._streams = StreamReader(self._channels)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            for each in self._connections:
                if each.current is not None:
                    await each.current.close()
            if self._management is not None:
                await self._management.aclose()
        await self._tasks.aclose()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`. Several messages are published one after the other; unless all have the
        same outcome, the outcome of the batch is unknown, and `PartlyAccepted` where it is known of
        each message.

        Raises:
            NotSupported: a message is scheduled for later.
        """
        await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`. Raises as `send`."""
        await self._send(entity, messages, ANY_TIME)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `SendsMany.send_many`: all messages are published before the first confirm is waited for.
        Messages that a queue without a leader refused are published again, behind later calls.
        """
        since = ANY_TIME if fails_fast else trio.current_time()
        verdicts: list[BrokerError | None] = [None] * len(batches)
        prepared: list[Sequence[Outgoing]] = []
        for index, batch in enumerate(batches):
            try:
                prepared.append(self._prepared(entity, batch))
            except BrokerError as error:
                verdicts[index] = error
        with self._turns.acquire(entity.key) as turn:
            await turn.come()
            answers = await self._publish(entity, prepared, since, turn)
        good = [index for index, verdict in enumerate(verdicts) if verdict is None]
        for index, answer, written in zip(good, answers, prepared, strict=True):
            verdicts[index] = verdict_of(answer, written, batches[index])
        return verdicts

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> None:
        prepared = self._prepared(entity, messages)
        [verdict] = await self._publish(entity, [prepared], since, self._turns.acquire(None))
        if (error := verdict_of(verdict, prepared, messages)) is not None:
            raise error

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        """As `WritesDeadLetters.dead_letter`: published to the queue for dead letters."""
        kept = encoded(derive_message(message, time_to_live=None))
        try:
            await self._publish_one(entity.dead_letter, [kept], ANY_TIME)
        except EntityNotFound as error:
            raise EntityNotFound(
                f"{error}: the dead-letter queue of {entity} is missing; create it with"
                " `pairgate provision`"
            ) from error

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[RabbitmqReceiver]:
        """As `Broker.open_receiver`. The queue isn't checked before the first receive."""
        candidates(entity)
        deliveries = UnsettledDeliveries(
            max_bytes=self._options.max_unsettled_bytes,
            next_weight=min(_USUAL_LIMIT, self._options.max_message_size),
            longest_lock=self._options.longest_lock,
            meter=self.meter,
        )
        receiver = RabbitmqReceiver(
            entity=entity,
            mode=mode,
            channels=self._channels,
            dead_letters=self,
            clock=self._clock,
            lock_duration=self._options.lock_duration,
            deliveries=deliveries,
            token_prefix=token_prefix(self._rng.getrandbits(60)),
            work=self._work,
            spawn=self._spawn,
        )
        self._tasks.nursery.start_soon(receiver.tend)
        with self._own.registered(receiver, entity):
            try:
                yield receiver
            finally:
                with trio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(BrokerError):
                    await receiver.give_back()
                receiver.close()

    async def probe(self, entity: EntityPath) -> None:
        """
        As `Broker.probe`: checks that the queue or exchange exists, and that the sending connection
        isn't blocked.
        """
        await self._sender.check()
        await self._channels.check(await self._channels.name_of(entity))
        self.meter.request(Operation.INSPECT)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """
        As `Broker.inspect`. Without further rights, a broker reports the numbers of ready messages
        and of consumers. `active` lacks the messages that receivers have locked; it is unknown
        while receivers of this process receive and settle too fast to be counted, and of an
        exchange.
        """
        name = await self._channels.name_of(entity)
        if exchange_in(name) is not None:
            await self._channels.check(name)
            self.meter.request(Operation.INSPECT)
            return self._info(entity, None)
        count = await self._own.count(entity, partial(self._channels.inspect, name))
        self.meter.request(Operation.INSPECT)
        return attrs.evolve(
            self._info(entity, count.ready), locked_here=count.held, other_consumers=count.others
        )

    async def _counted(self, info: EntityInfo) -> EntityInfo:
        """The queue, with the counts of the broker if the plugin has none."""
        if info.active is not None:
            return attrs.evolve(info, lag=_MANAGEMENT_LAG)
        look = partial(self._channels.inspect, info.path.name)
        try:
            count = await self._own.count(info.path, look)
        except EntityNotFound:  # deleted meanwhile
            return info
        self.meter.request(Operation.INSPECT)
        return attrs.evolve(
            info, active=count.ready, locked_here=count.held, other_consumers=count.others
        )

    async def identity(self) -> Identity:
        """
        As `Identifies.identity`: made of the cluster's name and the vhost.

        Raises:
            NotSupported: there is no such name; or the URL has several hosts, and the cluster has
                the default name, which differs from node to node after a failure.
        """
        cluster = await self._channels.cluster()
        if not cluster:
            raise NotSupported("the broker has no cluster name")
        return known_to_all(rabbitmq_identity(cluster, self._login.vhost), len(self._places))

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        As `Broker.list_queues`, through the management plugin: `active` is some seconds old, and
        includes locked messages. Queues that the plugin hasn't counted, as they are new or it has
        no collector of metrics, are counted as by `inspect`, one by one.

        Raises:
            NotSupported: `management` isn't set (AMQP 0-9-1 can't list queues); or the plugin
                doesn't answer although the broker does.
            NotAuthorized: the user lacks the tag `management`.
            BrokerError: the broker doesn't answer.
        """
        if self._management is None:
            await self._channels.server()
            raise NotSupported(
                "RabbitMQ can't list queues over AMQP; set `management` to the URL of its plugin"
            )
        try:
            found = await self._management.queues(prefix, skip, top)
        except (Unavailable, OutcomeUnknown) as error:
            silence = error
        else:
            self.meter.request(Operation.INSPECT)
            _, version = await self._channels.server()
            infos = [
                self._described(
                    self._info(EntityPath(each.name), each.messages),
                    (settings_of(each) or Settings(values=each.arguments)).values,
                    version,
                )
                for each in found
            ]
            return [await self._counted(info) for info in infos]
        await self._channels.server()
        raise NotSupported(f"the management plugin doesn't answer: {silence}") from silence

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`: creates a durable quorum queue, and another one for its dead
        letters. Needs the rights configure and write on both, and read on the first.

        Raises:
            NotSupported: RabbitMQ doesn't have that property; locks are the namespace's own.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a sub-queue is created with its queue")
        if is_of_pair(entity):  # a syphon doesn't rely on the duration that it wishes
            lock = timedelta(seconds=self._options.lock_duration)
            properties = attrs.evolve(properties, lock_duration=lock)
        lost = first_lost(properties, KEEPS, self._info(entity, None, {DEAD_LETTERS: ""}))
        if lost is not None:
            raise NotSupported(f"{lost}: a RabbitMQ queue can't keep this value; leave it out")
        main, dead = name_to_make(entity), name_to_make(entity.dead_letter)
        _, version = await self._channels.server()
        arguments = arguments_for(properties, dead, version)
        if await self._is_there(entity):
            raise EntityExists(f"{entity}: a queue of this name exists already")
        # The dead-letter queue comes first: without it, the queue would lose its dead letters.
        for name, each in ((dead, arguments_for(None, None, version)), (main, arguments)):
            await self._channels.change(
                DeclareQueue(queue=name, durable=True, arguments=dict(each))
            )
        self.meter.request(Operation.MANAGE)
        return self._described(await self.inspect(EntityPath(main)), arguments, version)

    async def create_stream(self, stream: EntityPath, *, keeps: timedelta, most: int) -> None:
        """As `Streams.create_stream`. Needs the right configure on it."""
        if await self._is_there(stream):
            raise EntityExists(f"{stream}: a queue of this name exists already")
        arguments = dict(arguments_for_stream(keeps, most))
        method = DeclareQueue(queue=name_to_make(stream), durable=True, arguments=arguments)
        try:
            await self._channels.change(method)
        except InvalidRequest as error:  # the type of queue is unknown, or disabled
            raise NotSupported(f"{stream}: the broker has no streams: {error}") from error
        self.meter.request(Operation.MANAGE)

    async def read_stream(
        self, stream: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Streams.read_stream`. Of a cluster, the node needs a replica of the stream."""
        name = await self._channels.name_of(stream)
        found = await self._streams.read(name, from_sequence, limit)
        self.meter.request(Operation.PEEK)
        return found

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        As `Updates.update_queue`, but the properties must be those that the queue has.

        Raises:
            NotSupported: names the property that differs.
        """
        info = await self.describe(entity)
        if if_version not in {None, info.version}:
            raise PreconditionFailed(f"{entity}: a RabbitMQ queue never has another version")
        changed = first_changed(properties, info)
        if changed is not None:
            raise NotSupported(
                f"{changed}: a RabbitMQ queue can't be changed: delete and recreate it, or set a"
                " policy"
            )
        return info

    async def describe(self, entity: EntityPath) -> EntityInfo:
        """
        As `Describes.describe`: from the management plugin; without `management` it needs the right
        configure on the queue, and some refused requests, which RabbitMQ logs.
        """
        info = await self.inspect(entity)
        name = await self._channels.name_of(entity)
        if exchange_in(name) is not None:
            return info
        settings = await read_settings(self._channels, self._management, name)
        _, version = await self._channels.server()
        return self._described(info, None if settings is None else settings.values, version)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`; deletes the dead-letter queue, too. Needs configure on both."""
        name = await self._channels.name_of(entity)
        await self._channels.inspect(name)
        await self._channels.change(DeleteQueue(queue=name))
        self._channels.forget(entity)
        if not entity.is_dead_letter:
            dead = name_to_make(entity.dead_letter)
            await self._channels.change(DeleteQueue(queue=dead))
        self.meter.request(Operation.MANAGE)

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`."""
        name = await self._channels.name_of(entity)
        return await doubts_of(self._channels, self._management, name, is_backlog=is_backlog)

    def _described(
        self, info: EntityInfo, settings: Mapping[str, str | int] | None, version: str
    ) -> EntityInfo:
        properties = properties_of(settings, self._options.lock_duration, version)
        return attrs.evolve(info, properties=properties)

    def _info(
        self,
        entity: EntityPath,
        active: int | None,
        settings: Mapping[str, str | int] | None = None,
    ) -> EntityInfo:
        return EntityInfo(
            path=entity,
            properties=properties_of(settings, self._options.lock_duration),
            max_message_size=self._options.max_message_size,
            active=active,
        )

    def _reconnecting(self, name: str) -> Reconnecting[RabbitmqConnection]:
        login = attrs.evolve(self._login, name=f"pairgate-{name}")
        hosts = Hosts(places=self._places, rng=self._rng)

        async def try_host(place: ServerAddress, seconds: float) -> RabbitmqConnection:
            target = BrokerLogin(place=place, login=login, connect_timeout=seconds)
            return await connect(target, self._tasks.nursery)

        async def dial() -> RabbitmqConnection:
            return await hosts.first(try_host, self._options.connect_timeout)

        failures = Failures(backoff=_BACKOFF, rng=self._rng)
        made = Reconnecting(dial=dial, failures=failures, spawn=self._spawn)
        self._connections.append(made)
        return made

    def _spawn(self, *task: Any) -> None:
        self._tasks.nursery.start_soon(*task)

    def _prepared(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[Outgoing]:
        if entity.is_dead_letter or entity.is_subscription:
            raise InvalidRequest(f"{entity}: a queue expected, not a sub-queue or subscription")
        is_exchange = exchange_in(entity.name) is not None
        if any(is_exchange != (message.publish_method is not None) for message in messages):
            raise InvalidRequest(f"{entity}: RabbitMQ's clients alone can publish to an exchange")
        return [self._prepare(message) for message in messages]

    def _prepare(self, message: Message) -> Outgoing:
        if message.scheduled is not None and message.scheduled > self._clock():
            raise NotSupported(
                "scheduled: RabbitMQ can't schedule messages; send it when it is due"
            )
        outgoing = encoded(message)
        most = self._options.max_message_size
        if outgoing.size > most:
            raise MessageTooLarge(f"message of {outgoing.size} bytes, at most {most} expected")
        return outgoing

    async def _publish_one(
        self, entity: EntityPath, messages: Sequence[Outgoing], since: float
    ) -> None:
        [verdict] = await self._publish(entity, [messages], since, self._turns.acquire(None))
        if verdict is not None:
            raise verdict

    async def _publish(
        self,
        entity: EntityPath,
        batches: Sequence[Sequence[Outgoing]],
        since: float,
        turn: QueueTurn,
    ) -> Sequence[BrokerError | None]:
        if not any(batches):
            return [None] * len(batches)
        try:
            name = await self._channels.name_of(entity, since)
        except BrokerError as error:
            return [error] * len(batches)
        verdicts = await self._publishing.send_many(name, batches, since, turn)
        if any(isinstance(verdict, EntityNotFound) for verdict in verdicts):
            self._channels.forget(entity)
        accepted = [
            batch for batch, e in zip(batches, verdicts, strict=True) if batch and e is None
        ]
        if accepted:
            size = sum(message.size for batch in accepted for message in batch)
            self.meter.carried(Operation.SEND, sum(map(len, accepted)), size)
        return verdicts

    async def _is_there(self, entity: EntityPath) -> bool:
        for name in candidates(entity):
            with suppress(EntityNotFound):
                await self._channels.inspect(name)
                return True
        return False
