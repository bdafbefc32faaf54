"""
A queue moves from one kind of namespace to another under load, and back, and its gateway is killed
with SIGKILL in each stage. Three pairs, in which each kind is once; `make moves`: every pair.
"""

import os
import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from tests.brokers.conftest import azurites, rabbits
from tests.brokers.rabbitmq.nodes import NEWER, Nodes
from tests.brokers.storage_queue.azurites import Azurites, url_of
from tests.e2e.commands import ADMIN, run
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways, broker_config
from tests.e2e.rest import KEY_NAME, request, send
from tests.extensions.move.load import Load
from tests.extensions.move.ordering import move, until
from tests.harness.azurite import KEY as ACCOUNT_KEY
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER
from tests.harness.secret_files import write_secret

__all__ = ["azurites", "rabbits"]

pytestmark = [pytest.mark.slow, pytest.mark.shared]

KINDS: Final = (
    "embedded",
    "servicebus",
    "servicebus+http",
    "rabbitmq",
    "storage-queue",
    "rabbitmq 4",
)
PAIRS: Final = (
    list(permutations(KINDS, 2))
    if os.environ.get("PAIRGATE_MOVES") == "all"
    else [("embedded", "servicebus"), ("servicebus+http", "rabbitmq"), (KINDS[4], KINDS[5])]
)
AT_ONCE: Final = 3
# Of the move, each with the order that begins it, and the stage that it ends with.
STAGES: Final = (
    (("plan",), ""),
    (("start", "--force"), "to-new"),
    (("pause",), "to-new"),
    (("resume",), "new"),
    (("rollback",), "to-old"),
    ((), "old"),
    (("start", "--force"), "new"),
    ((), "new"),  # finished
)


MOVE: Final = """
[move]
to = "new"
entities = ["{queue}"]
state = "moves"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
QUEUE: Final = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    b'<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    b">%s</QueueDescription></content></entry>"
)
# The messages of a killed receiver come again soon, where locks don't end with its connection.
SHORT_LOCK: Final = b"<LockDuration>PT5S</LockDuration>"


@attrs.frozen
class Servers:
    """The servers of all kinds of namespaces."""

    gateways: Gateways
    rabbits: Nodes
    azurites: Azurites
    folder: Path

    async def table(self, name: str, kind: str) -> str:
        """The configuration of a namespace of that kind."""
        return f"[namespaces.{name}]\n{await self._lines(name, kind)}\n"

    async def _lines(self, name: str, kind: str) -> str:
        if kind == "embedded":
            return f'url = "embedded:{name}.db"'
        if kind.startswith("servicebus"):
            config = broker_config()
            if kind == "servicebus":
                config = config.replace('"service-bus-http"', '"service-bus"')
            place = (await self.gateways.start(config)).address
            key = f'key = {{ env = "{KEY_VARIABLE}" }}'
            if kind == "servicebus":
                return (
                    f'url = "servicebus:Endpoint=sb://{place}/;SharedAccessKeyName={KEY_NAME};'
                    f'UseDevelopmentEmulator=true;"\n{key}'
                )
            return f'url = "servicebus+http://{KEY_NAME}@{place}"\n{key}'
        if kind.startswith("rabbitmq"):
            port = self.rabbits.port(NEWER if kind == "rabbitmq 4" else "primary")
            secret = f'password = {{ file = "{self._secret("password", USER)}" }}'
            return f'url = "rabbitmq://{USER}@127.0.0.1:{port}/"\nlock_duration = "5s"\n{secret}'
        secret = f'key = {{ file = "{self._secret("account", ACCOUNT_KEY)}" }}'
        return f'url = "storage-queue:{url_of(self.azurites.port("primary"))}"\n{secret}'

    def _secret(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_secret(path, text)
        return path


@pytest.mark.parametrize(
    "pairs", [PAIRS[first : first + AT_ONCE] for first in range(0, len(PAIRS), AT_ONCE)], ids=str
)
async def test_nothing_is_lost_though_the_gateway_is_killed_in_each_stage(
    pairs: Sequence[tuple[str, str]],
    gateways: Gateways,
    rabbits: Nodes,
    azurites: Azurites,
    tmp_path: Path,
) -> None:
    async with trio.open_nursery() as nursery:
        for number, (old, new) in enumerate(pairs):
            folder = tmp_path / str(number)
            folder.mkdir()
            servers = Servers(gateways, rabbits, azurites, folder)
            nursery.start_soon(move_killed, servers, old, new)


async def move_killed(servers: Servers, old: str, new: str) -> None:
    """Move a queue there, back and there again, under load; the gateway is killed in each stage."""
    queue = f"killed-{KINDS.index(old)}{KINDS.index(new)}"
    tables = [await servers.table("old", old), await servers.table("new", new)]
    config = "\n".join(tables) + MOVE.format(queue=queue) + ADMIN
    gateway = await servers.gateways.start(config)
    description = QUEUE % (b"" if old.startswith("rabbitmq") else SHORT_LOCK)
    made = await request(gateway.address, "PUT", f"/{queue}?api-version=2021-05", description)
    assert made[0] == 201, made
    load = Load(gateway, queue)
    for number in range(100):  # more than the receiver takes at once
        status, _ = await send(gateway.address, queue, b"early %d" % number)
        assert status == 201
        load.accepted.add(f"early {number}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, 1)
        for order, stage in STAGES:
            await killed_in(gateway, [*order, queue] if order else [])
            if stage:
                await until(gateway, stage)
        load.over = True
    with trio.fail_after(PATIENCE):
        await load.receive_all()

    assert not load.accepted - load.received.keys()
    [last] = (await move(gateway, "report"))["moves"]
    assert last["stage"] == "new"


async def killed_in(gateway: GatewayProcess, order: Sequence[str]) -> None:
    """Kill the gateway while it executes that order, or later, and give it again to the next."""
    async with trio.open_nursery() as nursery:
        if order:
            nursery.start_soon(run, gateway.folder, "move", *order)
        await trio.sleep(random.uniform(0.0, 1.0))
        await gateway.kill()
        await gateway.start()
    if order:
        await move(gateway, *order)
