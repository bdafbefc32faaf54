"""Sends signed requests to a Service Bus REST namespace, and finds out whether it is a Pairgate."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import attrs

from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.meter import Meter
from gateway.domain import backlog
from gateway.domain.billing import Operation as Billed
from gateway.domain.billing import is_billed
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported, OutcomeUnknown, Unavailable
from gateway.domain.identity import Identity
from gateway.net.http.client import Ask
from gateway.ports import WallClock
from gateway.wire.http.hardened_xml import MAX_BYTES
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.answers import parse_identity_response, parse_response
from gateway.wire.servicebus.errors import PAIRGATE, is_of_the_way, parse_error
from gateway.wire.servicebus.operations import (
    Answer,
    Delivered,
    Operation,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    RenewLock,
    SendMessages,
    SettleMessage,
)
from gateway.wire.servicebus.rest import (
    IDENTITY_PATH,
    build_identity_request,
    build_options_request,
    build_request,
)
from gateway.wire.servicebus.sas import sign_sas

_RENEWED_AT: Final = 0.8  # share of a token's lifetime
_MAX_TOKENS: Final = 1000  # entities; with more, all are signed again
_BEARER: Final = "Bearer "
# The request reached a server that knows no such method.
_ONLY_OF_A_SERVER: Final = frozenset({400, 405, 501})
_BILLED: Final[Mapping[type, Billed]] = {
    ReceiveMessages: Billed.EMPTY,
    SettleMessage: Billed.SETTLE,
    RenewLock: Billed.RENEW,
    PeekMessages: Billed.PEEK,
    ProbeEntity: Billed.INSPECT,
}

MAX_ANSWER: Final = MAX_BYTES
"""Bytes of an answer without deliveries. The largest is a page of entities, in XML."""

MAX_MESSAGE: Final = 16 * 1024 * 1024
"""
Bytes of a message, by default. A Pairgate takes 1 MiB, as Service Bus does over HTTP, unless its
limits are raised; a smaller number here would then leave messages in a backlog.
"""

MAX_DELIVERIES: Final = 128 * 1024 * 1024
"""Bytes of an answer with several deliveries, however large each may be."""

_AROUND: Final = 16 * 1024  # bytes around a message: its metadata


class Authorization(Protocol):
    """Makes the values of the Authorization header."""

    async def of(self, path: str) -> str:
        """
        Return the value for requests at or under that path.

        Raises:
            CredentialRefused, NoToken: there is no token.
        """
        ...

    def forget(self, path: str, value: str) -> None:
        """Note that the namespace has refused that value."""


@attrs.frozen(kw_only=True)
class BearerTokens:
    """The access token of a credential, for each path the same."""

    tokens: AccessTokens

    async def of(self, path: str) -> str:
        """As `Authorization.of`."""
        return f"{_BEARER}{(await self.tokens.get()).text}"

    def forget(self, path: str, value: str) -> None:
        """As `Authorization.forget`."""
        self.tokens.refused(value.removeprefix(_BEARER))


@attrs.define(eq=False, kw_only=True)
class EntityTokens:
    """
    Shared access signatures, one for each entity, so that the keys of single entities work, too.

    A token is kept for 80 % of its lifetime. If the wall clock is set back, a new token is made.
    """

    _origin: str
    _key_name: str
    _key: str = attrs.field(repr=False)
    _lifetime: float
    _clock: WallClock
    _kept: dict[str, tuple[float, str]] = attrs.field(factory=dict, repr=False)

    async def of(self, path: str) -> str:
        """As `Authorization.of`; never fails, and doesn't wait."""
        now = self._clock().timestamp()
        made, token = self._kept.get(path, (0.0, ""))
        if not made <= now < made + _RENEWED_AT * self._lifetime:
            expires = int(now + self._lifetime)
            token = sign_sas(f"{self._origin}/{path}", self._key_name, self._key, expires)
            if len(self._kept) >= _MAX_TOKENS:
                self._kept.clear()
            self._kept[path] = (now, token)
        return token

    def forget(self, path: str, value: str) -> None:
        """As `Authorization.forget`."""
        self._kept.pop(path, None)

    def replace_key(self, name: str, key: str) -> None:
        """As `ReplacesKey.replace_key`."""
        self._key_name, self._key = name, key
        self._kept.clear()


