"""The other side of a Service Bus REST namespace: signed requests to it, and what it is."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from gateway.brokers.meter import Meter
from gateway.domain.billing import Operation as Billed
from gateway.domain.billing import is_billed
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.ports import WallClock
from gateway.wire.http import Headers, Request, Response
from gateway.wire.sas import sign_sas
from gateway.wire.servicebus_answers import parse_response
from gateway.wire.servicebus_errors import PAIRGATE, parse_error
from gateway.wire.servicebus_operations import (
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
from gateway.wire.servicebus_rest import build_request

_RENEWED_AT: Final = 0.8  # of a token's life
_MAX_TOKENS: Final = 1000
_NOT_IMPLEMENTED: Final = 501
_BILLED: Final[Mapping[type, Billed]] = {
    ReceiveMessages: Billed.EMPTY,
    SettleMessage: Billed.SETTLE,
    RenewLock: Billed.RENEW,
    PeekMessages: Billed.PEEK,
    ProbeEntity: Billed.INSPECT,
}

Ask = Callable[[Request], Awaitable[Response]]
"""Sends a request; raises Unavailable, Untrusted, OutcomeUnknown or InvalidRequest."""


@attrs.define(eq=False, kw_only=True)
class Tokens:
    """
    Shared access signatures, one for each entity, so that keys of an entity's own serve too.

    A token is kept for 80 % of its life. A wall clock that was set back makes a new one.
    """

    _origin: str
    _key_name: str
    _key: str = attrs.field(repr=False)
    _lifetime: float
    _clock: WallClock
    _kept: dict[str, tuple[float, str]] = attrs.field(factory=dict, repr=False)

    def of(self, path: str) -> str:
        """The value of an Authorization header for what is at or under that path."""
        now = self._clock().timestamp()
        made, token = self._kept.get(path, (0.0, ""))
        if not made <= now < made + _RENEWED_AT * self._lifetime:
            expires = int(now + self._lifetime)
            token = sign_sas(f"{self._origin}/{path}", self._key_name, self._key, expires)
            if len(self._kept) >= _MAX_TOKENS:
                self._kept.clear()
            self._kept[path] = (now, token)
        return token

    def forget(self, path: str) -> None:
        self._kept.pop(path, None)


@attrs.define(eq=False, kw_only=True)
class RestPeer:
    """
    Sends operations and reads what they led to.

    Whether a Pairgate answers is seen in each answer, a 401 too, and asked for where it isn't
    known: at the start, and again after trouble, since something else may answer by then.
    """

    _ask: Ask
    _tokens: Tokens
    meter: Meter = attrs.field(factory=Meter)
    _is_pairgate: bool | None = None

    @property
    def is_known_pairgate(self) -> bool:
        """Whether a Pairgate gave the last answer."""
        return self._is_pairgate is True

    async def run(self, operation: Operation) -> Answer:
        """
        Return what the namespace answered.

        Raises:
            BrokerError: it refused, or nobody knows.
        """
        request = build_request(operation)
        response = await self._exchange(operation.entity.parent.name, request)
        answer: Answer | None = None
        try:
            answer = parse_response(operation, response)
            return answer
        finally:
            if is_billed(response.status):
                self._count(operation, answer, len(request.body), len(response.body))

    async def manage(self, path: str, request: Request) -> Response:
        """
        Return the answer to a request that asks about entities or changes one. As `run`.

        Raises:
            BrokerError: there is no answer.
        """
        response = await self._exchange(path, request)
        if is_billed(response.status):
            self.meter.request(Billed.INSPECT if request.method == "GET" else Billed.MANAGE)
        return response

    async def _exchange(self, path: str, request: Request) -> Response:
        """Signed for `path`. A 401 is tried again with a new token."""
        token = self._tokens.of(path)
        response = await self._signed(request, token)
        if response.status == 401:
            self._tokens.forget(path)
            if (renewed := self._tokens.of(path)) != token:
                response = await self._signed(request, renewed)
        return response

    async def is_pairgate(self, entity: EntityPath) -> bool:
        """
        Tell whether a Pairgate answers; ask with a probe of that entity if that isn't known.

        Raises:
            BrokerError: no answer says so. Nothing was sent.
        """
        if self._is_pairgate is not None:
            return self._is_pairgate  # noqa: ASYNC910 what is asked next waits
        return is_from_pairgate(await self.probe(entity))

    async def probe(self, entity: EntityPath) -> Response:
        """
        Return the answer to a probe, which only a Pairgate understands.

        Raises:
            BrokerError: there is none, or it says nothing of who gave it. Nothing was sent.
        """
        operation = ProbeEntity(entity=entity)
        try:
            response = await self._exchange(entity.parent.name, build_request(operation))
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error
        if is_billed(response.status):
            self.meter.request(Billed.INSPECT)
        if _answered_by_pairgate(response) is None:
            said = parse_error(response)
            raise Unavailable(str(said)) if isinstance(said, OutcomeUnknown) else said
        return response

    def _count(self, operation: Operation, answer: Answer | None, asked: int, told: int) -> None:
        """`asked` and `told` are the bytes of the request and of the answer."""
        match operation, answer:
            case SendMessages(), None:
                self.meter.request(Billed.SEND)
            case SendMessages(messages=messages), _:
                self.meter.carried(Billed.SEND, len(messages), asked)
            case ReceiveMessages(), Delivered(deliveries=found) if found:
                self.meter.carried(Billed.RECEIVE, len(found), told)
            case _:
                self.meter.request(_BILLED[type(operation)])

    async def _signed(self, request: Request, token: str) -> Response:
        signed = Request(
            method=request.method,
            target=request.target,
            headers=Headers((*request.headers.items, ("Authorization", token))),
            body=request.body,
        )
        try:
            response = await self._ask(signed)
        except (Unavailable, OutcomeUnknown):
            self._is_pairgate = None
            raise
        self._is_pairgate = _answered_by_pairgate(response)
        return response


def is_from_pairgate(response: Response) -> bool:
    return response.headers.get(PAIRGATE[0]) is not None


def _answered_by_pairgate(response: Response) -> bool | None:
    """Whether a Pairgate answered; None where it was perhaps something in between."""
    if is_from_pairgate(response):
        return True
    if response.status < 500 or response.status == _NOT_IMPLEMENTED:
        return False
    return None
