"""A peer sends signed requests to a Storage account and reads the answers."""

from collections.abc import Mapping
from typing import Final

import attrs

from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.meter import Meter
from gateway.domain.billing import Operation as Billed
from gateway.domain.billing import is_billed
from gateway.domain.errors import OutcomeUnknown
from gateway.net.http.client import Ask
from gateway.ports import WallClock
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import parse_response
from gateway.wire.storage_queue.connection_string import StorageConnection
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.fields import VERSION
from gateway.wire.storage_queue.operations import Answer, Operation
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.signing import signed
from gateway.wire.storage_queue.xml import longest_list

# Newer than every feature that is used here, and older than all servers in use.
_SPOKEN: Final = "2020-12-06"
_UNAUTHORIZED: Final = 401
_BILLED: Final[Mapping[type, Billed]] = {
    storage.PutMessage: Billed.SEND,
    storage.PeekMessages: Billed.PEEK,
    storage.DeleteMessage: Billed.SETTLE,
    storage.UpdateMessage: Billed.RENEW,
    storage.ClearMessages: Billed.SETTLE,
    storage.ListQueues: Billed.INSPECT,
    storage.GetMetadata: Billed.INSPECT,
}


@attrs.frozen(eq=False, kw_only=True)
class StorageAccountPeer:
    """
    Signs requests with the account's key, or sends a shared access signature or an access token.
    """

    ask: Ask
    connection: StorageConnection
    clock: WallClock
    access: AccessTokens | None = None
    meter: Meter = attrs.field(factory=Meter)

    async def run(self, operation: Operation) -> Answer:
        """
        Return the service's answer.

        Raises:
            BrokerError: the service refused, or the outcome is unknown.
        """
        response = await self._answer(build_request(operation), _max_body(operation))
        answer: Answer | None = None
        try:
            answer = _read(operation, response)
            return answer
        finally:
            if is_billed(response.status):
                self._count(operation, answer)

    def _count(self, operation: Operation, answer: Answer | None) -> None:
        """Count a request, which is billed as one operation, whatever its content."""
        if isinstance(operation, storage.GetMessages):
            found = len(answer.items) if isinstance(answer, storage.Messages) else 0
            self.meter.request(Billed.RECEIVE if found else Billed.EMPTY, found)
            return
        billed = _BILLED.get(type(operation), Billed.MANAGE)
        sent = billed is Billed.SEND and answer is not None
        self.meter.request(billed, messages=int(sent))

    async def _answer(self, request: Request, max_body: int | None) -> Response:
        if self.access is None:
            return await self.ask(self._authorized(request), max_body)
        token = (await self.access.get()).text
        response = await self.ask(self._authorized(request, token), max_body)
        if response.status == _UNAUTHORIZED:
            self.access.refused(token)
        return response

    def _authorized(self, request: Request, token: str = "") -> Request:
        target = f"{self.connection.path}{request.target}"
        fields = [("x-ms-date", format_http_date(self.clock())), (VERSION, _SPOKEN)]
        if token:
            fields.append(("Authorization", f"Bearer {token}"))
        headers = Headers((*request.headers.items, *fields))
        if token:
            return attrs.evolve(request, target=target, headers=headers)
        if self.connection.sas:
            joint = "&" if "?" in target else "?"
            target = f"{target}{joint}{self.connection.sas}"
            return attrs.evolve(request, target=target, headers=headers)
        unsigned = attrs.evolve(request, target=target, headers=headers)
        return signed(unsigned, account=self.connection.account, key=self.connection.key)


def _max_body(operation: Operation) -> int | None:
    """The bytes of the largest answer; None: it has no messages, the client's limit holds."""
    match operation:
        case storage.GetMessages(limit=count) | storage.PeekMessages(limit=count):
            return longest_list(count)
    return None


def _read(operation: Operation, response: Response) -> Answer:
    try:
        answer = parse_response(operation, response)
    except StorageRefusal as error:
        # The server understood the request, but the answer has no known meaning.
        raise OutcomeUnknown(f"the answer isn't one of the Queue service: {error}") from error
    match operation, answer:
        case (
            storage.GetMessages(limit=count) | storage.PeekMessages(limit=count),
            storage.Messages(items=items),
        ) if len(items) > count:
            raise OutcomeUnknown(f"{len(items)} messages, where {count} were wanted")
    return answer


@attrs.frozen(eq=False)
class AccountQueue:
    """A queue of an account."""

    peer: StorageAccountPeer
    name: str
