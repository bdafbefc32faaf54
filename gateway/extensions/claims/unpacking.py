"""
Receives packs as the messages in them, each of which is settled by itself.

    completed        the pack is completed when all of its messages are
    anything else    the message is sent again, alone, and so settled within its pack: it is
                     delivered with a delivery count of 1, and then settled like any other
    lock lost        the whole pack is delivered again, including its completed messages

If the entity can't be sent to (subscriptions, dead letters), the whole pack is settled as the last
message that wasn't completed.
"""

import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.capabilities import ReceivesAvailable, ReceivesDeferred
from gateway.capabilities.settling import SettlementDoubts, settle_all
from gateway.domain.clocks.lock_ends import OVER, LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, MessageError, Outcome
from gateway.domain.message import Complete, DeadLetter, Delivery, Message, ReceiveMode, Settlement
from gateway.extensions.claims import pack as packs
from gateway.extensions.claims.claim_check import MessageCodec
from gateway.extensions.claims.compression import decompressed
from gateway.extensions.claims.waiting import WaitingReceives
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver, WallClock

PACK_CORRUPT: Final = "PackCorrupt"
AT_ONCE: Final = 16  # deliveries, each of which may be a pack
# bytes, decompressed: a sender that bypasses the gateway can compress a pack by any factor
MOST_PEEKED: Final = 4 * packs.MAX_PACK
_NO_MESSAGE: Final = Message()


@attrs.define(eq=False)
class _Pack:
    """A received pack, and its unsettled messages."""

    delivery: Delivery
    left: dict[str, Message]  # by lock token
    lock: LockEnds = OVER
    renew_at: float = -math.inf  # by `trio.current_time()`: half of the lock is over
    verdict: Settlement = Complete()  # noqa: RUF009 a frozen value


