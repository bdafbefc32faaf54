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
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks, send_accepted_by
from gateway.claims.claim_check import Codec
from gateway.claims.compression import compressed, in_thread
from gateway.claims.options import PackingRule
from gateway.claims.unpacking import PackedReceiver, as_peeked
from gateway.deadlines import answered_within
from gateway.domain import pack as packs
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
    members: dict[int, list[tuple[Message, bytes]]] = attrs.field(factory=dict)
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

    def withdraw(self, sender: int) -> None:
        """Remove a sender's messages, unless they are being sent."""
        if not self.closed:
            members = self.members.pop(sender)
            self.count -= len(members)
            self.size -= _size(members)


@attrs.define(eq=False, kw_only=True)
class PackedBroker(ForwardingBroker):
    """
    A `Broker`, and a `Service`: without `run` nothing is packed. Sessions and deferred messages are
    never packed, and pass.
    """

    broker: Broker
    rules: tuple[PackingRule, ...]
    codec: Codec
    clock: WallClock
    new_id: NewId
    _parcels: dict[str, _Parcel] = attrs.field(factory=dict, init=False)  # those that still collect
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _senders: int = attrs.field(default=0, init=False)

    @property
    def inner(self) -> Broker:
        return self.broker

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the collected messages, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`, with the cancellation of `send_diverting`."""
        await self.send_diverting(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `Diverts.send_diverting`, perhaps together with messages of other senders.

        If cancelled while it still collects, nothing was sent; after that the outcome is unknown.
        """
        for message in messages:
            packs.refuse_reserved(message.properties)
        rule = next((r for r in self.rules if fnmatchcase(entity.key, r.match.lower())), None)
        nursery = self._nursery
        packable = bool(messages) and all(map(packs.may_be_packed, messages))
        if rule is None or nursery is None or not packable:
            return await send_accepted_by(self.broker, entity, messages)
        members = [(message, self._encoded(message)) for message in messages]
        size = _size(members)
        if len(members) > rule.max_messages or size > rule.max_pack:
            return await send_accepted_by(self.broker, entity, messages)
        parcel = self._parcels.get(entity.key)
        if parcel is None or not parcel.has_room(len(members), size):
            if parcel is not None:
                parcel.full.set()
            parcel = self._parcels[entity.key] = _Parcel(entity, rule)
            nursery.start_soon(self._send_parcel, parcel)
        self._senders += 1
        sender = self._senders
        parcel.add(sender, members, size)
        try:
            await parcel.done.wait()
        except trio.Cancelled:
            parcel.withdraw(sender)
            raise
        verdict = parcel.verdicts.get(sender, parcel.verdict)
        if isinstance(verdict, BrokerError):
            raise copy(verdict) from verdict  # each sender raises its own exception
        return verdict

    async def _send_parcel(self, parcel: _Parcel) -> None:
        try:
            with trio.move_on_after(parcel.rule.wait):
                await parcel.full.wait()
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
            parcel.done.set()

    async def _send_together(self, parcel: _Parcel) -> None:
        await trio.lowlevel.checkpoint()
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
        Send each sender's messages by themselves: one sender's messages may be at fault, or the
        size of the pack.
        """

        async def send(sender: int, messages: Sequence[Message]) -> None:
            await trio.lowlevel.checkpoint()
            try:
                parcel.verdicts[sender] = await send_accepted_by(
                    self.broker, parcel.entity, messages
                )
            except BrokerError as error:
                parcel.verdicts[sender] = error

        async with trio.open_nursery() as nursery:
            for sender, members in parcel.members.items():
                nursery.start_soon(send, sender, [message for message, _ in members])

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
        """As `Peeks.peek`; a pack is returned with all of its messages, even beyond the limit."""
        peeks = required(self.broker, Peeks)
        found = await peeks.peek(entity, from_sequence=from_sequence, limit=limit)
        return [peeked for each in found for peeked in as_peeked(self.codec, each)]


def _size(members: Sequence[tuple[Message, bytes]]) -> int:
    return sum(len(encoded) + packs.OVERHEAD for _, encoded in members)
