"""`EmbeddedBroker` in this process: its users are tasks beside it, and share its processor time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from benchmarks.closed_loop import BODY, IN_PROCESS, Client, Way
from gateway.app.process import collect_seldom
from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Message
from gateway.ports import Receiver
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions

QUEUE: Final = EntityPath("messages")
_EVERYTHING: Final = 1_000_000_000


@attrs.define(eq=False)
class InProcessClient:
    """A sender, and a receiver of its own, of one message at a time."""

    _broker: EmbeddedBroker
    _receiver: Receiver

    async def send(self, number: int) -> None:
        await self._broker.send(QUEUE, [Message(message_id=str(number), body=BODY)])

    async def receive_and_complete(self) -> int:
        deliveries = await self._receiver.receive(1)
        for delivery in deliveries:
            await self._receiver.settle(delivery, Complete())
        return len(deliveries)


def open_broker(path: Path, options: EmbeddedOptions | None = None) -> EmbeddedBroker:
    runtime = Runtime()
    return EmbeddedBroker(path, runtime.now, runtime.rng("benchmark"), options)


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[Way]:
    """A store of its own, closed afterwards."""
    async with open_broker(folder / "in-process.db") as broker:
        await broker.create_queue(QUEUE, QueueProperties())
        collect_seldom()  # as `pairgate serve` does when it has started

        @asynccontextmanager
        async def open_client() -> AsyncIterator[Client]:
            async with broker.open_receiver(QUEUE) as receiver:
                yield InProcessClient(broker, receiver)

        yield Way(name=IN_PROCESS, open_client=open_client, most=_EVERYTHING)
