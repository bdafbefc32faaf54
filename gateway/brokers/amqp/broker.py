"""
A namespace over AMQP 1.0, with the operations that every AMQP broker has: send, receive, settle.

AMQP has no management: entities are created by other means.
"""

import random
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Final, NoReturn, Self, TypeVar

import attrs
import trio

from gateway.brokers.amqp.options import AmqpNamespaceOptions, LinkOptions
from gateway.brokers.amqp.peer import ConnectionPool, NamespaceAccess, NamespaceConnection
from gateway.brokers.amqp.receiver import AmqpReceiver, DrainingReceiver, ReceiverDependencies
from gateway.brokers.amqp.receiving import ReceivingConnections
from gateway.brokers.amqp.senders import Sender, Senders, attach_sender, within
from gateway.brokers.amqp.sending import check_all, encoded, post_all, transfers_of
from gateway.brokers.lock_tokens import lock_tokens
from gateway.brokers.meter import Meter
from gateway.brokers.task_scope import TaskScope
from gateway.capabilities import Batches
from gateway.changes import Turns
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotSupported,
)
from gateway.domain.identity import Identity, known_to_all
from gateway.domain.message import Message, ReceiveMode
from gateway.net.amqp.links import InFlight, LinkVoid
from gateway.net.hosts import places_of
from gateway.net.reconnecting import ANY_TIME, recently
from gateway.net.tls import TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire.amqp.management.identity import identity_in_open
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.http.hosts import parse_server_url

R = TypeVar("R", bound=AmqpReceiver)

# Seconds: a namespace that is alive answers a close within a round trip.
_CLOSE_TIMEOUT: Final = 5.0
_TRIES: Final = 2  # a link that had ended unnoticed is attached again
_UNTOLD: Final = 2**31 - 1  # deliveries; AMQP doesn't report the limit
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_GONE: Final = (EntityNotFound, EntityDisabled)


def open_namespace(
    scheme: str,
    rest: str,
    options: AmqpNamespaceOptions,
    clock: WallClock,
    rng: random.Random,
) -> "AmqpBroker":
    """
    Make the adapter for `amqp(s)://[user@]host[:port],...`; `rest` is the part after the scheme.

    The hosts are the nodes of one cluster.

    Raises:
        InvalidRequest: a part of the URL is missing or invalid, a certificate can't be read, or a
            user has no password.
    """
    try:
        parts = parse_server_url(f"{scheme}:{rest}")
    except InvalidRequest as error:
        raise InvalidRequest(f"URL of a namespace: {error}") from error
    if parts.password:
        raise InvalidRequest(f"URL of a namespace: {scheme}://[USER@]HOST[:PORT] expected")
    if parts.path not in {"", "/"} or parts.more:
        raise InvalidRequest("URL of a namespace: nothing expected after the port")
    if bool(parts.user) != bool(options.password):
        raise InvalidRequest(
            "URL of a namespace: a user and the option password must be given together"
        )
    credentials = Credentials(mechanism="ANONYMOUS")
    if parts.user:
        credentials = Credentials(mechanism="PLAIN", user=parts.user, password=options.password)
    access = NamespaceAccess(
        places=places_of(parts.hosts, _PORTS[scheme], tls_of(options, secure=scheme == "amqps")),
        credentials=credentials,
        dialect=options.dialect,
    )
    return AmqpBroker(access=access, options=options, clock=clock, rng=rng)


def tls_of(options: LinkOptions, *, secure: bool) -> ssl.SSLContext | None:
    """
    The TLS context of a connection; None if the connection is plain.

    Raises:
        InvalidRequest: a certificate can't be read.
    """
    try:
        return client_context(options.tls) if secure else None
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error


@attrs.frozen
class _Posted:
    """A batch that was written."""

    sender: Sender
    began: float
    under_way: Sequence[InFlight]
    messages: Sequence[Message]
    size: int  # bytes


