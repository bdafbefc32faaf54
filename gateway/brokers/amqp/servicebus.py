"""
Azure Service Bus, or another Pairgate, over AMQP 1.0, with management over Atom (HTTP).

Azure itself was never tried.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import attrs
import trio

from gateway.brokers.amqp import transactions
from gateway.brokers.amqp.broker import AmqpBroker, opened, tls_of
from gateway.brokers.amqp.cbs import AccessTokenSource, Signer, TokenSource
from gateway.brokers.amqp.management import deliveries_of, manage
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.peer import Dial, NamespaceAccess, NamespaceConnection
from gateway.brokers.amqp.servicebus_receivers import Locks, ServiceBusReceiver, ServiceBusSession
from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.meter import Meter
from gateway.brokers.servicebus.management import RestManagement
from gateway.brokers.servicebus.peer import (
    MAX_ANSWER,
    Authorization,
    BearerTokens,
    EntityTokens,
    RestPeer,
)
from gateway.capabilities import TransactedWork
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import NotSupported, OutcomeUnknown, SessionLockLost
from gateway.domain.identity import Identity
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.net.dialing import FAILURES, dial, failure_of
from gateway.net.http.client import Connect, HttpClient, HttpClientOptions
from gateway.net.server_address import ServerAddress
from gateway.ports import WallClock
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.identity import identity_of, is_pairgate
from gateway.wire.amqp.management.identity import request as identity_request
from gateway.wire.amqp.management.requests import NODE
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.servicebus.connection_string import ConnectionString, parse_connection_string

# Ports of IANA's registry.
_PLAIN_PORT: Final = 5672
_TLS_PORT: Final = 5671
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443
_MAX_NUMBER: Final = 2**63 - 1  # of a signed 64-bit number
_MOST_LOCKS: Final = 10_000  # queues whose lock durations are known


def open_namespace(
    rest: str,
    options: ServiceBusOptions,
    clock: WallClock,
    rng: random.Random,
    access: AccessTokens | None = None,
) -> "ServiceBusBroker":
    """
    Make the adapter for `servicebus:` with a connection string; `rest` is the part after the
    scheme. `access`: the tokens of `options.credential`, if there is one.

    Raises:
        InvalidRequest: the connection string or the key is missing or wrong, or a certificate can't
            be read.
    """
    target = options.target(rest)
    return _broker(target, options, clock, rng, access=access)


def open_socket(
    path: Path, connection_string: str, clock: WallClock, rng: random.Random
) -> "ServiceBusBroker":
    """Make the adapter for another Pairgate, which listens at a Unix socket of this machine."""
    target = parse_connection_string(connection_string)
    connect = partial(trio.open_unix_socket, str(path))

    async def dial(place: ServerAddress) -> trio.abc.Stream:
        try:
            return await connect()
        except FAILURES as error:
            raise failure_of(path, error) from error

    return _broker(target, ServiceBusOptions(), clock, rng, Ways(dial=dial, connect=connect))


@attrs.frozen(kw_only=True)
class Ways:
    """The functions that open connections, for AMQP and for HTTP; None: TCP."""

    dial: Dial = dial
    connect: Connect | None = None


def _broker(
    target: ConnectionString,
    options: ServiceBusOptions,
    clock: WallClock,
    rng: random.Random,
    ways: Ways = Ways(),
    access: AccessTokens | None = None,
) -> "ServiceBusBroker":
    secure = not target.plain
    port = target.port or (_TLS_PORT if secure else _PLAIN_PORT)
    place = ServerAddress(host=target.host, port=port, tls=tls_of(options, secure=secure))
    source: TokenSource
    if access is not None:
        source = AccessTokenSource(host=target.authority, tokens=access)
    else:
        source = Signer(
            host=target.authority,
            key_name=target.key_name,
            key=target.key,
            lifetime=options.token_lifetime,
            clock=clock,
        )
    web_port = options.management_port or target.port or (_HTTPS_PORT if secure else _HTTP_PORT)
    client = HttpClient(
        target.host,
        web_port,
        tls=place.tls,
        options=HttpClientOptions(connect_timeout=options.connect_timeout, max_body=MAX_ANSWER),
        connect=ways.connect,
    )
    tokens: Authorization
    if access is not None:
        tokens = BearerTokens(tokens=access)
    else:
        tokens = _web_tokens(attrs.evolve(target, port=web_port), options, clock)
    meter = Meter()
    return ServiceBusBroker(
        access=NamespaceAccess(
            places=[place],
            credentials=Credentials(mechanism="ANONYMOUS"),
            tokens=source,
            dial=ways.dial,
        ),
        access_tokens=access,
        signers=[each for each in (source, tokens) if isinstance(each, Signer | EntityTokens)],
        options=options,
        clock=clock,
        rng=rng,
        web=client,
        peer=RestPeer(ask=client.request, tokens=tokens, meter=meter),
        meter=meter,
    )


def _web_tokens(
    target: ConnectionString, options: ServiceBusOptions, clock: WallClock
) -> EntityTokens:
    return EntityTokens(
        origin=f"{'http' if target.plain else 'https'}://{target.authority}",
        key_name=target.key_name,
        key=target.key,
        lifetime=options.token_lifetime,
        clock=clock,
    )


@attrs.define(eq=False, kw_only=True)
class ServiceBusBroker(RestManagement, AmqpBroker):
    """`ports.Broker`, with sessions, schedules, topics, transactions, and other capabilities."""

    _access_tokens: AccessTokens | None
    _signers: Sequence[Signer | EntityTokens]  # none with access tokens
    _web: HttpClient
    _peer: RestPeer
    _locks: Locks = attrs.field(factory=lambda: Bounded(_MOST_LOCKS), init=False)
    _transacting: dict[NamespaceConnection, transactions.TransactionLinks] = attrs.field(
        factory=dict, init=False
    )
    # The open sessions, by the queue's key and the session's name.
    _sessions: dict[tuple[str, str], ServiceBusSession] = attrs.field(factory=dict, init=False)
    _opened: AsyncExitStack = attrs.field(factory=AsyncExitStack, init=False)

    def replace_key(self, name: str, key: str) -> None:
        """As `ReplacesKey.replace_key`. With access tokens, there is no key."""
        for signer in self._signers:
            signer.replace_key(name, key)

    async def __aenter__(self) -> Self:
        if self._access_tokens is not None:
            await self._opened.enter_async_context(self._access_tokens)
        self._opened.push_async_callback(self._web.aclose)
        return await super().__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)  # noqa: ASYNC102 it is shielded inside, with a limit
        finally:
            await self._opened.aclose()

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[ServiceBusReceiver]:
        """As `Broker.open_receiver`. The link is attached on entering."""
        receiver = ServiceBusReceiver(self._dependencies, entity, mode, locks=self._locks)
        async with opened(receiver) as receiver:
            yield receiver

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """
        As `Broker.list_queues`. Deliveries from the listed queues have their `received` date from
        then on.
        """
        page = await super().list_queues(prefix, skip=skip, top=top)
        self._locks.update((each.path.key, each.properties.lock_duration) for each in page)
        return page

    @asynccontextmanager
    async def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AsyncIterator[ServiceBusSession]:
        """As `Sessions.open_session`."""
        session = ServiceBusSession(
            self._dependencies, entity, mode, locks=self._locks, asked=session_id
        )
        async with opened(session) as receiver:
            place = (entity.key, receiver.session_id)
            self._sessions[place] = receiver
            try:
                yield receiver
            finally:
                if self._sessions.get(place) is receiver:
                    del self._sessions[place]

    async def verify(self, entity: EntityPath, *, is_backlog: bool) -> Sequence[str]:
        """As `Verifies.verify`: `inspect` reports everything already."""
        return ()

    async def identity(self) -> Identity:
        """
        As `Identifies.identity`.

        Raises:
            NotSupported: the namespace isn't a Pairgate.
        """
        peer = await self._sending.acquire(trio.current_time())
        if not is_pairgate(peer.properties):
            raise NotSupported("Service Bus doesn't tell the identity of the namespace")
        return identity_of(await peer.ask(NODE, identity_request()))

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`."""
        since = ops.EVER if updated_since is None else updated_since
        question = ops.ListSessions(last_updated=since, skip=skip, top=top)
        answer: ops.SessionNames = await self._manage_node(entity, question, ops.SessionNames)
        return list(answer.names[:top])

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`, in as many requests as the namespace needs."""
        peeked: list[Delivery] = []
        while len(peeked) < limit and from_sequence <= _MAX_NUMBER:
            question = ops.Peek(from_sequence=from_sequence, limit=limit - len(peeked))
            answer = await self._manage_node(entity, question, ops.Messages)
            found = deliveries_of(answer, peeked=True)
            page = [each for each in found if each.sequence_number >= from_sequence]
            if not page:
                break
            peeked += page
            from_sequence = page[-1].sequence_number + 1
        return peeked[:limit]

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`."""
        question = ops.Schedule(messages=tuple(messages))
        answer: ops.Scheduled = await self._manage_node(entity, question, ops.Scheduled)
        if len(answer.sequence_numbers) != len(messages):
            raise OutcomeUnknown("the answer hasn't one sequence number for each message")
        return list(answer.sequence_numbers)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        question = ops.CancelScheduled(sequence_numbers=tuple(sequence_numbers))
        await self._manage_node(entity, question, ops.Done)

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`: attaches a link to the coordinator."""
        await self._links_on(await self._sending.acquire(trio.current_time())).coordinator()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`, as a transaction of the namespace."""
        held = transactions.held_in(work)
        peer = transactions.peer_of(held) or await self._sending.acquire(trio.current_time())
        user = self._access.credentials.user
        await transactions.commit(self._links_on(peer), work, held, user, self.meter)

    def _links_on(self, peer: NamespaceConnection) -> transactions.TransactionLinks:
        for each in [each for each in self._transacting if each.over]:
            del self._transacting[each]
        links = self._transacting.get(peer)
        if links is None:
            links = transactions.TransactionLinks(peer, self._options)
            self._transacting[peer] = links
        return links

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`; a session must be open at this broker."""
        question = ops.DeleteMessages(limit=limit, before=before, session_id=session_id)
        answer: ops.Deleted
        if session_id is None:
            answer = await self._manage_node(entity, question, ops.Deleted)
        else:
            session = self._sessions.get((entity.key, session_id))
            if session is None:
                raise SessionLockLost(f"{entity}: session {session_id!r} isn't open here")
            answer = await session.delete_messages(question)
        if answer.count > limit:
            raise OutcomeUnknown("the namespace says that it deleted more than it was asked for")
        return answer.count

    async def _manage_node(self, entity: EntityPath, question: ops.Operation, kind: Any) -> Any:
        peer = await self._sending.acquire(trio.current_time())
        with peer.judged():
            return await manage(peer, self.meter, entity, question, kind)
