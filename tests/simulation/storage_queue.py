"""The Storage Queue front end of a simulated gateway, and its client's adapter."""

import random
from collections.abc import Callable
from uuid import UUID

import attrs

from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue.peer import StorageAccountPeer
from gateway.domain.message import AcceptedBy
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.frontends.options import StorageQueueOptions
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.net.http.client import HttpClient
from gateway.net.http.server import HttpServer
from gateway.ports import Broker, WallClock
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.connection_string import StorageConnection
from tests.simulation.access import ACCOUNT, HOST
from tests.simulation.network import Network, Serve

NotePut = Callable[[str, bytes], None]
"""Hears of each put: the id that the gateway gives it, and the text."""


def hear_nothing(message_id: str, text: bytes) -> None:
    """Do nothing with the news of a put."""


@attrs.define(eq=False, kw_only=True)
class WatchedOperations(StorageOperations):
    """The same operations; somebody hears which message a put becomes."""

    note_put: NotePut

    async def run(
        self, operation: storage.Operation, message_id: str
    ) -> tuple[storage.Answer, AcceptedBy | None]:
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
    visibility: LeasedVisibility,
) -> Serve:
    """
    Return the function that serves a connection. A put is retried for at most `send_timeout`
    seconds.
    """
    accounts = Accounts([ACCOUNT], wall_clock=clock)
    frontend = StorageQueueFrontend(
        operations=WatchedOperations(
            broker=broker,
            visibility=visibility,
            sends=True,
            wall_clock=clock,
            marks=accounts.marks,
            note_put=note_put,
        ),
        accounts=accounts,
        wall_clock=clock,
        new_id=lambda: UUID(int=rng.getrandbits(128)),
        options=StorageQueueOptions(retry_for=send_timeout),
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
        client=http,
        account=peer,
        options=StorageQueueNamespaceOptions(),
        clock=clock,
        rng=rng,
    )
