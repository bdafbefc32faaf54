"""
Many small messages as one: gathered for a moment when they are sent, and taken apart when received.

A send returns when its pack was accepted, and has the pack's outcome: what is unknown of one is
unknown of all that are in it. A pack that is refused for what is in it is sent anew as what each
sender has sent, so that none has an answer to the messages of others. A pack of one is the message
as it is.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from fnmatch import fnmatchcase
from typing import Final

import attrs
import trio

from gateway.claims.compression import compressed, in_thread
from gateway.claims.desk import Codec
from gateway.claims.options import PackingRule
from gateway.claims.unpacking import PackedReceiver, as_shown
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
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.passing import PassesOn
from gateway.ports import Broker, NewId, WallClock

_FAULTS: Final = (
    InvalidRequest,
    MessageTooLarge,
    NotSupported,
)  # of a message, and nothing is sent


@attrs.define(eq=False)
class _Parcel:
    """Messages that wait to be sent together, by who sends them."""

    entity: EntityPath
    rule: PackingRule
    members: dict[int, list[tuple[Message, bytes]]] = attrs.field(factory=dict)
    count: int = 0
    size: int = 0
    closed: bool = False
    full: trio.Event = attrs.field(factory=trio.Event)
    done: trio.Event = attrs.field(factory=trio.Event)
    verdict: Leg | BrokerError = attrs.field(
        factory=lambda: Unavailable("the gateway ends: nothing was sent")
    )
    verdicts: dict[int, Leg | BrokerError] = attrs.field(factory=dict)  # of those sent alone

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
        """Its messages aren't sent, if they aren't on their way yet."""
        if not self.closed:
            members = self.members.pop(sender)
            self.count -= len(members)
            self.size -= _size(members)


@attrs.define(eq=False, kw_only=True)
class PackedBroker(PassesOn):
    """
    `Broker`, with all capabilities that `broker` has, and a `Service`: without `run` nothing is
    packed. Sessions and deferred messages are never packed, and pass.
    """

    broker: Broker
    rules: tuple[PackingRule, ...]
    codec: Codec
    clock: WallClock
    new_id: NewId
    _parcels: dict[str, _Parcel] = attrs.field(factory=dict, init=False)  # the open ones
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _senders: int = attrs.field(default=0, init=False)

    @property
    def inner(self) -> Broker:
        return self.broker

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send what was gathered, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`, perhaps together with messages of others.

        Cancelled while it waits for others, nothing was sent; after that the outcome is unknown.
        """
        for message in messages:
            packs.refuse_reserved(message.properties)
        rule = next((r for r in self.rules if fnmatchcase(entity.key, r.match.lower())), None)
        nursery = self._nursery
        packable = bool(messages) and all(map(packs.may_be_packed, messages))
        if rule is None or nursery is None or not packable:
            return await self.broker.send(entity, messages)
        members = [(message, self._encoded(message)) for message in messages]
        size = _size(members)
        if len(members) > rule.max_messages or size > rule.max_pack:
            return await self.broker.send(entity, messages)
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
            raise copy(verdict) from verdict  # each sender has one of its own
        return verdict

    async def _send_parcel(self, parcel: _Parcel) -> None:
        try:
            with trio.move_on_after(parcel.rule.wait):
                await parcel.full.wait()
            parcel.closed = True
            if self._parcels.get(parcel.entity.key) is parcel:
                del self._parcels[parcel.entity.key]
            parcel.verdict = OutcomeUnknown(f"{parcel.entity}: the gateway ended")
            with trio.move_on_after(parcel.rule.send_timeout) as scope:
                await self._send_together(parcel)
            if scope.cancelled_caught:
                seconds = parcel.rule.send_timeout
                parcel.verdict = OutcomeUnknown(f"{parcel.entity}: no answer in {seconds:g} s")
        finally:
            parcel.closed = True
            parcel.done.set()

    async def _send_together(self, parcel: _Parcel) -> None:
        await trio.lowlevel.checkpoint()
        members = [member for sent in parcel.members.values() for member in sent]
        try:
            if len(members) > 1:
                pack = await self._packed([encoded for _, encoded in members])
                parcel.verdict = await self.broker.send(parcel.entity, [pack])
            elif members:
                parcel.verdict = await self.broker.send(parcel.entity, [members[0][0]])
        except _FAULTS as error:
            if len(members) > 1:
                await self._send_each_alone(parcel)
            else:
                parcel.verdict = error
        except BrokerError as error:
            parcel.verdict = error

    async def _send_each_alone(self, parcel: _Parcel) -> None:
        """One sender's messages may be at fault, or the pack of all of them."""

        async def send(sender: int, messages: Sequence[Message]) -> None:
            await trio.lowlevel.checkpoint()
            try:
                parcel.verdicts[sender] = await self.broker.send(parcel.entity, messages)
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

        Receive and delete locks too, and deletes a pack when the last of its messages is taken.
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
        """As `Peeks.peek`; all messages of a pack are shown, even if those are too many."""
        found = await super().peek(entity, from_sequence=from_sequence, limit=limit)
        return [shown for each in found for shown in as_shown(self.codec, each)]


def _size(members: Sequence[tuple[Message, bytes]]) -> int:
    return sum(len(encoded) + packs.OVERHEAD for _, encoded in members)
