"""
Packs many small messages into one: collected for a moment when they are sent, and unpacked when
received.

A send returns when its pack was accepted, and has the pack's outcome: if it is unknown, it is
unknown for all messages of the pack. A pack that is refused because of its content is sent again as
each sender's own messages, so that no sender gets an error for another's messages. A pack of one is
the message itself.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from fnmatch import fnmatchcase
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import (
    Batches,
    DeletesMessages,
    Peeks,
    SendsMany,
    send_accepted_by,
    send_each,
)
from gateway.changes import QueueTurn, RunsTasks, Turns
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import AcceptedBy, Delivery, Message, ReceiveMode
from gateway.extensions.claims import pack as packs
from gateway.extensions.claims.claim_check import MessageCodec
from gateway.extensions.claims.compression import compressed, in_thread
from gateway.extensions.claims.options import PackingRule
from gateway.extensions.claims.unpacking import PackedReceiver, as_peeked
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import required
from gateway.ports import Broker, NewId, WallClock

_FAULTS: Final = (
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
)  # errors about the message: nothing was sent


@attrs.define(eq=False)
class _Parcel:
    """Messages that wait to be sent together, by sender."""

    entity: EntityPath
    rule: PackingRule
    turn: QueueTurn
    members: dict[int, list[tuple[Message, bytes]]] = attrs.field(factory=dict)
    in_order: list[int] = attrs.field(factory=list)  # senders whose order is kept
    count: int = 0
    size: int = 0
    closed: bool = False
    full: trio.Event = attrs.field(factory=trio.Event)
    done: trio.Event = attrs.field(factory=trio.Event)
    verdict: AcceptedBy | BrokerError = attrs.field(
        factory=lambda: Unavailable("the gateway is shutting down: nothing was sent")
    )
    # outcomes of senders whose messages are sent alone
    verdicts: dict[int, AcceptedBy | BrokerError] = attrs.field(factory=dict)

    def has_room(self, count: int, size: int) -> bool:
        fits = self.size + size <= self.rule.max_pack
        return not self.closed and fits and self.count + count <= self.rule.max_messages

    def add(self, sender: int, members: list[tuple[Message, bytes]], size: int) -> None:
        self.members[sender] = members
        self.count += len(members)
        self.size += size
        if self.count >= self.rule.max_messages:
            self.full.set()

    def messages_of(self, sender: int) -> list[Message]:
        return [message for message, _ in self.members[sender]]

    def verdict_of(self, sender: int) -> AcceptedBy | BrokerError:
        return self.verdicts.get(sender, self.verdict)

    def withdraw(self, sender: int) -> None:
        """Remove a sender's messages, unless they are being sent."""
        if not self.closed:
            members = self.members.pop(sender)
            self.count -= len(members)
            self.size -= _size(members)


