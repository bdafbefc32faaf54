"""
A namespace with interceptors: each method of `Broker`, of its receivers and of their capabilities
once, as a call that `interceptor` passes by the interceptors.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, NoReturn, TypeVar

import attrs

from gateway.capabilities import (
    Batches,
    ChangesBody,
    Clears,
    DeletesMessages,
    Diverts,
    Enlists,
    EnlistsSchedules,
    EnlistsState,
    FailsFast,
    HidesMessages,
    Identifies,
    KeepsMessages,
    Peeks,
    PeeksState,
    Placed,
    Polls,
    ReceivesAvailable,
    ReceivesDeferred,
    Schedules,
    Send,
    SendsMany,
    SendsToSubscriptions,
    SessionReceiver,
    Sessions,
    SettlesByToken,
    SettlesMany,
    TakesBack,
    TransactedWork,
    Transacts,
    WritesDeadLetters,
    address_of,
)
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode, Settlement
from gateway.forwarding_broker import ForwardingBroker
from gateway.interception.interceptor import Call, CallKind, InterceptorChain
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver

T = TypeVar("T")


@attrs.frozen(eq=False)
class InterceptedBroker(ForwardingBroker):
    """
    `inner`, with interceptors around the calls of its methods and of its receivers' methods.
    `address` is given where the configuration knows it, because not all adapters do.
    """

    _inner: Broker
    _chain: InterceptorChain = attrs.field(converter=InterceptorChain)
    _address: str | None = attrs.field(default=None, kw_only=True)
    _session_chain: InterceptorChain = attrs.field(init=False)

    adds: ClassVar[frozenset[type]] = frozenset((Placed,))
    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards | {
        EnlistsSchedules,
        SendsToSubscriptions,
        WritesDeadLetters,
    }

    @_session_chain.default
    def _find_session_chain(self) -> InterceptorChain:
        return self._chain.of_sessions()

    @property
    def address(self) -> str:
        """As `Placed.address`."""
        return address_of(self._inner) if self._address is None else self._address

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`."""
        await self._send(self._inner.send, entity, messages)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `FailsFast.try_send`."""
        await self._send(required(self._inner, FailsFast).try_send, entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """As `Diverts.send_diverting`."""
        return await self._send(required(self._inner, Diverts).send_diverting, entity, messages)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`."""
        send = required(self._inner, SendsMany).send_many
        verdicts: list[BrokerError | None] = []
        for part in self._chain.parts(Call(CallKind.SEND, entity, batches)):
            operation = partial(send, entity, part.batches, fails_fast=fails_fast)
            verdicts += await self._chain.run_each(part, operation)
        return verdicts

    async def _send(self, send: Send[T], entity: EntityPath, messages: Sequence[Message]) -> T:
        call = Call(CallKind.SEND, entity, (messages,))
        [verdict] = await self._chain.run_each(call, partial(_alone, send, entity, messages))
        if isinstance(verdict, BrokerError):
            raise verdict
        return verdict

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self._inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`."""
        commit = partial(required(self._inner, Transacts).commit, work)
        await self._chain.run(Call(CallKind.COMMIT, None, work=work), commit)

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`."""
        return await self._chain.run(
            Call(CallKind.SCHEDULE, entity, (messages,)),
            lambda: required(self._inner, Schedules).schedule(entity, messages),
        )

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        await self._chain.run(
            Call(CallKind.CANCEL_SCHEDULED, entity),
            lambda: required(self._inner, Schedules).cancel_scheduled(entity, sequence_numbers),
        )

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`."""
        await self._chain.run(Call(CallKind.PROBE, entity), partial(self._inner.probe, entity))

    async def identity(self) -> Identity:
        """As `Identifies.identity`."""
        return await self._chain.run(
            Call(CallKind.IDENTIFY, None), lambda: required(self._inner, Identifies).identity()
        )

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`."""
        inspect = partial(self._inner.inspect, entity)
        return await self._chain.run(Call(CallKind.INSPECT, entity), inspect)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`."""
        list_queues = partial(self._inner.list_queues, prefix, skip=skip, top=top)
        return await self._chain.run(Call(CallKind.LIST_QUEUES, None), list_queues)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """As `Broker.create_queue`."""
        create = partial(self._inner.create_queue, entity, properties)
        return await self._chain.run(Call(CallKind.CREATE_QUEUE, entity), create)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`."""
        delete = partial(self._inner.delete_queue, entity)
        await self._chain.run(Call(CallKind.DELETE_QUEUE, entity), delete)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`."""
        return await self._chain.run(
            Call(CallKind.PEEK, entity),
            lambda: required(self._inner, Peeks).peek(
                entity, from_sequence=from_sequence, limit=limit
            ),
        )

    async def delete_messages(
        self,
        entity: EntityPath,
        limit: int,
        *,
        before: datetime | None = None,
        session_id: str | None = None,
    ) -> int:
        """As `DeletesMessages.delete_messages`."""
        return await self._chain.run(
            Call(CallKind.DELETE_MESSAGES, entity),
            lambda: required(self._inner, DeletesMessages).delete_messages(
                entity, limit, before=before, session_id=session_id
            ),
        )

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`."""
        await self._chain.run(
            Call(CallKind.CLEAR_QUEUE, entity),
            lambda: required(self._inner, Clears).clear_queue(entity),
        )

    async def list_sessions(
        self,
        entity: EntityPath,
        *,
        updated_since: datetime | None = None,
        skip: int = 0,
        top: int = 100,
    ) -> Sequence[str]:
        """As `Sessions.list_sessions`."""
        return await self._chain.run(
            Call(CallKind.LIST_SESSIONS, entity),
            lambda: required(self._inner, Sessions).list_sessions(
                entity, updated_since=updated_since, skip=skip, top=top
            ),
        )

    async def peek_state(self, entity: EntityPath, session_id: str) -> bytes | None:
        """As `PeeksState.peek_state`."""
        peeks = required(self._inner, PeeksState)
        return await self._chain.run(
            Call(CallKind.GET_STATE, entity), lambda: peeks.peek_state(entity, session_id)
        )

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        """As `Broker.open_receiver`."""
        async with AsyncExitStack() as stack:
            opening = self._inner.open_receiver(entity, mode)
            enter = partial(stack.enter_async_context, opening)
            inner = await self._chain.run(Call(CallKind.OPEN, entity), enter)
            yield InterceptedReceiver(inner=inner, entity=entity, mode=mode, chain=self._chain)

    def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AbstractAsyncContextManager[SessionReceiver]:
        """As `Sessions.open_session`."""
        return self._open_session(entity, session_id, mode)

    @asynccontextmanager
    async def _open_session(
        self, entity: EntityPath, session_id: str | None, mode: ReceiveMode
    ) -> AsyncIterator[SessionReceiver]:
        async with AsyncExitStack() as stack:
            opening = required(self._inner, Sessions).open_session(entity, session_id, mode)
            enter = partial(stack.enter_async_context, opening)
            inner = await self._chain.run(Call(CallKind.OPEN_SESSION, entity), enter)
            yield InterceptedSession(
                inner=inner, entity=entity, mode=mode, chain=self._session_chain
            )


async def _alone(send: Send[T], entity: EntityPath, messages: Sequence[Message]) -> list[T]:
    return [await send(entity, messages)]


@attrs.frozen(eq=False, kw_only=True)
class InterceptedReceiver(Wrapper):
    """A receiver of an `InterceptedBroker`. Leaving its scope releases its locks in any case."""

    _inner: Receiver
    _entity: EntityPath
    _mode: ReceiveMode
    _chain: InterceptorChain

    forwards: ClassVar[frozenset[type]] = frozenset(
        (ChangesBody, Enlists, EnlistsState, KeepsMessages, SettlesByToken, TakesBack)
    )

    @property
    def inner(self) -> Receiver:
        return self._inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`."""
        receive = partial(self._inner.receive, limit)
        if self._mode is ReceiveMode.PEEK_LOCK:
            return await self._chain.wait(Call(CallKind.WAIT, self._entity), receive)
        return await self._chain.run(Call(CallKind.RECEIVE, self._entity), receive)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        receive = partial(required(self._inner, ReceivesAvailable).receive_available, limit)
        return await self._chain.run(Call(CallKind.RECEIVE, self._entity), receive)

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`."""
        poll = partial(required(self._inner, Polls).poll, limit, lock)
        return await self._chain.run(Call(CallKind.RECEIVE, self._entity), poll)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        return await self._chain.run(
            Call(CallKind.RECEIVE_DEFERRED, self._entity),
            lambda: required(self._inner, ReceivesDeferred).receive_deferred(sequence_numbers),
        )

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`."""
        call = Call(CallKind.SETTLE, self._entity, settlements=((delivery, settlement),))
        settle = partial(_alone_settled, self._inner, delivery, settlement)
        [verdict] = await self._chain.run_each(call, settle)
        if verdict is not None:
            raise verdict

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        call = Call(CallKind.SETTLE, self._entity, settlements=settlements)
        settle = required(self._inner, SettlesMany).settle_many
        verdicts: list[BrokerError | None] = []
        for part in self._chain.parts(call):
            verdicts += await self._chain.run_each(part, partial(settle, part.settlements))
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`."""
        renew = partial(self._inner.renew, delivery)
        return await self._chain.run(Call(CallKind.RENEW, self._entity), renew)

    async def hide(
        self, delivery: Delivery, duration: timedelta, body: bytes | None = None
    ) -> datetime:
        """As `HidesMessages.hide`."""
        return await self._chain.run(
            Call(CallKind.HIDE, self._entity),
            lambda: required(self._inner, HidesMessages).hide(delivery, duration, body),
        )


async def _alone_settled(
    receiver: Receiver, delivery: Delivery, settlement: Settlement
) -> list[None]:
    await receiver.settle(delivery, settlement)
    return [None]


@attrs.frozen(eq=False, kw_only=True)
class InterceptedSession(InterceptedReceiver):
    """A session's receiver of an `InterceptedBroker`."""

    _inner: SessionReceiver

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    @property
    def locked_until(self) -> datetime:
        return self._inner.locked_until

    async def wait_lost(self) -> NoReturn:
        """As `SessionReceiver.wait_lost`."""
        await self._inner.wait_lost()

    async def renew_session(self) -> datetime:
        """As `SessionReceiver.renew_session`."""
        call = Call(CallKind.RENEW_SESSION, self._entity)
        return await self._chain.run(call, self._inner.renew_session)

    async def get_state(self) -> bytes | None:
        """As `SessionReceiver.get_state`."""
        return await self._chain.run(Call(CallKind.GET_STATE, self._entity), self._inner.get_state)

    async def set_state(self, state: bytes | None) -> None:
        """As `SessionReceiver.set_state`."""
        set_state = partial(self._inner.set_state, state)
        await self._chain.run(Call(CallKind.SET_STATE, self._entity), set_state)
