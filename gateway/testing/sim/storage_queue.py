"""The Storage Queue front end of a simulated gateway, and its client's adapter."""

import random
from collections.abc import Callable
from uuid import UUID

import attrs

from gateway.brokers.storage_queue import StorageQueueBroker
from gateway.brokers.storage_queue_options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue_peer import StorageAccountPeer
from gateway.domain.message import Leg
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.storage_auth import Accounts
from gateway.frontends.storage_operations import StorageOperations
from gateway.frontends.storage_queue import StorageQueueFrontend, StorageQueueOptions
from gateway.net.http_client import HttpClient
from gateway.net.http_server import HttpServer
from gateway.ports import Broker, WallClock
from gateway.testing.sim.access import ACCOUNT, HOST
from gateway.testing.sim.network import Network, Serve
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_connection import StorageConnection

NotePut = Callable[[str, bytes], None]
"""Hears of each put: the id that the gateway gives it, and the text."""


@attrs.define(eq=False, kw_only=True)
class WatchedOperations(StorageOperations):
    """The same operations; somebody hears which message a put becomes."""

    note_put: NotePut

    async def run(
        self, operation: storage.Operation, message_id: str
    ) -> tuple[storage.Answer, Leg | None]:
        """As `StorageOperations.run`."""
        if isinstance(operation, storage.PutMessage):
            self.note_put(message_id, operation.body)
        return await super().run(operation, message_id)


def serving(
    broker: Broker,
    leases: Leases,
    *,
    clock: WallClock,
    rng: random.Random,
    send_timeout: float,
    note_put: NotePut,
) -> Serve:
    """What serves a connection. A put is tried again for no longer than a send may take."""
    frontend = StorageQueueFrontend(
        operations=WatchedOperations(
            broker=broker,
            visibility=LeasedVisibility(broker, leases, clock),
            sends=True,
            wall_clock=clock,
            note_put=note_put,
        ),
        accounts=Accounts([ACCOUNT], wall_clock=clock, loopback=True),
        wall_clock=clock,
        new_id=lambda: UUID(int=rng.getrandbits(128)),
        options=StorageQueueOptions(hold=send_timeout),
    )
    server = HttpServer(handler=frontend.handle, error_body=frontend.refuse, wall_clock=clock)
    return server.serve_connection


def adapter(network: Network, clock: WallClock, rng: random.Random) -> StorageQueueBroker:
    """A client's, which speaks as to an account of Azure Storage."""
    http = HttpClient(HOST, 80, connect=network.connect)
    connection = StorageConnection(
        account=ACCOUNT.name,
        host=HOST,
        port=80,
        secure=False,
        path=f"/{ACCOUNT.name}",
        key=ACCOUNT.keys[0],
    )
    peer = StorageAccountPeer(ask=http.request, connection=connection, clock=clock)
    return StorageQueueBroker(
        clients=[http],
        accounts=[peer],
        options=StorageQueueNamespaceOptions(),
        clock=clock,
        rng=rng,
    )
