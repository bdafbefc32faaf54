"""A gateway's own REST endpoint, byte by byte: its front end, its HTTP, and a client of both."""

import random
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import attrs
import trio

from gateway.brokers.rest_peer import RestPeer, Tokens
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath
from gateway.domain.message import Leg, Message
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus_rest import RestOptions, ServiceBusRestFrontend, is_long_poll
from gateway.net.http_client import HttpClient
from gateway.net.http_server import HttpServer
from gateway.ports import Broker, WallClock
from gateway.testing.sim.network import Network
from gateway.wire.servicebus_operations import Accepted, Form, SendMessages

POLICY: Final = AccessPolicy(name="sim", keys=("a key for tests",), rights=frozenset(Right))
HOST: Final = "gateway.sim"
TOKENS_LIFE: Final = 3600.0  # seconds


@attrs.define(eq=False, kw_only=True)
class Endpoint:
    """What one life of a gateway has at its port. `run` serves until it is cancelled."""

    broker: Broker
    clock: WallClock
    rng: random.Random
    send_timeout: float
    _home: trio.Nursery | None = attrs.field(default=None, init=False)
    _server: HttpServer = attrs.field(init=False)
    _leases: Leases = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._leases = Leases(self.broker, self.clock)
        frontend = ServiceBusRestFrontend(
            broker=self.broker,
            leases=self._leases,
            authorizer=Authorizer([POLICY], wall_clock=self.clock, loopback=True),
            wall_clock=self.clock,
            new_id=lambda: UUID(int=self.rng.getrandbits(128)),
            options=RestOptions(send_timeout=self.send_timeout),
        )
        self._server = HttpServer(
            handler=frontend.handle,
            error_body=frontend.refuse,
            wall_clock=self.clock,
            cancels_when_gone=is_long_poll,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._home:
            await self._home.start(self._leases.run)
            task_status.started()
            await trio.sleep_forever()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection as long as both live."""
        await trio.lowlevel.checkpoint()
        if self._home is not None:
            self._home.start_soon(self._serve, stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            await self._server.serve_connection(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            # The client has gone; any other error is a bug, and ends the run.
            await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Client:
    """Sends as another Pairgate would. It outlives the gateways."""

    _peer: RestPeer

    @classmethod
    def over(cls, network: Network, clock: WallClock) -> "Client":
        http = HttpClient(HOST, 80, connect=network.connect)
        tokens = Tokens(
            origin=f"http://{HOST}:80",
            key_name=POLICY.name,
            key=POLICY.keys[0],
            lifetime=TOKENS_LIFE,
            clock=clock,
        )
        return cls(RestPeer(ask=http.request, tokens=tokens))

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """As `Broker.send`."""
        sent = SendMessages(entity=entity, messages=tuple(messages), form=Form.AMQP)
        answer = await self._peer.run(sent)
        assert isinstance(answer, Accepted), answer
        return answer.leg