@attrs.define(eq=False, kw_only=True)
class PackedReceiver(Wrapper):
    """
    A `Receiver` whose `SettlesMany`, `ReceivesDeferred` and `ReceivesAvailable` are those of
    `inner`, with packs taken apart.
    """

    inner: Receiver
    broker: Broker  # receives the messages that are sent again
    entity: EntityPath
    mode: ReceiveMode
    codec: MessageCodec
    clock: WallClock
    _waiting: deque[Delivery] = attrs.field(factory=deque, init=False)
    _deleted_already: deque[Delivery] = attrs.field(factory=deque, init=False)  # for the next call
    _packs: dict[str, _Pack] = attrs.field(factory=dict, init=False)  # by lock token of a message
    _asking: WaitingReceives = attrs.field(factory=WaitingReceives, init=False)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`; messages of packs that were received before come first."""
        return await self._receive(limit, self._fill)

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`, and `receive`."""
        return await self._receive(limit, self._poll_once)

    async def _receive(
        self, limit: int, fill: Callable[[int], Awaitable[None]]
    ) -> Sequence[Delivery]:
        try:
            return await self._hand_out(limit, fill)
        finally:
            if self._waiting:
                self._asking.call_one()  # the remaining messages are the other task's now

    async def _hand_out(
        self, limit: int, fill: Callable[[int], Awaitable[None]]
    ) -> Sequence[Delivery]:
        await self._keep_locked()
        self._forget_lost()
        if self.mode is ReceiveMode.PEEK_LOCK:
            await fill(limit)
            count = min(limit, len(self._waiting))
            return [self._as_locked(self._waiting.popleft()) for _ in range(count)]
        taken: list[Delivery] = []
        while self._deleted_already and len(taken) < limit:
            taken.append(self._deleted_already.popleft())
        while not taken:
            await fill(limit)
            if not self._waiting:
                break
            while self._waiting and len(taken) < limit:
                delivery = self._waiting.popleft()
                try:
                    taken += await self._deleted(delivery)
                except BaseException:
                    self._waiting.appendleft(delivery)
                    self._deleted_already.extendleft(reversed(taken))
                    raise
        # the messages are deleted: no cancellation may happen now
        await trio.lowlevel.cancel_shielded_checkpoint()
        return taken

    async def _fill(self, limit: int) -> None:
        """Return when a message can be delivered."""
        await trio.lowlevel.checkpoint()  # a caller's loop over a pack must let others run
        while not self._waiting:
            taken: Sequence[Delivery] = ()
            with self._asking.until():
                taken = await self.inner.receive(min(limit, AT_ONCE))
            await self._open_all(taken)

    async def _poll_once(self, limit: int) -> None:
        """Return when a message can be delivered, or none is available."""
        await trio.lowlevel.checkpoint()  # a caller may look again and again
        receiver, found = required(self.inner, ReceivesAvailable), True
        while found and not self._waiting:
            taken = await receiver.receive_available(min(limit, AT_ONCE))
            await self._open_all(taken)
            found = bool(taken)

    async def _open_all(self, deliveries: Sequence[Delivery]) -> None:
        for damaged, why in self._open(deliveries):
            with suppress(LockLost):  # the message is then delivered again
                await self.inner.settle(damaged, why)

    def _open(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, DeadLetter]]:
        """Queue all messages for delivery, in order; return the damaged packs."""
        damaged = []
        for delivery in deliveries:
            try:
                self._waiting.extend(self._members(delivery))
            except MessageError as error:
                if self.entity.is_dead_letter:
                    self._waiting.append(delivery)  # dead letters are shown unchanged
                else:
                    why = DeadLetter(reason=PACK_CORRUPT, description=str(error))
                    damaged.append((delivery, why))
        return damaged

    def _members(self, delivery: Delivery) -> Sequence[Delivery]:
        """
        Register a pack and return its messages; return any other message unchanged.

        Raises:
            MessageError: the pack can't be decoded.
        """
        if not packs.is_pack(delivery.message):
            return [delivery]
        members = _unpacked(self.codec, delivery)
        pack = _Pack(
            delivery=attrs.evolve(delivery, message=_NO_MESSAGE),
            left={each.lock_token or "": each.message for each in members},
        )
        self._record_lock(pack, delivery.locked_until)
        self._packs.update((token, pack) for token in pack.left)
        return members

    async def _deleted(self, delivery: Delivery) -> Sequence[Delivery]:
        """
        The messages after their deletion, as returned to the caller; empty if the delivery will be
        repeated.
        """
        try:
            await self.settle(delivery, Complete())
        except BrokerError as error:
            # The delivery may be repeated. If it isn't, this is the only one.
            if error.outcome is Outcome.NOT_SENT:
                return ()
        return (attrs.evolve(delivery, lock_token=None, locked_until=None),)

    async def _keep_locked(self) -> None:
        """
        Renew the locks of packs with undelivered messages at half of their duration.

        Otherwise a slow receiver would never reach the end of a pack: the pack would be delivered
        again, from its beginning, until it is dead-lettered.
        """
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
        self._record_lock(pack, until)
        return until

    def _record_lock(self, pack: _Pack, until: datetime | None) -> None:
        """Note that the pack's lock was received or renewed just now."""
        now = trio.current_time()
        pack.delivery = attrs.evolve(pack.delivery, locked_until=until)
        pack.lock = LockEnds.of(until, self.clock(), now)
        pack.renew_at = (now + pack.lock.earliest) / 2

    def _as_locked(self, delivery: Delivery) -> Delivery:
        """The delivery with the end of its pack's lock, which may have been renewed meanwhile."""
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
        """As `Receiver.settle`; for a message of a pack as this module describes."""
        token = (delivery.lock_token or "").lower()
        pack = self._packs.get(token)
        if pack is None:
            with self._doubts.settling(token):
                await self.inner.settle(delivery, settlement)
            return
        with self._doubts.settling(token):
            await self._settle_member(pack, token, settlement)

    async def _settle_member(self, pack: _Pack, token: str, settlement: Settlement) -> None:
        if pack.lock.latest <= trio.current_time():
            self._packs.pop(token, None)
            raise LockLost(
                f"{self.entity}: the pack's lock expired; all of its messages are delivered again"
            )
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
        """As `SettlesMany.settle_many`; messages of packs are settled one after the other."""
        if not any((delivery.lock_token or "") in self._packs for delivery, _ in settlements):
            return await settle_all(self.inner, settlements)
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
        """As `Receiver.renew`; for a message of a pack, the lock of all its messages."""
        pack = self._packs.get((delivery.lock_token or "").lower())
        return await (self.inner.renew(delivery) if pack is None else self._renew(pack))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`; a pack is returned with all its messages, which may
        be more than the caller asked for. A pack that can't be decoded is returned as it is.
        """
        receiver = required(self.inner, ReceivesDeferred)
        taken: list[Delivery] = []
        for delivery in await receiver.receive_deferred(sequence_numbers):
            try:
                taken += self._members(delivery)
            except MessageError:
                taken.append(delivery)
        if self.mode is ReceiveMode.PEEK_LOCK:
            return taken
        return [found for each in taken for found in await self._deleted(each)]


def as_peeked(
    codec: MessageCodec, deliveries: Iterable[Delivery], most: int = MOST_PEEKED
) -> list[Delivery]:
    """
    The deliveries for a peek: the messages of packs of up to `most` bytes together, decompressed;
    any other message, a damaged pack and further packs unchanged.
    """
    shown: list[Delivery] = []
    for delivery in deliveries:
        members: Sequence[Delivery] = [delivery]
        if packs.is_pack(delivery.message):
            with suppress(MessageError):
                most -= packs.size_of(delivery.message)
                members = _unpacked(codec, delivery) if most >= 0 else members
        shown += members
    return shown


def _unpacked(codec: MessageCodec, delivery: Delivery) -> Sequence[Delivery]:
    """
    Return a delivery for each message of the pack, all with the pack's sequence number, each with
    its own lock token.

    Raises:
        MessageError: the pack can't be decoded.
    """
    body, size = delivery.message.body, packs.size_of(delivery.message)
    if not isinstance(body, bytes):
        raise MessageError("a pack's body must be one data section")
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
    """The lock token of a message: a UUID, as all lock tokens are, and always the same."""
    if of_pack is None:
        return None
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{of_pack.lower()}/{index}"))
