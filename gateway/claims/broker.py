"""
A namespace whose large bodies lie in a store; for a pair it stands above the pair.

    send       body into the store -> message with the reference to the namespace
    receive    message -> body out of the store, checked -> message as it was sent
    complete   the namespace has done it -> the store is told; the body goes later
    else       the body stays as long as the message

So there is never a message without its body; a body without a message may be left over, and age
removes it. A pair diverts and moves references like any other small message.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio

from gateway.claims.desk import LAST_STEP, ClaimDesk
from gateway.claims.receiver import ClaimedReceiver, Surroundings, as_shown
from gateway.claims.session import ClaimedSession
from gateway.domain import claim as claims
from gateway.domain.claim import Claim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.passing import PassesOn
from gateway.ports import Broker

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class ClaimedBroker(PassesOn):
    """`Broker`, with all capabilities that `broker` has."""

    broker: Broker
    desk: ClaimDesk
    around: Surroundings

    @property
    def inner(self) -> Broker:
        return self.broker

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`, with large bodies in the store before anything is sent.

        Raises:
            BrokerError: also that of the store: then nothing was sent.
        """
        return await self._sent(entity, messages, lambda ready: self.broker.send(entity, ready))

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`. The body of one that is cancelled goes by its age."""
        passed_on = super().schedule
        return await self._sent(entity, messages, lambda ready: passed_on(entity, ready))

    async def _sent(
        self,
        entity: EntityPath,
        messages: Sequence[Message],
        send: Callable[[Sequence[Message]], Awaitable[T]],
    ) -> T:
        kept: list[Claim] = []
        ready = await self._checked_in(entity, messages, kept)
        try:
            return await send(ready)
        except BrokerError as error:
            # Unknown, and so a cancellation: the message may be there, and needs its body.
            if kept and error.outcome is Outcome.NOT_SENT:
                with trio.move_on_after(LAST_STEP, shield=True):
                    await self.desk.forget(kept)
            raise

    async def _checked_in(
        self, entity: EntityPath, messages: Sequence[Message], kept: list[Claim]
    ) -> Sequence[Message]:
        await trio.lowlevel.checkpoint()
        ready = []
        try:
            for message in messages:
                body = self.desk.large_body(message)
                if body is None:
                    ready.append(message)
                    continue
                kept.append(await self.desk.check_in(entity, message, body))
                ready.append(claims.referring(message, kept[-1]))
        except BaseException:
            with trio.move_on_after(LAST_STEP, shield=True):
                await self.desk.forget(kept)
            raise
        return ready

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[ClaimedReceiver]:
        """
        As `Broker.open_receiver`.

        Receive and delete locks too, and deletes when the body is there: else it could be lost.
        """
        async with self.broker.open_receiver(entity, ReceiveMode.PEEK_LOCK) as inner:
            yield ClaimedReceiver(
                inner=inner, entity=entity, mode=mode, desk=self.desk, around=self.around
            )

    @asynccontextmanager
    async def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AsyncIterator[ClaimedSession]:
        """As `Sessions.open_session`, and `open_receiver`."""
        async with super().open_session(entity, session_id, ReceiveMode.PEEK_LOCK) as inner:
            yield ClaimedSession(
                inner=inner,
                session=inner,
                entity=entity,
                mode=mode,
                desk=self.desk,
                around=self.around,
            )

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        As `Peeks.peek`. A message whose body can't be had is shown with its reference and without
        a body.
        """
        found = await super().peek(entity, from_sequence=from_sequence, limit=limit)
        return [await as_shown(self.desk, each) for each in found]
