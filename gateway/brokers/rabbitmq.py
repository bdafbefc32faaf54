"""
A namespace in RabbitMQ, or its kin, over AMQP 0-9-1.

Two connections: one for sending, which the broker blocks when it runs out of memory or disk, and
one for the rest. At run time no configure right is needed: to send, write on `amq.default`; to
receive, read on the queue, and for dead letters the same as to send.
"""

import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import MappingProxyType, TracebackType
from typing import Final, Self
from urllib.parse import unquote, urlsplit

import attrs
import trio
from pamqp import commands

from gateway.brokers.meter import Meter
from gateway.brokers.rabbitmq_channels import Channels
from gateway.brokers.rabbitmq_holding import Holding
from gateway.brokers.rabbitmq_management import Management, open_management
from gateway.brokers.rabbitmq_names import candidates, name_to_make
from gateway.brokers.rabbitmq_options import RabbitmqOptions
from gateway.brokers.rabbitmq_receiver import RabbitmqReceiver
from gateway.brokers.rabbitmq_sender import RabbitmqSender
from gateway.brokers.rabbitmq_settings import arguments_for, doubts_of, properties_of
from gateway.domain.backoff import Backoff
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Leg, Message, ReceiveMode
from gateway.net.rabbitmq_connection import RabbitmqConnection, Target, connect
from gateway.net.reconnecting import ANY_TIME, Failures, Reconnecting
from gateway.net.tls import TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire.rabbitmq import Login
from gateway.wire.rabbitmq_content import MAX_SHORT
from gateway.wire.rabbitmq_management import ManagementLogin
from gateway.wire.rabbitmq_properties import Outgoing, prepare

_PORTS: Final = {"rabbitmq": 5672, "rabbitmqs": 5671}
_CLOSE_TIMEOUT: Final = 2.0
_USUAL_LIMIT: Final = 256 * 1024  # bytes of a message, as in Service Bus: before any has come
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
"""What this kind of namespace can't do, and what happens instead."""


def open_namespace(
    scheme: str, rest: str, options: RabbitmqOptions, clock: WallClock, rng: random.Random
) -> "RabbitmqBroker":
    """
    The adapter for `rabbitmq(s)://user:password@host:port/vhost`; `rest` follows the scheme.

    No path, or `/` alone, is the vhost `/`; a user is missing where a client certificate says who
    we are.

    Raises:
        InvalidRequest: a part of the URL has no place there, or a certificate can't be read.
    """
    parts = urlsplit(f"{scheme}:{rest}")
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError as error:
        raise InvalidRequest(f"URL of a namespace: {error}") from error
    vhost = unquote(parts.path[1:]) or "/"
    if not parts.hostname or parts.query or parts.fragment or "/" in parts.path[1:]:
        raise InvalidRequest(
            f"URL of a namespace: {scheme}://user:password@host:port/vhost expected"
        )
    if parts.password and options.password:
        raise InvalidRequest("password: is in the URL already")
    if len(vhost.encode()) > MAX_SHORT:
        raise InvalidRequest(f"URL of a namespace: vhost: at most {MAX_SHORT} bytes expected")
    certified = scheme == "rabbitmqs" and options.tls.certificate is not None
    if not parts.username and not certified:
        raise InvalidRequest("URL of a namespace: a user expected, or a tls.certificate")
    if parts.username and not (parts.password or options.password):
        raise InvalidRequest('password: is missing; write password = { env = "NAME" }')
    try:
        tls = client_context(options.tls) if scheme == "rabbitmqs" else None
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error
    login = Login(
        user=unquote(parts.username or ""),
        password=unquote(parts.password or "") or options.password,
        vhost=vhost,
        heartbeat=math.ceil(options.heartbeat),
    )
    target = Target(
        host=parts.hostname,
        port=port,
        tls=tls,
        login=login,
        connect_timeout=options.connect_timeout,
    )
    management = open_management(
        options.management,
        ManagementLogin(user=login.user, password=login.password, vhost=vhost),
        options.tls,
        options.connect_timeout,
    )
    return RabbitmqBroker(
        target=target, options=options, clock=clock, rng=rng, management=management
    )


