"""Parts of the tests of frontends that other tests need, too."""

import random
from itertools import count
from uuid import UUID

import attrs

from gateway.domain.access import AccessPolicy, Right
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.auth import Authorizer
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from tests.extensions.cluster.gateways import Node
from tests.frontends import rest_client, storage_client
from tests.frontends.rest_client import KEY, POLICIES, frontend_of, wall_clock
from tests.harness.clocks import VirtualClock

STRANGER = AccessPolicy(
    name="stranger", keys=(KEY,), rights=frozenset({Right.LISTEN}), entities=("others",)
)


def rest_of(node: Node, key_name: str = "RootManageSharedAccessKey") -> rest_client.Client:
    frontend = attrs.evolve(
        frontend_of(node.network.broker, node.leases),
        authorizer=Authorizer([*POLICIES, STRANGER], wall_clock=wall_clock),
    )
    return rest_client.Client(frontend, node.network.broker, key_name)


def storage_of(node: Node) -> storage_client.Client:
    clock = VirtualClock()
    accounts = Accounts(
        [StorageAccount(name=storage_client.ACCOUNT, keys=(storage_client.KEY,))],
        wall_clock=clock,
    )
    tokens = node.cluster.tokens
    frontend = StorageQueueFrontend(
        operations=StorageOperations(
            broker=node.network.broker,
            visibility=node.visibility,
            sends=True,
            wall_clock=clock,
            marks=lambda text: [*tokens.marks(text), *accounts.marks(text)],
        ),
        accounts=accounts,
        wall_clock=clock,
        new_id=(UUID(int=random.Random(n).getrandbits(128), version=4) for n in count()).__next__,
    )
    return storage_client.Client(frontend, node.network.broker, clock)
