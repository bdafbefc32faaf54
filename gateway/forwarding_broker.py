"""The base of each broker that is made of another broker."""

import abc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, TypeVar

from gateway.capabilities import (
    Diverts,
    FailsFast,
    Identifies,
    Peeks,
    Placed,
    Schedules,
    Sessions,
    Topology,
    Updates,
    Verifies,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.message import AcceptedBy, Message, ReceiveMode
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver

T = TypeVar("T")

Send = Callable[[EntityPath, Sequence[Message]], Awaitable[T]]
"""One of the ways to send to a broker: `Broker.send`, `FailsFast.try_send`, ..."""


class ForwardingBroker(Wrapper):
    """
    A `Broker` that sends in its own way and passes everything else on to `inner`.

    A subclass that changes more overrides the method. The capabilities that send, `SendsMany`,
    `FailsFast` and `Diverts`, aren't passed on: they would go past the subclass's `send`.
    """

    forwards: ClassVar[frozenset[type]] = frozenset(
        (Identifies, Peeks, Placed, Schedules, Sessions, Topology, Updates, Verifies)
    )

    @property
    @abc.abstractmethod
    def inner(self) -> Broker:
        """The broker that does what is passed on."""

    def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AbstractAsyncContextManager[Receiver]:
        return self.inner.open_receiver(entity, mode)

    async def probe(self, entity: EntityPath) -> None:
        await self.inner.probe(entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return await self.inner.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        return await self.inner.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        return await self.inner.create_queue(entity, properties)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.inner.delete_queue(entity)


class SendWrapper(ForwardingBroker):
    """
    A `ForwardingBroker` that does something before or after each send of `inner`.

    `send`, `try_send` and `send_diverting` all go through `wrap_send`, so a subclass can't forget
    one of them.
    """

    @abc.abstractmethod
    async def wrap_send(self, send: Send[T], entity: EntityPath, messages: Sequence[Message]) -> T:
        """Call `send`, which is one of `inner`'s ways to send; return its result."""

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`."""
        await self.wrap_send(self.inner.send, entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`."""
        send = required(self.inner, FailsFast).try_send
        await self.wrap_send(send, entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        send = required(self.inner, Diverts).send_diverting
        return await self.wrap_send(send, entity, messages)
