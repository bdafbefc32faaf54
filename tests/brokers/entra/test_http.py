"""Access tokens in HTTP requests, to Service Bus REST and to Storage."""

import random
from collections.abc import Sequence
from typing import Any, NoReturn

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.entra.options import (
    SERVICE_BUS_SCOPE,
    STORAGE_SCOPE,
    CredentialKind,
    CredentialOptions,
)
from gateway.brokers.entra.requesting import TokenRequests
from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.servicebus.broker import ServiceBusRestOptions
from gateway.brokers.servicebus.peer import BearerTokens, RestPeer
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue.peer import StorageAccountPeer
from gateway.config.kinds import BrokerDependencies, build
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized, NoToken
from gateway.domain.message import Message
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.errors import PAIRGATE
from gateway.wire.servicebus.operations import Form, SendMessages
from gateway.wire.storage_queue.connection_string import parse_storage_connection
from gateway.wire.storage_queue.operations import DeleteQueue
from tests.brokers.entra.provider import Provider, opened
from tests.harness.clocks import VirtualClock

IDENTITY = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
ACCOUNT = parse_storage_connection("AccountName=contoso")
SEND = SendMessages(entity=EntityPath("orders"), messages=(Message(body=b"x"),), form=Form.SINGLE)
GONE = DeleteQueue(queue="orders")


@attrs.define(eq=False)
class Server:
    """Gives prepared answers, and keeps the requests."""

    statuses: Sequence[int]
    asked: list[Request] = attrs.field(factory=list)

    async def ask(self, request: Request, max_body: int | None = None) -> Response:
        await trio.lowlevel.checkpoint()
        status = self.statuses[min(len(self.asked), len(self.statuses) - 1)]
        self.asked.append(request)
        code = ("x-ms-error-code", "InvalidAuthenticationInfo")  # of the service, as each refusal
        return Response(status=status, headers=Headers.of([PAIRGATE, code]))

    @property
    def authorizations(self) -> list[str | None]:
        return [each.headers.get("authorization") for each in self.asked]


def rest(server: Server, tokens: AccessTokens) -> RestPeer:
    return RestPeer(ask=server.ask, tokens=BearerTokens(tokens=tokens))


def storage(server: Server, tokens: AccessTokens) -> StorageAccountPeer:
    return StorageAccountPeer(
        ask=server.ask, connection=ACCOUNT, clock=VirtualClock(), access=tokens
    )


async def test_a_request_over_rest_has_the_token(autojump_clock: MockClock) -> None:
    server, provider = Server([201]), Provider()
    async with opened(provider) as tokens:
        peer = rest(server, tokens)
        await peer.run(SEND)
        await trio.sleep(3000)
        await peer.run(SEND)

    assert server.authorizations == ["Bearer 1", "Bearer 2"]


async def test_a_request_to_storage_has_the_token_and_no_signature(
    autojump_clock: MockClock,
) -> None:
    server, provider = Server([204]), Provider()
    async with opened(provider) as tokens:
        peer = storage(server, tokens)
        await peer.run(GONE)
        await trio.sleep(3000)
        await peer.run(GONE)

    assert server.authorizations == ["Bearer 1", "Bearer 2"]
    assert [each.target for each in server.asked] == ["/orders"] * 2
    assert server.asked[0].headers.get("x-ms-version") >= "2017-11-09"  # the first with tokens


async def test_a_401_to_a_token_leads_to_another(autojump_clock: MockClock) -> None:
    for make, operation, status in ((rest, SEND, 201), (storage, GONE, 204)):
        server, provider = Server([401, status]), Provider()
        async with opened(provider) as tokens:
            peer = make(server, tokens)
            await trio.sleep(90)
            with pytest.raises(NotAuthorized):
                await peer.run(operation)  # type: ignore[arg-type]
            await trio.sleep(1)
            await peer.run(operation)  # type: ignore[arg-type]

        assert server.authorizations == ["Bearer 1", "Bearer 2"]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("servicebus:Endpoint=sb://a/", ServiceBusOptions(credential=IDENTITY)),
        ("servicebus+https://a", ServiceBusRestOptions(credential=IDENTITY)),
        ("storage-queue:AccountName=contoso", StorageQueueNamespaceOptions(credential=IDENTITY)),
    ],
)
async def test_each_kind_requests_a_token_when_it_is_opened_and_ends_with_its_block(
    url: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = list[str]()

    async def request(self: TokenRequests) -> NoReturn:
        requests.append(self._scope)
        await trio.sleep_forever()

    monkeypatch.setattr(TokenRequests, "request", request)
    dependencies = BrokerDependencies(
        clock=VirtualClock(), rng=random.Random(0), observer=Provider()
    )
    async with build(url, "one", dependencies, options):
        await wait_all_tasks_blocked()
    with pytest.raises(KeyError):
        async with build(url, "one", dependencies, options):
            raise KeyError("x")
    with trio.CancelScope() as scope:
        async with build(url, "one", dependencies, options):
            scope.cancel()
            await trio.sleep_forever()

    wanted = STORAGE_SCOPE if url.startswith("storage") else SERVICE_BUS_SCOPE
    assert set(requests) == {wanted}


async def test_without_a_token_nothing_is_sent(autojump_clock: MockClock) -> None:
    provider = Provider(failure=NoToken("login.example: connection refused"))
    for make, operation in ((rest, SEND), (storage, GONE)):
        server = Server([201])
        async with opened(provider) as tokens:
            with pytest.raises(NoToken, match="connection refused"):
                await make(server, tokens).run(operation)  # type: ignore[arg-type]

        assert server.asked == []