@attrs.define(eq=False, kw_only=True)
class RestPeer:
    """
    Sends operations and reads their results.

    Each answer shows whether a Pairgate gave it, a 401 included; only a 5xx, or a refusal that the
    service didn't write, may be an intermediary's. Before the first answer, and after a failure, a
    request finds out, since another server may answer then.
    """

    _ask: Ask
    _tokens: Authorization
    meter: Meter = attrs.field(factory=Meter)
    max_message: int = MAX_MESSAGE  # as `largest` has it
    _is_pairgate: bool | None = None

    @property
    def is_known_pairgate(self) -> bool:
        """True if a Pairgate gave the last answer."""
        return self._is_pairgate is True

    def largest(self, entity: EntityPath) -> int:
        """The bytes, encoded, of the largest message that is sent to an entity, or received."""
        return backlog.largest(entity, self.max_message)

    async def run(self, operation: Operation) -> Answer:
        """
        Return the namespace's answer.

        Raises:
            BrokerError: the namespace refused, or the outcome is unknown.
        """
        request = build_request(operation)
        most = self._max_body(operation)
        response = await self._exchange(operation.entity.parent.name, request, most)
        answer: Answer | None = None
        try:
            answer = parse_response(operation, response)
            return answer
        finally:
            if is_billed(response.status):
                self._count(operation, answer, len(request.body), len(response.body))

    async def manage(
        self, path: str, request: Request, forwards: Iterable[tuple[str, EntityPath]] = ()
    ) -> Response:
        """
        Return the answer to a management request, whatever its status. `forwards` are the entities
        that messages are to be forwarded to, each with the header for its token.

        Raises:
            BrokerError: there is no answer.
        """
        tokens = [(name, await self._tokens.of(target.name)) for name, target in forwards]
        if tokens:
            request = Request(
                method=request.method,
                target=request.target,
                headers=Headers((*request.headers.items, *tokens)),
                body=request.body,
            )
        response = await self._exchange(path, request)
        if is_billed(response.status):
            self.meter.request(Billed.INSPECT if request.method == "GET" else Billed.MANAGE)
        return response

    def _max_body(self, operation: Operation) -> int | None:
        """The bytes of the largest answer; None: it has no deliveries, the client's limit holds."""
        match operation:
            case ReceiveMessages(most=count) | PeekMessages(limit=count):
                each = self.largest(operation.entity) + _AROUND
                return min(count * each, max(each, MAX_DELIVERIES))
        return None

    async def _exchange(self, path: str, request: Request, max_body: int | None = None) -> Response:
        """Send a request signed for `path`. After a 401 it is tried again with a new token."""
        token = await self._tokens.of(path)
        response = await self._signed(request, token, max_body)
        if response.status == 401:
            self._tokens.forget(path, token)
            if (renewed := await self._tokens.of(path)) != token:
                response = await self._signed(request, renewed, max_body)
        return response

    async def is_pairgate(self, entity: EntityPath) -> bool:
        """
        Return True if the namespace is a Pairgate. If unknown, request the options of the entity,
        which a gateway answers by itself, even if its primary hangs.

        Raises:
            BrokerError: the answers don't show it. Nothing was sent.
        """
        if self._is_pairgate is not None:
            return self._is_pairgate
        return is_from_pairgate(await self._question(entity, build_options_request(entity)))

    async def probe(self, entity: EntityPath) -> Response:
        """
        Return the answer to a probe, which only a Pairgate understands.

        Raises:
            BrokerError: there is no answer, or it doesn't show whether a Pairgate gave it. Nothing
                was sent.
        """
        return await self._question(entity, build_request(ProbeEntity(entity=entity)))

    async def _question(self, entity: EntityPath, request: Request) -> Response:
        try:
            response = await self._exchange(entity.parent.name, request)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error
        if is_billed(response.status):
            self.meter.request(Billed.INSPECT)
        if _answered_by_pairgate(response) is None:
            said = parse_error(response)
            raise Unavailable(str(said)) if isinstance(said, OutcomeUnknown) else said
        return response

    async def identity(self) -> Identity:
        """
        Return the identity that the namespace reports.

        Raises:
            NotSupported: the namespace isn't a Pairgate, and others don't report it.
            BrokerError: there is no answer, or a refusal.
        """
        try:
            response = await self._exchange(IDENTITY_PATH, build_identity_request())
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error
        match _answered_by_pairgate(response):
            case True:
                return parse_identity_response(response)
            case False:
                raise NotSupported("Service Bus REST doesn't tell the identity of the namespace")
        if response.status < 500:  # Service Bus has no such path, whatever it says of that
            raise NotSupported(f"HTTP status {response.status} instead of an identity")
        raise Unavailable(f"HTTP status {response.status} from a server that isn't Pairgate")

    def _count(self, operation: Operation, answer: Answer | None, asked: int, told: int) -> None:
        """`asked` and `told` are the sizes of the request and of the answer, in bytes."""
        match operation, answer:
            case SendMessages(), None:
                self.meter.request(Billed.SEND)
            case SendMessages(messages=messages), _:
                self.meter.carried(Billed.SEND, len(messages), asked)
            case ReceiveMessages(), Delivered(deliveries=found) if found:
                self.meter.carried(Billed.RECEIVE, len(found), told)
            case _:
                self.meter.request(_BILLED[type(operation)])

    async def _signed(self, request: Request, token: str, max_body: int | None) -> Response:
        signed = Request(
            method=request.method,
            target=request.target,
            headers=Headers((*request.headers.items, ("Authorization", token))),
            body=request.body,
        )
        try:
            response = await self._ask(signed, max_body)
        except (Unavailable, OutcomeUnknown):
            self._is_pairgate = None
            raise
        self._is_pairgate = _answered_by_pairgate(response)
        return response


def is_from_pairgate(response: Response) -> bool:
    return response.headers.get(PAIRGATE[0]) is not None


def _answered_by_pairgate(response: Response) -> bool | None:
    """
    True if a Pairgate answered, False if another server did; None if the answer may be an
    intermediary's.
    """
    if is_from_pairgate(response):
        return True
    if 200 <= response.status < 300 or response.status in _ONLY_OF_A_SERVER:
        return False
    return None if is_of_the_way(response) or response.status >= 500 else False
