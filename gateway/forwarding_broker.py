"""The base of each broker that is made of another broker."""

import abc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ClassVar, TypeVar

from gateway.capabilities import (
    Batches,
    BoundsSends,
    Clears,
    DeletesByVersion,
    DeletesMessages,
    Describes,
    Diverts,
    EnlistsSchedules,
    FailsFast,
    Identifies,
    Peeks,
    PeeksState,
    Placed,
    Schedules,
    Send,
    SendEach,
    SendsMany,
    SendsTogether,
    Sessions,
    Streams,
    Topology,
    Transacts,
    Updates,
    Verifies,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Message, ReceiveMode
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver

T = TypeVar("T")


class ForwardingBroker(Wrapper):
    """
    A `Broker` that sends in its own way and passes everything else on to `inner`.

    A subclass that changes more overrides the method. The capabilities that send, `SendsMany`,
    `FailsFast` and `Diverts`, aren't passed on: they would go past the subclass's `send`.
    """

    forwards: ClassVar[frozenset[type]] = frozenset(
        (
            Clears,
            DeletesByVersion,
            DeletesMessages,
            Describes,
            Identifies,
            Peeks,
            PeeksState,
            Placed,
            Schedules,
            SendsTogether,
            Sessions,
            Streams,
            Topology,
            Updates,
            Verifies,
        )
    )

    @property
    @abc.abstractmethod
    def inner(self) -> Broker:
        """The broker that does the operations that are passed on."""

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


class ReceiveWrapper(ForwardingBroker):
    """A `ForwardingBroker` that leaves the sends to `inner`, in all ways to send."""

    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards | {
        BoundsSends,
        Diverts,
        EnlistsSchedules,
        FailsFast,
        SendsMany,
        Transacts,
    }

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`."""
        await self.inner.send(entity, messages)


class SendWrapper(ForwardingBroker):
    """
    A `ForwardingBroker` that does something before or after each send of `inner`.

    All ways to send go through `wrap_sends`, so a subclass can't forget one of them.
    """

    @abc.abstractmethod
    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        """
        Call `send`, which is one of `inner`'s ways to send; return a verdict for each batch, in
        their order. The verdict of a batch that isn't passed to `send` is the subclass's own error.

        Raises:
            BrokerError: never; `send` raises none either.
        """

    async def wrap_send(self, send: Send[T], entity: EntityPath, messages: Sequence[Message]) -> T:
        """As `wrap_sends`, for a single batch. Raises the batch's error."""
        [verdict] = await self.wrap_sends(_each_by(send), entity, [messages])
        if isinstance(verdict, BrokerError):
            raise verdict
        return verdict

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

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        send = required(self.inner, SendsMany).send_many
        return await self.wrap_sends(partial(send, fails_fast=fails_fast), entity, batches)


def _each_by(send: Send[T]) -> SendEach[T]:
    async def send_each(entity: EntityPath, batches: Batches) -> Sequence[T | BrokerError]:
        [messages] = batches
        try:
            return [await send(entity, messages)]
        except BrokerError as error:
            return [error]

    return send_each