@attrs.define(eq=False, kw_only=True)
class PackedBroker(RunsTasks, ForwardingBroker):
    """
    A `Broker` that packs small messages, and a `Service`: without `run` nothing is packed. Sessions
    and deferred messages pass unpacked.
    """

    broker: Broker
    rules: tuple[PackingRule, ...]
    codec: MessageCodec
    clock: WallClock
    new_id: NewId
    # The parcels that still collect messages.
    _parcels: dict[str, _Parcel] = attrs.field(factory=dict, init=False)
    _senders: int = attrs.field(default=0, init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)

    # Deleting a number of the namespace's messages would delete whole packs.
    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards - {DeletesMessages}

    @property
    def inner(self) -> Broker:
        return self.broker

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`, with the cancellation of `send_diverting`."""
        await self.send_diverting(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `Diverts.send_diverting`, perhaps together with messages of other senders.

        If cancelled while it still collects, nothing was sent; after that the outcome is unknown.
        """
        _refuse_reserved(messages)
        rule = self._rule_for(entity)
        members = None if rule is None else self._packable(rule, messages)
        if rule is None or members is None:
            return await send_accepted_by(self.broker, entity, messages)
        parcel, sender = self._enter(entity, rule, members)
        try:
            await parcel.done.wait()
        except trio.Cancelled:
            parcel.withdraw(sender)
            raise
        verdict = parcel.verdict_of(sender)
        if isinstance(verdict, BrokerError):
            raise copy(verdict) from verdict  # each sender raises its own exception
        return verdict

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `SendsMany.send_many`. The batches of a call are packed if all of them may be. To keep
        the order, a pack with such batches is sent after the one before it was answered.

        Cancellation is as in `send_diverting`.
        """
        rule = self._rule_for(entity)
        verdicts: list[BrokerError | None] = [None] * len(batches)
        members: list[list[tuple[Message, bytes]] | None] = []
        for index, batch in enumerate(batches):
            try:
                _refuse_reserved(batch)
                members.append(None if rule is None else self._packable(rule, batch))
            except BrokerError as error:
                verdicts[index] = error
        good = [index for index, verdict in enumerate(verdicts) if verdict is None]
        packable = [each for each in members if each is not None]
        answers: Sequence[AcceptedBy | BrokerError | None] = []
        if rule is not None and len(packable) == len(good):
            answers = await self._pack_in_order(entity, rule, packable)
        elif good:
            send = required(self.broker, SendsMany).send_many
            with self._turns.acquire(None if rule is None else entity.key) as turn:
                self._stop_collecting(entity)  # later messages are behind these
                await turn.come()
                turn.release()
                sent = [batches[index] for index in good]
                answers = await send(entity, sent, fails_fast=fails_fast)
        for index, answer in zip(good, answers, strict=True):
            verdicts[index] = answer if isinstance(answer, BrokerError) else None
        return verdicts

    async def _pack_in_order(
        self,
        entity: EntityPath,
        rule: PackingRule,
        batches: Sequence[list[tuple[Message, bytes]]],
    ) -> Sequence[AcceptedBy | BrokerError]:
        entered = [self._enter(entity, rule, each, in_order=True) for each in batches]
        try:
            for parcel in dict.fromkeys(parcel for parcel, _ in entered):
                await parcel.done.wait()
        except trio.Cancelled:
            for parcel, sender in entered:
                parcel.withdraw(sender)
            raise
        return [parcel.verdict_of(sender) for parcel, sender in entered]

    def _rule_for(self, entity: EntityPath) -> PackingRule | None:
        """The rule of an entity whose messages are packed; None: its messages aren't packed."""
        if self._nursery is None:
            return None
        return next((r for r in self.rules if fnmatchcase(entity.key, r.match.lower())), None)

    def _packable(
        self, rule: PackingRule, messages: Sequence[Message]
    ) -> list[tuple[Message, bytes]] | None:
        """The messages, each with its encoding; None: they can't be in a pack."""
        if not messages or not all(map(packs.may_be_packed, messages)):
            return None
        members = [(message, self._encoded(message)) for message in messages]
        fit = len(members) <= rule.max_messages and _size(members) <= rule.max_pack
        return members if fit else None

    def _enter(
        self,
        entity: EntityPath,
        rule: PackingRule,
        members: list[tuple[Message, bytes]],
        *,
        in_order: bool = False,
    ) -> tuple[_Parcel, int]:
        """
        Add the messages to the parcel that collects, or to a new one; return the parcel, and a key.
        """
        assert self._nursery is not None, "there is no rule without it"
        size = _size(members)
        parcel = self._parcels.get(entity.key)
        if parcel is None or not parcel.has_room(len(members), size):
            self._stop_collecting(entity)
            parcel = _Parcel(entity, rule, self._turns.acquire(entity.key))
            self._parcels[entity.key] = parcel
            self._nursery.start_soon(self._send_parcel, parcel)
        self._senders += 1
        parcel.add(self._senders, members, size)
        if in_order:
            parcel.in_order.append(self._senders)
        return parcel, self._senders

    def _stop_collecting(self, entity: EntityPath) -> None:
        parcel = self._parcels.pop(entity.key, None)
        if parcel is not None:
            parcel.full.set()

    async def _send_parcel(self, parcel: _Parcel) -> None:
        try:
            with trio.move_on_after(parcel.rule.wait):
                await parcel.full.wait()
            if parcel.in_order:
                await parcel.turn.come()
            else:
                parcel.turn.release()
            parcel.closed = True
            if self._parcels.get(parcel.entity.key) is parcel:
                del self._parcels[parcel.entity.key]
            parcel.verdict = OutcomeUnknown(f"{parcel.entity}: the gateway was shut down")
            try:
                with answered_within(parcel.rule.send_timeout, f"from {parcel.entity}"):
                    await self._send_together(parcel)
            except OutcomeUnknown as error:
                parcel.verdict = error
        finally:
            parcel.closed = True
            parcel.turn.release()
            parcel.done.set()

    async def _send_together(self, parcel: _Parcel) -> None:
        members = [member for sent in parcel.members.values() for member in sent]
        try:
            if len(members) > 1:
                pack = await self._packed([encoded for _, encoded in members])
                parcel.verdict = await send_accepted_by(self.broker, parcel.entity, [pack])
            elif members:
                parcel.verdict = await send_accepted_by(self.broker, parcel.entity, [members[0][0]])
        except _FAULTS as error:
            if len(members) > 1:
                await self._send_each_alone(parcel)
            else:
                parcel.verdict = error
        except BrokerError as error:
            parcel.verdict = error

    async def _send_each_alone(self, parcel: _Parcel) -> None:
        """
        Send each sender's messages separately: the messages of one sender may be at fault, or the
        size of the pack.
        """

        async def send(sender: int) -> None:
            try:
                parcel.verdicts[sender] = await send_accepted_by(
                    self.broker, parcel.entity, parcel.messages_of(sender)
                )
            except BrokerError as error:
                parcel.verdicts[sender] = error

        async def send_in_order() -> None:
            senders = [sender for sender in parcel.members if sender in parcel.in_order]
            batches = [parcel.messages_of(sender) for sender in senders]
            answers = await send_each(self.broker, parcel.entity, batches)
            for sender, answer in zip(senders, answers, strict=True):
                # `send_each` doesn't return which namespace accepted the messages.
                parcel.verdicts[sender] = AcceptedBy.PRIMARY if answer is None else answer

        async with trio.open_nursery() as nursery:
            if parcel.in_order:
                nursery.start_soon(send_in_order)
            for sender in parcel.members:
                if sender not in parcel.in_order:
                    nursery.start_soon(send, sender)

    async def _packed(self, members: Sequence[bytes]) -> Message:
        data = packs.joined(members)
        body = await in_thread(len(data), lambda: compressed(data))
        return packs.pack_of(body, len(data), self.new_id())

    def _encoded(self, message: Message) -> bytes:
        try:
            return self.codec.encode(message)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[PackedReceiver]:
        """
        As `Broker.open_receiver`.

        Receive-and-delete locks packs too, and deletes a pack when the last of its messages is
        received.
        """
        async with self.broker.open_receiver(entity, ReceiveMode.PEEK_LOCK) as inner:
            yield PackedReceiver(
                inner=inner,
                broker=self.broker,
                entity=entity,
                mode=mode,
                codec=self.codec,
                clock=self.clock,
            )

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """
        As `Peeks.peek`; a pack is returned with all of its messages, even beyond the limit. Packs
        of more than 64 MiB together, decompressed, are returned as they are.
        """
        peeks = required(self.broker, Peeks)
        found = await peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        return as_peeked(self.codec, found)


def _refuse_reserved(messages: Sequence[Message]) -> None:
    for message in messages:
        packs.refuse_reserved(message.properties)


def _size(members: Sequence[tuple[Message, bytes]]) -> int:
    return sum(len(encoded) + packs.OVERHEAD for _, encoded in members)