@attrs.define(eq=False, kw_only=True)
class AmqpBroker:
    """
    `ports.Broker`. Connects on first use, with separate connections for sending and receiving, so
    that large deliveries don't delay the answers to sends.
    """

    _access: NamespaceAccess
    _options: LinkOptions
    _clock: WallClock
    _rng: random.Random
    meter: Meter = attrs.field(factory=Meter)
    _tasks: TaskScope = attrs.field(factory=TaskScope, init=False)
    _sending: ConnectionPool = attrs.field(init=False)
    _receiving: ConnectionPool = attrs.field(init=False)
    _senders: Senders = attrs.field(init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)  # to write on an entity's link
    _dependencies: ReceiverDependencies = attrs.field(init=False)

    async def __aenter__(self) -> Self:
        nursery = (await self._tasks.__aenter__()).nursery
        self._sending, self._receiving = (
            kind(access=self._access, options=self._options, rng=self._rng, nursery=nursery)
            for kind in (ConnectionPool, ReceivingConnections)
        )
        self._senders = Senders(take=self._sending.acquire, options=self._options)
        self._dependencies = ReceiverDependencies(
            take=self._receiving_connection,
            options=self._options,
            clock=self._clock,
            rng=self._rng,
            new_token=lock_tokens(self._rng),
            numbers=count(1),
            meter=self.meter,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sending.close)
                nursery.start_soon(self._receiving.close)
        await self._tasks.aclose()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`. Several messages go as one batch, or in as few batches as the link's limit
        allows. A broker without batches gets the messages separately, without waiting in between.

        Raises:
            NotSupported: the broker would not deliver a message as it was sent.
        """
        await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`. Raises as `send`."""
        await self._send(entity, messages, ANY_TIME)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `SendsMany.send_many`: all batches are written before the first outcome is waited for. If
        the link ends meanwhile, the batches that weren't written get its error.
        """
        since = ANY_TIME if fails_fast else trio.current_time()
        with self._turns.acquire(entity.key) as turn:
            await turn.come()
            posted = await self._post_each(entity, batches, since)
        return [
            each if isinstance(each, BrokerError) else await self._verdict(entity, each)
            for each in posted
        ]

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> None:
        for _ in range(_TRIES):
            sender = await self._senders.get(entity, since)
            try:
                posted = await self._post(sender, messages)
            except LinkVoid as void:
                refusal = void.link.refusal()
                continue
            error = await self._verdict(entity, posted)
            if error is not None:
                raise error
            return
        raise refusal

    async def _post_each(
        self, entity: EntityPath, batches: Batches, since: float
    ) -> Sequence[_Posted | BrokerError]:
        posted: list[_Posted | BrokerError] = []
        tries = 0
        try:
            while len(posted) < len(batches):
                sender = await self._senders.get(entity, since)
                try:
                    while len(posted) < len(batches):
                        posted.append(await self._post_or_refuse(sender, batches[len(posted)]))
                except LinkVoid as void:
                    tries += 1
                    has_begun = any(isinstance(each, _Posted) for each in posted)
                    if has_begun or tries == _TRIES:
                        raise void.link.refusal() from void
        except BrokerError as error:
            posted += [error] * (len(batches) - len(posted))
        return posted

    async def _post_or_refuse(
        self, sender: Sender, messages: Sequence[Message]
    ) -> _Posted | BrokerError:
        try:
            return await self._post(sender, messages)
        except BrokerError as error:
            return error

    async def _post(self, sender: Sender, messages: Sequence[Message]) -> _Posted:
        payloads = encoded(messages, sender.peer.dialect, self._access.credentials.user)
        began = trio.current_time()
        with sender.peer.judged(began):
            under_way = await post_all(sender, transfers_of(payloads, sender))
        return _Posted(sender, began, under_way, messages, sum(map(len, payloads)))

    async def _verdict(self, entity: EntityPath, posted: _Posted) -> BrokerError | None:
        try:
            with posted.sender.peer.judged(posted.began, changes=True):
                await check_all(posted.sender, posted.under_way, posted.messages)
        except BrokerError as error:
            if isinstance(error, _GONE):
                self._senders.forget(entity)
            return error
        self.meter.carried(Operation.SEND, len(posted.messages), posted.size)
        return None

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[AmqpReceiver]:
        """As `Broker.open_receiver`. The link is attached on entering."""
        peer = await within(self._options.connect_timeout, str(entity), self._receiving_connection)
        kind = DrainingReceiver if peer.dialect.drains else AmqpReceiver
        async with opened(kind(self._dependencies, entity, mode)) as receiver:
            yield receiver

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`: attaches a new link and waits for credit. Nothing is sent."""
        has_credit = False
        while not has_credit:
            sender = await self._attach(entity)
            self.meter.request(Operation.INSPECT)
            try:
                with sender.peer.until_replaced(), sender.peer.judged():
                    await sender.link.wait_credit()
                    has_credit = True
            finally:
                sender.close()

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """
        As `Broker.inspect`: reports only that the entity exists, and the largest message size.
        """
        sender = await self._attach(entity)
        self.meter.request(Operation.INSPECT)
        sender.close()
        return EntityInfo(
            path=entity,
            properties=QueueProperties(max_delivery_count=_UNTOLD),
            max_message_size=sender.max_size,
        )

    async def identity(self) -> Identity:
        """As `Identifies.identity`: known only from RabbitMQ's open frame."""
        peer = await self._sending.acquire(trio.current_time())
        told = identity_in_open(peer.properties)
        if told is None:
            raise NotSupported("AMQP doesn't tell the identity of the namespace")
        return known_to_all(told, len(self._access.places))

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`. AMQP reports nothing about a queue's settings."""
        (await self._attach(entity)).close()
        limits = ", has no limit of deliveries," if is_backlog else ""
        wanted = f"it's durable{limits} and drops nothing when it is full"
        return [f"AMQP doesn't tell its settings: see to it that {wanted}"]

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        Not supported.

        Raises:
            NotSupported: always.
        """
        await _cannot("list queues")

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        Check whether the queue exists, since AMQP can't create it.

        Raises:
            EntityExists: it exists.
            NotSupported: it doesn't exist.
        """
        try:
            (await self._attach(entity)).close()
        except EntityNotFound:
            await _cannot(f"create {entity}")
        raise EntityExists(f"{entity}: a queue of this name exists already")

    async def delete_queue(self, entity: EntityPath) -> None:
        """
        Not supported.

        Raises:
            NotSupported: always.
        """
        await _cannot("delete queues")

    async def _receiving_connection(self) -> NamespaceConnection:
        return await self._receiving.acquire(recently())

    async def _attach(self, entity: EntityPath) -> Sender:
        take = partial(self._sending.acquire, recently())
        return await within(
            self._options.connect_timeout,
            str(entity),
            lambda: attach_sender(take, entity, self._options),
        )


@asynccontextmanager
async def opened(receiver: R) -> AsyncIterator[R]:
    """Open the receiver's link; release its deliveries at the end."""
    await receiver.open()
    try:
        yield receiver
    finally:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await receiver.give_back()
        receiver.close()


async def _cannot(what: str) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise NotSupported(f"AMQP can't {what}: use the broker's own management")
