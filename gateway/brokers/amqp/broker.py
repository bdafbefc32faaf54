"""
A namespace over AMQP 1.0, with what every such broker has: sending, receiving, settling.

Management is no part of AMQP: entities are made elsewhere.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar
from urllib.parse import unquote, urlsplit

import attrs
import trio

from gateway.brokers.amqp.options import AmqpNamespaceOptions, LinkOptions
from gateway.brokers.amqp.peer import Access, Connections
from gateway.brokers.amqp.receiver import AmqpReceiver, Surroundings
from gateway.brokers.amqp.senders import Sender, Senders, attach_sender, within
from gateway.brokers.amqp.sending import encoded, send_all, transfers_of
from gateway.brokers.meter import Meter
from gateway.brokers.tokens import lock_tokens
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotSupported,
)
from gateway.domain.message import Leg, Message, ReceiveMode
from gateway.net.amqp_links import LinkVoid
from gateway.net.dialing import Place
from gateway.net.reconnecting import ANY_TIME
from gateway.net.tls import TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire.amqp.sasl import Credentials

R = TypeVar("R", bound=AmqpReceiver)

_CLOSE_TIMEOUT: Final = 5.0  # seconds
_TRIES: Final = 2  # a link that had ended unnoticed is attached again
_UNTOLD: Final = 2**31 - 1  # deliveries: as far as AMQP tells there's no limit
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
    The adapter for `amqp(s)://[user@]host[:port]`; `rest` is what follows the scheme.

    Raises:
        InvalidRequest: a part of the URL is missing or has no place there, a certificate can't be
            read, or there is a user without a password.
    """
    parts = urlsplit(f"{scheme}:{rest}")
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError as error:
        raise InvalidRequest(f"URL of a namespace: {error}") from error
    if not parts.hostname or parts.password is not None:
        raise InvalidRequest(f"URL of a namespace: {scheme}://[USER@]HOST[:PORT] expected")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidRequest("URL of a namespace: nothing expected after the port")
    if bool(parts.username) != bool(options.password):
        raise InvalidRequest("URL of a namespace: a user goes with password = { env = ... }")
    user = unquote(parts.username or "")
    credentials = Credentials(mechanism="ANONYMOUS")
    if user:
        credentials = Credentials(mechanism="PLAIN", user=user, password=options.password)
    access = Access(
        place=place_of(parts.hostname, port, options, secure=scheme == "amqps"),
        hostname=parts.hostname,
        credentials=credentials,
        dialect=options.dialect,
    )
    return AmqpBroker(access=access, options=options, clock=clock, rng=rng)


def place_of(host: str, port: int, options: LinkOptions, *, secure: bool) -> Place:
    """
    Raises:
        InvalidRequest: a certificate can't be read.
    """
    try:
        return Place(host=host, port=port, tls=client_context(options.tls) if secure else None)
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error


@attrs.define(eq=False, kw_only=True)
class AmqpBroker:
    """
    `ports.Broker`. It connects when it is first used, for sends and receives apart: a receiver that
    takes much doesn't hold up the answers to sends.
    """

    _access: Access
    _options: LinkOptions
    _clock: WallClock
    _rng: random.Random
    meter: Meter = attrs.field(factory=Meter)
    _nurseries: AbstractAsyncContextManager[trio.Nursery] = attrs.field(init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _sending: Connections = attrs.field(init=False)
    _receiving: Connections = attrs.field(init=False)
    _senders: Senders = attrs.field(init=False)
    _around: Surroundings = attrs.field(init=False)

    async def __aenter__(self) -> Self:
        self._nurseries = trio.open_nursery()
        self._nursery = await self._nurseries.__aenter__()
        self._sending, self._receiving = (
            Connections(
                access=self._access, options=self._options, rng=self._rng, nursery=self._nursery
            )
            for _ in range(2)
        )
        self._senders = Senders(take=self._sending.take, options=self._options)
        self._around = Surroundings(
            take=self._receiving.take,
            options=self._options,
            clock=self._clock,
            rng=self._rng,
            new_token=lock_tokens(self._rng),
            numbers=count(1),
            meter=self.meter,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sending.close)
                nursery.start_soon(self._receiving.close)
        self._nursery.cancel_scope.cancel()
        # What ends the block by itself isn't the nursery's: it would come out in a group.
        if isinstance(error, Exception):
            kind = error = traceback = None
        await self._nurseries.__aexit__(  # noqa: ASYNC102 all of its tasks are cancelled
            kind, error, traceback
        )

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`. Several messages are one batch, or as few as the link's limit allows;
        where the broker knows no batches, they are messages of their own that go together.

        Raises:
            NotSupported: this broker would not give a message back as it was sent.
        """
        return await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """As `FailsFast.try_send`. Raises as `send`."""
        return await self._send(entity, messages, ANY_TIME)

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> Leg:
        for _ in range(_TRIES):
            sender = await self._senders.get(entity, since)
            payloads = encoded(messages, sender.peer.dialect, self._access.credentials.user)
            try:
                await send_all(sender, transfers_of(payloads, sender))
                self.meter.carried(Operation.SEND, len(payloads), sum(map(len, payloads)))
            except LinkVoid as void:
                refusal = void.link.refusal()
            except _GONE:
                self._senders.forget(entity)
                raise
            else:
                return Leg.PRIMARY
        raise refusal

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[AmqpReceiver]:
        """As `Broker.open_receiver`. The link is attached before it is yielded."""
        async with opened(AmqpReceiver(self._around, entity, mode)) as receiver:
            yield receiver

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`: a new link is attached, and has got credit. Nothing is sent."""
        sender = await self._attach(entity)
        self.meter.request(Operation.INSPECT)
        try:
            await sender.link.wait_credit()
        finally:
            sender.close()

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`: that it is there, and how large a message may be."""
        sender = await self._attach(entity)
        self.meter.request(Operation.INSPECT)
        sender.close()
        return EntityInfo(
            path=entity,
            properties=QueueProperties(max_delivery_count=_UNTOLD),
            max_message_size=sender.max_size,
        )

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`: of a queue's settings AMQP tells nothing."""
        (await self._attach(entity)).close()
        limits = ", has no limit of deliveries," if is_backlog else ""
        wanted = f"it's durable{limits} and drops nothing when it is full"
        return [f"AMQP doesn't tell its settings: see to it that {wanted}"]

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        Raises:
            NotSupported: always.
        """
        await _cannot("list queues")

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        Look whether it's there: it can't be made.

        Raises:
            EntityExists: it is.
            NotSupported: it is missing.
        """
        try:
            (await self._attach(entity)).close()
        except EntityNotFound:
            await _cannot(f"make {entity}")
        raise EntityExists(f"{entity} is there")

    async def delete_queue(self, entity: EntityPath) -> None:
        """
        Raises:
            NotSupported: always.
        """
        await _cannot("delete queues")

    async def _attach(self, entity: EntityPath) -> Sender:
        return await within(
            self._options.connect_timeout,
            str(entity),
            lambda: attach_sender(self._sending.take, entity, self._options),
        )


@asynccontextmanager
async def opened(receiver: R) -> AsyncIterator[R]:
    """A receiver with a link, which gives back what it holds in the end."""
    await receiver.open()
    try:
        yield receiver
    finally:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await receiver.give_back()
        receiver.close()


async def _cannot(what: str) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise NotSupported(f"AMQP has no way to {what}: use the broker's own management")
