"""The REST front end of a simulated gateway, and a client of it."""

import random
from collections.abc import Sequence
from uuid import UUID

import attrs
import trio

from gateway.brokers.servicebus.peer import EntityTokens, RestPeer
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.options import RestOptions
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend, is_long_poll
from gateway.net.http.client import HttpClient
from gateway.net.http.server import HttpServer
from gateway.ports import Broker, WallClock
from gateway.wire.servicebus.operations import Form, SendAccepted, SendMessages
from tests.simulation.access import HOST, POLICY, TOKENS_LIFE
from tests.simulation.network import Network, Serve


def serving(
    broker: Broker, leases: Leases, *, clock: WallClock, rng: random.Random, send_timeout: float
) -> Serve:
    """Return the function that serves a connection."""
    frontend = ServiceBusRestFrontend(
        broker=broker,
        leases=leases,
        authorizer=Authorizer([POLICY], wall_clock=clock),
        wall_clock=clock,
        new_id=lambda: UUID(int=rng.getrandbits(128)),
        options=RestOptions(send_timeout=send_timeout),
    )
    server = HttpServer(
        handler=frontend.handle,
        error_body=frontend.refuse,
        wall_clock=clock,
        cancels_when_gone=is_long_poll,
    )
    return server.serve_connection


@attrs.define(eq=False)
class RestClient:
    """Sends as another Pairgate would. It outlives the gateways."""

    _http: HttpClient
    _peer: RestPeer

    @classmethod
    def over(cls, network: Network, clock: WallClock) -> "RestClient":
        http = HttpClient(HOST, 80, connect=network.connect)
        tokens = EntityTokens(
            origin=f"http://{HOST}:80",
            key_name=POLICY.name,
            key=POLICY.keys[0],
            lifetime=TOKENS_LIFE,
            clock=clock,
        )
        return cls(http, RestPeer(ask=http.request, tokens=tokens))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Client.run`."""
        async with self._http:
            task_status.started()
            await trio.sleep_forever()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy | None:
        """As `Client.send`."""
        sent = SendMessages(entity=entity, messages=tuple(messages), form=Form.AMQP)
        answer = await self._peer.run(sent)
        assert isinstance(answer, SendAccepted), answer
        return answer.accepted_by
