"""
A namespace over Service Bus REST: another Pairgate, or Azure.

Between Pairgates, messages travel as encoded AMQP, many per request. Otherwise a request carries
one message, with only what REST can carry: see `wire.servicebus.custom_properties`. Azure itself
was never tried.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Self, TypeVar
from urllib.parse import unquote

import attrs
import trio
from attrs import validators

from gateway.brokers.entra.options import CredentialOptions, refuse_key
from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.meter import Meter
from gateway.brokers.servicebus.management import RestManagement
from gateway.brokers.servicebus.peer import (
    MAX_ANSWER,
    MAX_MESSAGE,
    Authorization,
    BearerTokens,
    EntityTokens,
    RestPeer,
    is_from_pairgate,
)
from gateway.brokers.servicebus.receiver import PollLimit, RestReceiver
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
)
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.domain.option_fields import BYTES, SECRET
from gateway.domain.topics.topology import TopicInfo
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import ClientTlsOptions, TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire.amqp.message import encoded_size
from gateway.wire.http.hosts import split_url
from gateway.wire.servicebus.answers import parse_response
from gateway.wire.servicebus.batch import loses_nothing
from gateway.wire.servicebus.errors import fails
from gateway.wire.servicebus.operations import (
    MAX_LIMIT,
    Delivered,
    Form,
    PeekMessages,
    ProbeEntity,
    SendAccepted,
    SendMessages,
)
from gateway.wire.servicebus.rest import build_request

LimitedT = TypeVar("LimitedT", EntityInfo, TopicInfo)

_MAX_AMQP_REQUEST: Final = 2 * 1024 * 1024  # bytes; half of the default limit of a Pairgate
_MAX_JSON_REQUEST: Final = 128 * 1024  # bytes; half of Service Bus's limit, because JSON is longer
_TOKEN_LIFETIME: Final = 3600.0  # an hour, as the SDKs sign
_CLOSE_TIMEOUT: Final = 5.0  # for the locks that are released at the end
_PORTS: Final = {"servicebus+http": 80, "servicebus+https": 443}


@attrs.frozen(kw_only=True)
class ServiceBusRestOptions:
    """Options of a namespace over Service Bus REST. Times are seconds."""

    key: str = attrs.field(default="", repr=False, metadata=SECRET)
    credential: CredentialOptions | None = None  # instead of a key
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)  # for servicebus+https
    max_connections: int = attrs.field(
        default=64, validator=[validators.ge(1), validators.le(10_000)]
    )
    # Shorter than the timeout of one attempt, so that a hanging connect is known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    receive_poll: float = attrs.field(default=60.0, validator=validators.ge(1.0))
    # Receives that wait at a time, each on a connection of its own; others return at once. All
    # connections together are fewer than the 800 that a Pairgate accepts of one address.
    max_polls: int = attrs.field(default=600, validator=[validators.ge(1), validators.le(10_000)])
    receive_batch: int = attrs.field(
        default=100, validator=[validators.ge(1), validators.le(MAX_LIMIT)]
    )
    # Encoded, with all of its properties. Larger messages are neither received nor sent.
    max_message_size: int = attrs.field(
        default=MAX_MESSAGE, validator=validators.ge(64 * 1024), metadata=BYTES
    )


def open_namespace(
    scheme: str,
    rest: str,
    options: ServiceBusRestOptions,
    clock: WallClock,
    access: AccessTokens | None = None,
) -> "ServiceBusRestBroker":
    """
    Make the adapter for `servicebus+http(s)://KEYNAME@host:port`; `rest` is the part after the
    scheme. With `access`, the tokens of `options.credential`, there is no key name.

    Raises:
        InvalidRequest: a part of the URL or the key is missing or invalid, there is a key and a
            credential, or a certificate can't be read.
    """
    try:
        parts = split_url(f"{scheme}:{rest}")
    except ValueError as error:
        raise InvalidRequest(f"URL of a namespace: {error}") from error
    port = parts.port or _PORTS[scheme]
    refuse_key(options.credential, has_key=bool(options.key or parts.username))
    needs_name = options.credential is None
    if not parts.hostname or (needs_name and not parts.username) or parts.password is not None:
        raise InvalidRequest(f"URL of a namespace: {scheme}://KEYNAME@host:port expected")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidRequest("URL of a namespace: nothing expected after the port")
    if not options.key and options.credential is None:
        raise InvalidRequest('key: is missing; write key = { env = "NAME" }')
    secure = scheme == "servicebus+https"
    try:
        tls = client_context(options.tls) if secure else None
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error
    clients = [
        HttpClient(
            parts.hostname,
            port,
            tls=tls,
            options=HttpClientOptions(
                max_connections=connections,
                connect_timeout=options.connect_timeout,
                max_body=MAX_ANSWER,
                fails=fails,
            ),
        )
        for connections in (options.max_connections, PollLimit(options.max_polls).connections)
    ]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    tokens: Authorization
    if access is not None:
        tokens = BearerTokens(tokens=access)
    else:
        tokens = EntityTokens(
            origin=f"{'https' if secure else 'http'}://{host}:{port}",
            key_name=unquote(parts.username or ""),
            key=options.key,
            lifetime=_TOKEN_LIFETIME,
            clock=clock,
        )
    client, polls = clients
    return ServiceBusRestBroker(
        client=client, polls=polls, tokens=tokens, access=access, options=options, clock=clock
    )


@attrs.define(eq=False, kw_only=True)
class ServiceBusRestBroker(RestManagement):
    """
    `ports.Broker`, with `Peeks`, `Diverts`, `Identifies` and `Topology`. Connects on first use.
    """

    _client: HttpClient
    # For deliveries. Separate, so that waiting receives take no connection from a send.
    _polls: HttpClient
    _tokens: Authorization
    _access: AccessTokens | None = None
    _options: ServiceBusRestOptions
    _clock: WallClock
    meter: Meter = attrs.field(factory=Meter, init=False)
    _peer: RestPeer = attrs.field(init=False)
    _long_polls: PollLimit = attrs.field(init=False)
    _opened: AsyncExitStack = attrs.field(factory=AsyncExitStack, init=False)

    def __attrs_post_init__(self) -> None:
        self._long_polls = PollLimit(self._options.max_polls)
        self._peer = self._peer_by(self._client)

    def replace_key(self, name: str, key: str) -> None:
        """As `ReplacesKey.replace_key`. With access tokens, there is no key."""
        if isinstance(self._tokens, EntityTokens):
            self._tokens.replace_key(name, key)

    async def __aenter__(self) -> Self:
        if self._access is not None:
            await self._opened.enter_async_context(self._access)
        self._opened.push_async_callback(self._polls.aclose)
        self._opened.push_async_callback(self._client.aclose)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()  # everything, also after a cancelled close

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `send_diverting`."""
        await self.send_diverting(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `Diverts.send_diverting`: `AcceptedBy.PRIMARY` from a namespace that isn't a Pairgate.

        A Pairgate takes a batch of up to two mebibytes in one request. A larger
        batch, or most batches elsewhere, takes several requests; a failure after the first accepted
        request is an unknown outcome.

        Raises:
            NotSupported: the namespace isn't a Pairgate, and REST can't carry a message.
            MessageTooLarge: a message is above `max_message_size`, so that it couldn't be received.
        """
        _refuse_too_large(messages, self._peer.largest(entity))
        is_pairgate = await self._peer.is_pairgate(entity)
        sends = _sends(entity, messages, is_pairgate=is_pairgate)
        for each in sends[1:]:
            build_request(each)  # refuses unsupported messages before anything is sent
        accepted_by = AcceptedBy.PRIMARY
        for number, each in enumerate(sends):
            try:
                answer = await self._peer.run(each)
            except BrokerError as error:
                if number == 0:
                    raise
                raise OutcomeUnknown(
                    f"{number} of {len(sends)} requests were accepted, then: {error}"
                ) from error
            if isinstance(answer, SendAccepted):
                accepted_by = answer.accepted_by
        return accepted_by

    def sends_together(self) -> bool:
        """As `SendsTogether.sends_together`: a Pairgate takes several messages in one request."""
        return self._peer.is_known_pairgate

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[RestReceiver]:
        """As `Broker.open_receiver`. The queue isn't checked before the first receive."""
        receiver = RestReceiver(
            peer=self._peer,
            polls=self._peer_by(self._polls),
            entity=entity,
            mode=mode,
            poll=self._options.receive_poll,
            long_polls=self._long_polls,
            most=self._options.receive_batch,
            clock=self._clock,
        )
        async with receiver.looks:
            try:
                yield receiver
            finally:
                with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                    await receiver.give_back()

    async def probe(self, entity: EntityPath) -> None:
        """
        As `Broker.probe`.

        A Pairgate answers for the entity, which needs only the right to send. Elsewhere the queue's
        description is read, which needs Manage; without that right, a refusal that isn't about the
        token shows only that the namespace answers.
        """
        response = await self._peer.probe(entity)
        if is_from_pairgate(response):
            parse_response(ProbeEntity(entity=entity), response)
            return
        try:
            info = await self.inspect(entity)
        except NotAuthorized as error:
            if "token" in str(error).lower() or "signature" in str(error).lower():
                raise
            return
        if info.properties.status in {EntityStatus.DISABLED, EntityStatus.SEND_DISABLED}:
            raise EntityDisabled(f"{entity} is {info.properties.status.value}")

    async def identity(self) -> Identity:
        """As `Identifies.identity`. Raises NotSupported if the namespace isn't a Pairgate."""
        return await self._peer.identity()

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`. Raises NotSupported if the namespace isn't a Pairgate."""
        if not await self._peer.is_pairgate(entity):
            raise NotSupported("Service Bus REST can't peek")
        operation = PeekMessages(
            entity=entity, from_sequence=from_sequence, limit=min(limit, MAX_LIMIT)
        )
        answer = await self._peer_by(self._polls).run(operation)
        return answer.deliveries if isinstance(answer, Delivered) else ()

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`. The maximum message size is at most `max_message_size`."""
        return self._limited(await super().inspect(entity), entity)

    async def inspect_topic(self, topic: EntityPath) -> TopicInfo:
        """As `Topology.inspect_topic`. The maximum message size is at most `max_message_size`."""
        return self._limited(await super().inspect_topic(topic), topic)

    def _limited(self, info: LimitedT, entity: EntityPath) -> LimitedT:
        """An unknown maximum stays unknown: that of the namespace may be lower than ours."""
        if info.max_message_size is None:
            return info
        most = min(info.max_message_size, self._peer.largest(entity))
        return attrs.evolve(info, max_message_size=most)

    def _peer_by(self, client: HttpClient) -> RestPeer:
        return RestPeer(
            ask=client.request,
            tokens=self._tokens,
            meter=self.meter,
            max_message=self._options.max_message_size,
        )


def _sends(
    entity: EntityPath, messages: Sequence[Message], *, is_pairgate: bool
) -> list[SendMessages]:
    """The requests that carry the messages, in their order."""
    if is_pairgate:
        form, most = Form.AMQP, _MAX_AMQP_REQUEST
    elif len(messages) > 1 and loses_nothing(messages):
        form, most = Form.JSON, _MAX_JSON_REQUEST
    else:
        form, most = Form.SINGLE, 0
    return [
        SendMessages(entity=entity, messages=tuple(part), form=form)
        for part in _parts(messages, most)
    ]


def _parts(messages: Sequence[Message], most: int) -> list[list[Message]]:
    """Split the messages into parts of up to `most` bytes, each of at least one message."""
    if len(messages) == 1:
        return [list(messages)]
    parts: list[list[Message]] = []
    room = 0
    for message in messages:
        size = _size_of(message)
        if not parts or size > room or len(parts[-1]) == MAX_LIMIT:
            parts.append([])
            room = most
        parts[-1].append(message)
        room -= size
    return parts


def _refuse_too_large(messages: Sequence[Message], most: int) -> None:
    for message in messages:
        size = _size_of(message)
        if size > most:
            raise MessageTooLarge(
                f"message of {size} bytes, at most {most} (max_message_size) expected"
            )


def _size_of(message: Message) -> int:
    try:
        return encoded_size(message)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