@attrs.define(eq=False, kw_only=True)
class RabbitmqBroker:
    """`ports.Broker` and `capabilities.Verifies`. It connects when it is first used."""

    _target: Target
    _options: RabbitmqOptions
    _clock: WallClock
    _rng: random.Random
    _management: Management | None = None
    meter: Meter = attrs.field(factory=Meter, init=False)
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _sender: RabbitmqSender = attrs.field(init=False)
    _channels: Channels = attrs.field(init=False)
    _connections: list[Reconnecting[RabbitmqConnection]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._sender = RabbitmqSender(
            connections=self._reconnecting("sends"), clock=self._clock, rng=self._rng
        )
        self._channels = Channels(self._reconnecting("receives"))

    async def __aenter__(self) -> Self:
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            for each in self._connections:
                if each.current is not None:
                    await each.current.close()
            if self._management is not None:
                await self._management.aclose()
        self._nursery.cancel_scope.cancel()
        await self._stack.aclose()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`. Several messages are published one after the other: if not all have the
        same fate, the outcome is unknown.

        Raises:
            NotSupported: a message is scheduled for later.
        """
        return await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """As `FailsFast.try_send`. Raises as `send`."""
        return await self._send(entity, messages, ANY_TIME)

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> Leg:
        if entity.is_dead_letter or entity.is_subscription:
            raise InvalidRequest(f"{entity}: nobody sends to a sub-queue or a subscription")
        prepared = [self._prepared(message) for message in messages]
        await self._publish(entity, prepared, since)
        return Leg.PRIMARY

    async def bury(self, entity: EntityPath, message: Message) -> None:
        """
        Return once it is among the dead letters of that queue.

        Raises:
            InvalidRequest: a field that AMQP can't say.
            EntityNotFound: the queue has none.
        """
        try:
            await self._publish(entity.dead_letter, [_encoded(message)], ANY_TIME)
        except EntityNotFound as error:
            raise EntityNotFound(
                f"{error}: the dead letters of {entity}; `pairgate provision` makes it"
            ) from error

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[RabbitmqReceiver]:
        """As `Broker.open_receiver`. Nothing is asked before the first receive."""
        candidates(entity)
        receiver = RabbitmqReceiver(
            entity=entity,
            mode=mode,
            channels=self._channels,
            dead_letters=self,
            clock=self._clock,
            lock_duration=self._options.lock_duration,
            holding=Holding(
                max_bytes=self._options.max_held_bytes,
                next_weight=min(_USUAL_LIMIT, self._options.max_message_size),
                longest_lock=self._options.longest_lock,
                meter=self.meter,
            ),
            nonce=self._rng.getrandbits(60),
        )
        self._nursery.start_soon(receiver.tend)
        try:
            yield receiver
        finally:
            with trio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(BrokerError):
                await receiver.give_back()
            receiver.close()

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`: the queue is there, and the sending connection isn't blocked."""
        await self._sender.check()
        await self._channels.look(await self._channels.name_of(entity))
        self.meter.request(Operation.INSPECT)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`. Without any right a broker tells how many messages are ready."""
        answer = await self._channels.look(await self._channels.name_of(entity))
        self.meter.request(Operation.INSPECT)
        return self._info(entity, answer.message_count)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        As `Broker.list_queues`, with `management`: `active` is some seconds old, and has what is
        locked too.

        Raises:
            NotSupported: without it, since AMQP 0-9-1 has no way to list; or it is silent, and the
                broker isn't.
            NotAuthorized: the user lacks the tag `management`.
            BrokerError: the broker doesn't answer.
        """
        if self._management is None:
            await self._channels.server()
            raise NotSupported("RabbitMQ lists no queues over AMQP; `management` is not set")
        try:
            found = await self._management.queues(prefix, skip, top)
        except (Unavailable, OutcomeUnknown) as error:
            silence = error
        else:
            self.meter.request(Operation.INSPECT)
            return [self._info(EntityPath(each.name), each.messages) for each in found]
        await self._channels.server()
        raise NotSupported(f"no list of queues: {silence}") from silence

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`: a durable quorum queue, and one for its dead letters. Needs the
        rights configure and write on both, and read on the first.

        Raises:
            NotSupported: a property asks for what RabbitMQ can't do.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a sub-queue is made with its queue")
        main, dead = name_to_make(entity), name_to_make(entity.dead_letter)
        _, version = await self._channels.server()
        arguments = arguments_for(properties, dead, version)
        if await self._is_there(entity):
            raise EntityExists(f"{entity} is there already")
        # The dead letters first: a queue without them loses what it gives up.
        for name, each in ((dead, arguments_for(None, None, version)), (main, arguments)):
            await self._channels.ask(
                commands.Queue.Declare(queue=name, durable=True, arguments=dict(each))
            )
        self.meter.request(Operation.MANAGE)
        return await self.inspect(EntityPath(main))

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`, with its dead letters. Needs configure on both."""
        name = await self._channels.name_of(entity)
        await self._channels.look(name)
        await self._channels.ask(commands.Queue.Delete(queue=name))
        self._channels.forget(entity)
        if not entity.is_dead_letter:
            dead = name_to_make(entity.dead_letter)
            await self._channels.ask(commands.Queue.Delete(queue=dead))
        self.meter.request(Operation.MANAGE)

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`."""
        name = await self._channels.name_of(entity)
        return await doubts_of(self._channels, self._management, name, is_backlog=is_backlog)

    def _info(self, entity: EntityPath, active: int | None) -> EntityInfo:
        return EntityInfo(
            path=entity,
            properties=properties_of(self._options.lock_duration),
            max_message_size=self._options.max_message_size,
            active=active,
        )

    def _reconnecting(self, name: str) -> Reconnecting[RabbitmqConnection]:
        login = attrs.evolve(self._target.login, name=f"pairgate {name}")
        target = attrs.evolve(self._target, login=login)

        async def dial() -> RabbitmqConnection:
            return await connect(target, self._nursery)

        made = Reconnecting(dial=dial, failures=Failures(backoff=_BACKOFF, rng=self._rng))
        self._connections.append(made)
        return made

    def _prepared(self, message: Message) -> Outgoing:
        if message.scheduled is not None and message.scheduled > self._clock():
            raise NotSupported("RabbitMQ can't keep a message for later")
        outgoing = _encoded(message)
        if outgoing.size > self._options.max_message_size:
            raise MessageTooLarge(
                f"message: {outgoing.size} bytes, at most {self._options.max_message_size} expected"
            )
        return outgoing

    async def _publish(
        self, entity: EntityPath, messages: Sequence[Outgoing], since: float
    ) -> None:
        if not messages:
            await trio.lowlevel.checkpoint()
            return
        name = await self._channels.name_of(entity, since)
        try:
            await self._sender.send(name, messages, since)
        except EntityNotFound:
            self._channels.forget(entity)
            raise
        size = sum(message.size for message in messages)
        self.meter.carried(Operation.SEND, len(messages), size)

    async def _is_there(self, entity: EntityPath) -> bool:
        for name in candidates(entity):
            with suppress(EntityNotFound):
                await self._channels.look(name)
                return True
        return False  # noqa: ASYNC910 the looks have waited


def _encoded(message: Message) -> Outgoing:
    try:
        return prepare(message)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
