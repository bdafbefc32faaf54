"""
A namespace whose large bodies are in a store; for a pair it wraps the pair.

    send       body into the store -> message with the reference to the namespace
    receive    message -> body out of the store, checked -> message as it was sent
    complete   the namespace has completed it -> the store is told; the body is deleted later
    else       the body stays as long as the message

So no message is ever without its body. A body without a message may be left over, and is deleted by
age. A pair diverts and moves references like any other small message.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from itertools import compress
from typing import TypeVar

import attrs
import trio

from gateway.capabilities import Batches, Peeks, Schedules, SendEach, SendsMany, Sessions
from gateway.changes import QueueTurn, Turns
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Delivery, Message, ReceiveMode
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.body_reads import BodyReads
from gateway.extensions.claims.claim import Claim
from gateway.extensions.claims.claim_check import LAST_STEP, ClaimCheck
from gateway.extensions.claims.receiver import (
    ClaimDependencies,
    ClaimedReceiver,
    as_peeked,
    size_to_fetch,
)
from gateway.extensions.claims.session import ClaimedSession
from gateway.forwarding_broker import SendWrapper
from gateway.offering import required
from gateway.ports import Broker

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class ClaimedBroker(SendWrapper):
    """A `Broker` whose clients see whole bodies, also where they receive, peek or schedule."""

    broker: Broker
    claim_check: ClaimCheck
    dependencies: ClaimDependencies
    _turns: Turns = attrs.field(factory=Turns, init=False)

    @property
    def inner(self) -> Broker:
        return self.broker

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """As `Schedules.schedule`. The body of a cancelled message is deleted by age."""
        schedule = required(self.broker, Schedules).schedule
        return await self.wrap_send(schedule, entity, messages)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`."""
        await required(self.broker, Schedules).cancel_scheduled(entity, sequence_numbers)

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """As `SendsMany.send_many`: a call waits for the bodies of earlier calls."""
        send = required(self.broker, SendsMany).send_many
        with self._turns.acquire(entity.key) as turn:
            return await self._send(partial(send, fails_fast=fails_fast), entity, batches, turn)

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        """
        Put large bodies into the store, then send. A batch whose body the store doesn't accept
        isn't sent.
        """
        return await self._send(send, entity, batches, self._turns.acquire(None))

    async def _send(
        self, send: SendEach[T], entity: EntityPath, batches: Batches, turn: QueueTurn
    ) -> Sequence[T | BrokerError]:
        kept: list[list[Claim]] = []  # the verdict of each batch
        ready: list[Sequence[Message] | BrokerError] = []
        has_its_turn = False
        try:
            for batch in batches:
                kept.append([])
                ready.append(await self._checked_in(entity, batch, kept[-1]))
            await turn.come()
            has_its_turn = True
        finally:
            if not has_its_turn:  # the call was cancelled: nothing was sent
                with trio.move_on_after(LAST_STEP, shield=True):
                    await self.claim_check.forget([claim for each in kept for claim in each])
        turn.release()
        sent = [batch for batch in ready if not isinstance(batch, BrokerError)]
        answers = iter(await send(entity, sent) if sent else ())
        verdicts = [each if isinstance(each, BrokerError) else next(answers) for each in ready]
        # If the outcome is unknown, as after a cancellation, the message may exist and need its
        # body.
        failed = [isinstance(e, BrokerError) and e.outcome is Outcome.NOT_SENT for e in verdicts]
        await self._forget(compress(kept, failed))
        return verdicts

    async def _checked_in(
        self, entity: EntityPath, messages: Sequence[Message], kept: list[Claim]
    ) -> Sequence[Message] | BrokerError:
        """The messages with references for their large bodies, or the error that forbids them."""
        ready = []
        try:
            for message in messages:
                body = self.claim_check.large_body(message)
                if body is None:
                    ready.append(message)
                    continue
                kept.append(await self.claim_check.check_in(entity, message, body))
                ready.append(claims.referring(message, kept[-1]))
        except BrokerError as error:
            await self._forget([kept])
            kept.clear()
            return error
        return ready

    async def _forget(self, kept: Iterable[Sequence[Claim]]) -> None:
        if unsent := [claim for each in kept for claim in each]:
            with trio.move_on_after(LAST_STEP, shield=True):
                await self.claim_check.forget(unsent)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[ClaimedReceiver]:
        """
        As `Broker.open_receiver`.

        Receive-and-delete locks messages too, and deletes each only when its body was read;
        otherwise the message could be lost.
        """
        async with (
            self.broker.open_receiver(entity, ReceiveMode.PEEK_LOCK) as inner,
            BodyReads() as reads,
        ):
            yield ClaimedReceiver(
                inner=inner,
                entity=entity,
                mode=mode,
                claim_check=self.claim_check,
                dependencies=self.dependencies,
                reads=reads,
            )

    @asynccontextmanager
    async def open_session(
        self,
        entity: EntityPath,
        session_id: str | None,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    ) -> AsyncIterator[ClaimedSession]:
        """As `Sessions.open_session`, and `open_receiver`."""
        sessions = required(self.broker, Sessions)
        async with (
            sessions.open_session(entity, session_id, ReceiveMode.PEEK_LOCK) as inner,
            BodyReads() as reads,
        ):
            yield ClaimedSession(
                inner=inner,
                session=inner,
                entity=entity,
                mode=mode,
                claim_check=self.claim_check,
                dependencies=self.dependencies,
                reads=reads,
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
        sessions = required(self.broker, Sessions)
        return await sessions.list_sessions(entity, updated_since=updated_since, skip=skip, top=top)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        As `Peeks.peek`; the bodies of one call have at most `max_fetched` bytes together. A message
        whose body can't be read has its reference, and no body.
        """
        peeks = required(self.broker, Peeks)
        found, left = list[Delivery](), self.claim_check.options.max_fetched
        for each in await peeks.peek(entity, from_sequence=from_sequence, limit=limit):
            left -= size_to_fetch(each.message)
            if found and left < 0:
                break
            found.append(await as_peeked(self.claim_check, each))
        return found
