"""A status is of one moment, although some of its figures take a moment to be read."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio
from trio.testing import MockClock

from gateway.app.assembly.building import make_parts
from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard
from gateway.config.file import parse
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.message import Message
from gateway.domain.operators.control import Action, Operator, Order
from gateway.forwarding_broker import ForwardingBroker
from gateway.ports import Broker

PAIR: Final = """
[namespaces.east]
url = "memory:"
queues = ["orders"]

[namespaces.west]
url = "memory:"

[pairing]
primary = "east"
secondary = "west"
"""
ORDERS: Final = EntityPath("orders")
ANN: Final = Operator(name="ann", peer="127.0.0.1")


@attrs.define(eq=False)
class Meanwhile(ForwardingBroker):
    """A namespace at which something happens while it lists its queues."""

    _inner: Broker
    happens: Callable[[], object]

    @property
    def inner(self) -> Broker:
        return self._inner

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        self.happens()
        return await self._inner.list_queues(prefix, skip=skip, top=top)


async def test_an_entity_that_returns_while_the_depth_is_read_is_not_told_as_diverted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    config = parse(PAIR, source="test", folder=tmp_path, environ={}).config
    runtime = Runtime()
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, runtime)
        pair, control = parts.pair, parts.control
        assert pair is not None
        assert control is not None
        board = StatusBoard(config=config, runtime=runtime, refusals=parts.refusals, parts=parts)

        def order(action: Action) -> None:
            control.execute(Order(action=action, targets=(ORDERS.name,)), ANN)

        order(Action.FAILOVER)
        await pair.broker.send(ORDERS, [Message(body=b"x")])
        before = await board.read()
        await trio.sleep(60)  # the next status reads the depth again
        pair.depth.secondary = Meanwhile(pair.depth.secondary, lambda: order(Action.FAILBACK))
        after = await board.read()

    assert before.pair is not None
    assert [(each.state, each.diverted) for each in before.pair.entities] == [("pinned", 1)]
    assert after.pair is not None
    assert (after.pair.entities, after.pair.states["pinned"]) == ((), 0)
