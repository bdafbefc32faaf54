"""Nodes of RabbitMQ as `conf/examples` sets them up: users, rights and policies."""

import json
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from gateway.brokers.rabbitmq.broker import RabbitmqBroker, open_namespace
from gateway.brokers.rabbitmq.names import DEAD_LETTER
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.message import ReceiveMode
from gateway.ports import Receiver
from tests.brokers.rabbitmq.nodes import NEWER, Nodes
from tests.e2e.processes import ROOT
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import (
    USER,
    LastingNode,
    control,
    evaluate,
    keep_queues,
    limit_memory,
    make,
    set_rights,
)
from tests.harness.servers import ServerProcess

EXAMPLES: Final = ROOT / "conf" / "examples"
VHOST: Final = "pairgate"
PASSWORD: Final = "SAS_KEY_VALUE"  # that of all users: see `processes.environment`
# Of the queues: a text, or [] if there are none.
_NAMES: Final = f"""
string:join([
    binary_to_list(Name)
    || Queue <- rabbit_amqqueue:list(<<"{VHOST}">>),
    {{resource, _, _, Name}} <- [amqqueue:get_name(Queue)]
], " ").
"""


@attrs.define(eq=False)
class ExampleNode:
    """A node that serves many tests; `prepare` makes it ready for one."""

    node: LastingNode
    _definitions: str = attrs.field(default="", init=False)  # the existing queues

    async def prepare(self, definitions: str) -> None:
        """Give it the users of that file and their rights, and take away all queues."""
        if definitions != self._definitions:
            self.node.begin()  # the node makes its folder
            known = self.node.folder / definitions
            known.write_text(json.dumps(_with_secrets(_read(definitions))))
            await self.control("import_definitions", str(known))
            self._definitions = definitions
        async with self.client() as broker:
            for queue in await self.queues():
                await broker.delete_queue(queue)

    async def take_rights(self, user: str) -> None:
        """The broker asks for rights once for each channel: only a new connection notices."""
        process, reason = await self._process(), "its rights were taken"
        await set_rights(process, user, vhost=VHOST)
        await make(process, "rabbit_networking:close_all_user_connections", user, reason)

    async def give_rights(self, user: str) -> None:
        """Give the user the rights that the file of definitions gives."""
        [given] = [each for each in _read(self._definitions)["permissions"] if each["user"] == user]
        rights = [given[right] for right in ("configure", "write", "read")]
        await set_rights(await self._process(), user, *rights, vhost=VHOST)

    async def limit_memory(self, part: float) -> None:
        """As `rabbitmq.limit_memory`."""
        await limit_memory(await self._process(), part)

    async def keep_queues(self) -> None:
        """As `rabbitmq.keep_queues`."""
        await keep_queues(await self._process())

    async def control(self, *arguments: str) -> str:
        return await control(await self._process(), *arguments)

    async def _process(self) -> ServerProcess:
        return await trio.to_thread.run_sync(lambda: self.node.process)

    async def queues(self) -> list[EntityPath]:
        """All that are there, but for those of dead letters, which belong to them."""
        listed = await evaluate(await self._process(), _NAMES)
        names = set() if listed == "[]" else set(listed.strip('"').split())
        mains = {name.removesuffix(DEAD_LETTER) for name in names}
        assert mains <= names, f"dead letters of no queue: {names}"
        return [EntityPath(name) for name in sorted(mains)]

    def client(self, user: str = USER, *, port: int | None = None) -> RabbitmqBroker:
        password = USER if user == USER else PASSWORD
        return open_namespace(
            "rabbitmq",
            f"//{user}:{password}@127.0.0.1:{port or self.node.port}/{VHOST}",
            RabbitmqOptions(connect_timeout=PATIENCE),
            lambda: datetime.now(UTC),
            random.Random(),
        )


@attrs.frozen
class Listed:
    """A namespace whose queues are known, since it doesn't list them itself: for an audit."""

    _broker: RabbitmqBroker
    _queues: Sequence[EntityPath]

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return [await self.inspect(queue) for queue in self._queues[skip : skip + top]]

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self._broker.inspect(entity)

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self._broker.open_receiver(entity, mode)


def _read(definitions: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((EXAMPLES / definitions).read_text())
    return read


def _with_secrets(definitions: dict[str, Any]) -> dict[str, Any]:
    """Each user has the password of all, and the node's own user may do everything."""
    users = [{"name": user["name"], "tags": user["tags"]} for user in definitions["users"]]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    own = {"user": USER, "vhost": VHOST, **everything}
    return {
        **definitions,
        "users": [{**user, "password": PASSWORD} for user in users],
        "permissions": [*definitions["permissions"], own],
    }


@attrs.define(eq=False)
class ExampleNodes:
    """
    A north and a south, and a north of RabbitMQ 4: a vhost on nodes that other tests use, too.
    """

    nodes: Nodes
    _examples: dict[str, ExampleNode] = attrs.field(factory=dict, init=False)

    @property
    def north(self) -> ExampleNode:
        return self._on("primary")

    @property
    def newer_north(self) -> ExampleNode:
        return self._on(NEWER)

    @property
    def south(self) -> ExampleNode:
        return self._on("secondary")

    def _on(self, name: str) -> ExampleNode:
        if name not in self._examples:
            self._examples[name] = ExampleNode(self.nodes.node(name))
        return self._examples[name]
