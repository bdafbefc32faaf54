"""
Receives packs as the messages that are in them, each of which is settled by itself.

    completed        the pack is completed when all of its messages are
    anything else    the message is sent anew, alone, and is settled within its pack by that: it
                     comes again with a delivery count of 1, and can be settled as any other then
    lock lost        the whole pack comes again, also what was completed of it

Where nobody can send (subscriptions, dead letters) the whole pack is settled as the last message
that wasn't completed.
"""

import math
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.capabilities import ReceivesDeferred
from gateway.claims.compression import decompressed
from gateway.claims.desk import Codec
from gateway.claims.settling import settle_each
from gateway.claims.waiting import Waiting
from gateway.domain import pack as packs
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, MessageError, NotSupported, Outcome
from gateway.domain.lock_ends import OVER, LockEnds
from gateway.domain.message import (
    Complete,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.ports import Broker, Receiver, WallClock

PACK_CORRUPT: Final = "PackCorrupt"
AT_ONCE: Final = 16  # deliveries, each of which may be a pack
_NO_MESSAGE: Final = Message()


@attrs.define(eq=False)
class _Pack:
    """A pack that was taken, and what of it isn't settled yet."""

    delivery: Delivery
    left: dict[str, Message]  # by lock token
    lock: LockEnds = OVER
    renew_at: float = -math.inf  # trio.current_time(): half of the lock is over
    verdict: Settlement = Complete()  # noqa: RUF009 a frozen value


@attrs.define(eq=False, kw_only=True)
class PackedReceiver:
    """
    `Receiver`, with `SettlesMany` and `ReceivesDeferred`; the latter is `NotSupported` without
    that of `inner`.
    """

    inner: Receiver
    broker: Broker  # takes what is sent anew
    entity: EntityPath
    mode: ReceiveMode
    codec: Codec
    clock: WallClock
    _waiting: deque[Delivery] = attrs.field(factory=deque, init=False)
    _deleted_already: deque[Delivery] = attrs.field(factory=deque, init=False)  # for who asks next
    _packs: dict[str, _Pack] = attrs.field(factory=dict, init=False)  # by token of a message
    _asking: Waiting = attrs.field(factory=Waiting, init=False)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`; first what is left of packs that were taken."""
        try:
            return await self._receive(limit)
        finally:
            if self._waiting:
                self._asking.call_one()  # what is left is that one's matter now

    async def _receive(self, limit: int) -> Sequence[Delivery]:
        await self._keep_locked()
        self._forget_lost()
        if self.mode is ReceiveMode.PEEK_LOCK:
            await self._fill(limit)
            count = min(limit, len(self._waiting))
            return [self._as_locked(self._waiting.popleft()) for _ in range(count)]
        taken: list[Delivery] = []
        while self._deleted_already and len(taken) < limit:
            taken.append(self._deleted_already.popleft())
        while not taken:
            await self._fill(limit)
            while self._waiting and len(taken) < limit:
                delivery = self._waiting.popleft()
                try:
                    taken += await self._deleted(delivery)
                except BaseException:
                    self._waiting.appendleft(delivery)
                    self._deleted_already.extendleft(reversed(taken))
                    raise
        await trio.lowlevel.cancel_shielded_checkpoint()  # they are deleted: no cancellation now
        return taken

    async def _fill(self, limit: int) -> None:
        """Return when there is something to hand over."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            taken: Sequence[Delivery] = ()
            with self._asking.until():
                taken = await self.inner.receive(min(limit, AT_ONCE))
            for damaged, why in self._open(taken):
                with suppress(LockLost):  # then it comes again
                    await self.inner.settle(damaged, why)

    def _open(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, DeadLetter]]:
        """Let all messages wait to be handed over, in order; return the packs that are damaged."""
        damaged = []
        for delivery in deliveries:
            try:
                self._waiting.extend(self._members(delivery))
            except MessageError as error:
                if self.entity.is_dead_letter:
                    self._waiting.append(delivery)  # somebody looks there
                else:
                    why = DeadLetter(reason=PACK_CORRUPT, description=str(error))
                    damaged.append((delivery, why))
        return damaged

    def _members(self, delivery: Delivery) -> Sequence[Delivery]:
        """
        The messages of a pack, of which it's known from now on; what is none, as it is.

        Raises:
            MessageError: the pack can't be read.
        """
        if not packs.is_pack(delivery.message):
            return [delivery]
        members = _unpacked(self.codec, delivery)
        pack = _Pack(
            delivery=attrs.evolve(delivery, message=_NO_MESSAGE),
            left={each.lock_token or "": each.message for each in members},
        )
        self._note_lock(pack, delivery.locked_until)
        self._packs.update((token, pack) for token in pack.left)
        return members

    async def _deleted(self, delivery: Delivery) -> Sequence[Delivery]:
        """What is handed over when it was deleted: nothing, where it comes again."""
        try:
            await self.settle(delivery, Complete())
        except BrokerError as error:
            # Perhaps it comes again. If it doesn't, this is the only time.
            if error.outcome is Outcome.NOT_SENT:
                return ()  # noqa: ASYNC910 it waits, or raises after that
        return (attrs.evolve(delivery, lock_token=None, locked_until=None),)  # noqa: ASYNC910 so

    async def _keep_locked(self) -> None:
        """
        Renew the locks of packs of which something waits to be handed over, when half is over.

        Else who works slowly would never see the end of a pack: it would come again, from the
        beginning, until it is a dead letter.
        """
        await trio.lowlevel.checkpoint()
        tokens = [each.lock_token or "" for each in self._waiting]
        for pack in {id(each): each for each in map(self._packs.get, tokens) if each}.values():
            if pack.renew_at <= trio.current_time() < pack.lock.latest:
                with trio.move_on_at(pack.lock.latest), suppress(BrokerError):
                    await self._renew(pack)

    async def _renew(self, pack: _Pack) -> datetime:
        try:
            until = await self.inner.renew(pack.delivery)
        except LockLost:
            pack.lock = OVER
            raise
        self._note_lock(pack, until)
        return until

    def _note_lock(self, pack: _Pack, until: datetime | None) -> None:
        """It was taken or renewed just now."""
        now = trio.current_time()
        pack.delivery = attrs.evolve(pack.delivery, locked_until=until)
        pack.lock = LockEnds.of(until, self.clock(), now)
        pack.renew_at = (now + pack.lock.earliest) / 2

    def _as_locked(self, delivery: Delivery) -> Delivery:
        """With the end of its pack's lock, which may have been renewed meanwhile."""
        pack = self._packs.get(delivery.lock_token or "")
        if pack is None:
            return delivery
        return attrs.evolve(delivery, locked_until=pack.delivery.locked_until)

    def _forget_lost(self) -> None:
        now = trio.current_time()
        lost = {token for token, pack in self._packs.items() if pack.lock.latest <= now}
        if lost:
            for token in lost:
                del self._packs[token]
            self._waiting = deque(
                each for each in self._waiting if (each.lock_token or "") not in lost
            )

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As `Receiver.settle`; a message of a pack as above."""
        token = (delivery.lock_token or "").lower()
        pack = self._packs.get(token)
        if pack is None:
            await self.inner.settle(delivery, settlement)
            return
        await trio.lowlevel.checkpoint()
        if pack.lock.latest <= trio.current_time():
            self._packs.pop(token, None)
            raise LockLost(f"{self.entity}: the lock of the pack ran out, all of it comes again")
        if not isinstance(settlement, Complete):
            await self._put_aside(pack, token, settlement)
        if len(pack.left) == 1:
            try:
                await self.inner.settle(pack.delivery, pack.verdict)
            except LockLost:
                self._packs.pop(token, None)
                raise
        pack.left.pop(token, None)
        self._packs.pop(token, None)

    async def _put_aside(self, pack: _Pack, token: str, settlement: Settlement) -> None:
        await trio.lowlevel.checkpoint()
        assert not isinstance(settlement, Complete)
        if self.entity.is_dead_letter or self.entity.is_subscription:
            pack.verdict = settlement
            return
        message = pack.left[token]
        properties = {**message.properties, **settlement.properties}
        await self.broker.send(self.entity, [attrs.evolve(message, properties=properties)])

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`; with messages of packs one after the other."""
        await trio.lowlevel.checkpoint()
        if not any((delivery.lock_token or "") in self._packs for delivery, _ in settlements):
            return await settle_each(self.inner, settlements)
        verdicts: list[BrokerError | None] = []
        for delivery, settlement in settlements:
            try:
                await self.settle(delivery, settlement)
            except BrokerError as error:
                verdicts.append(error)
            else:
                verdicts.append(None)
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`; of a message of a pack, for all of them."""
        pack = self._packs.get((delivery.lock_token or "").lower())
        return await (self.inner.renew(delivery) if pack is None else self._renew(pack))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`; of a pack all its messages, which are more than it
        was asked for. One that can't be read is handed over as it is.
        """
        if not isinstance(self.inner, ReceivesDeferred):
            raise NotSupported("this namespace can't put messages aside")
        taken: list[Delivery] = []
        for delivery in await self.inner.receive_deferred(sequence_numbers):
            try:
                taken += self._members(delivery)
            except MessageError:
                taken.append(delivery)
        if self.mode is ReceiveMode.PEEK_LOCK:
            return taken
        return [found for each in taken for found in await self._deleted(each)]


def as_shown(codec: Codec, delivery: Delivery) -> Sequence[Delivery]:
    """For who only looks: the messages of a pack; what is none, or damaged, as it is."""
    if not packs.is_pack(delivery.message):
        return [delivery]
    try:
        return _unpacked(codec, delivery)
    except MessageError:
        return [delivery]


def _unpacked(codec: Codec, delivery: Delivery) -> Sequence[Delivery]:
    """
    One delivery for each message, all with the pack's sequence number, each with a token.

    Raises:
        MessageError: the pack can't be read.
    """
    body, size = delivery.message.body, packs.size_of(delivery.message)
    if not isinstance(body, bytes):
        raise MessageError("a pack's body is one data section")
    members = packs.split(decompressed(body, size))
    return [
        attrs.evolve(
            delivery,
            message=codec.decode(member),
            lock_token=_token(delivery.lock_token, index),
        )
        for index, member in enumerate(members)
    ]


def _token(of_pack: str | None, index: int) -> str | None:
    """A UUID, as all lock tokens are, and the same each time."""
    if of_pack is None:
        return None
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{of_pack.lower()}/{index}"))
