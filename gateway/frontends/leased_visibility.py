"""
Receiving as Storage Queue does, from a namespace that has only locks: `Visibility` on `Leases`.

A hidden message is locked; its lock is renewed until the message becomes visible, and then the
message is abandoned. A receipt is valid for that time and doesn't survive the process: after a
restart the lock holds for its own duration, and then the message is delivered again.

Before a namespace that hides messages itself and whose receipts any process can use
(`HidesMessages`, `SettlesByToken`), clients get the namespace's own receipts, and no lock is held
here.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import Clears, Peeks
from gateway.capabilities.settling import SettlementDoubts
from gateway.changes import Changes, RunsTasks
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    LockLost,
    MessageNotFound,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.events.gateway import MovedToPoison
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    Delivery,
    Message,
    MessageState,
)
from gateway.domain.storage_queue import (
    UNLIMITED,
    PopReceipt,
    TakenMessage,
    TermsOf,
    poison_queue,
    too_many,
)
from gateway.frontends.empty_answers import away_for_outage, receive_in_time
from gateway.frontends.leasing import Leasing
from gateway.offering import required
from gateway.ports import Broker, Observer, WallClock

LOOK: Final = 1.0  # seconds within which a namespace that has messages delivers some
_CLEAR: Final = 100  # messages received at once to be deleted
_PAGE: Final = 100  # messages that are peeked together, if the first ones aren't visible
_REMEMBERED: Final = 10.0  # seconds for which a queue's metadata is taken as unchanged
MOST_REMEMBERED: Final = 1000  # queues
_PAUSE: Final = 1.0  # seconds until a renewal that failed is tried again


@attrs.define(eq=False)
class _LeasedMessage:
    entity: EntityPath
    sequence: int
    token: str
    stamp: int
    until: float  # trio.current_time()
    changes: Changes = attrs.field(factory=Changes)
    over: bool = False


@attrs.define(eq=False)
class LeasedVisibility(RunsTasks):
    """
    Implements `capabilities.Visibility` and `ports.Service`: hidden messages stay locked as long as
    `run` runs. The caller also has to run `leases`, a service of its own.

    Raises `Busy` from `leases` if too many messages are held.
    """

    _broker: Broker
    _leases: Leasing
    _wall_clock: WallClock
    _observer: Observer | None = None
    # By queue and sequence number, which all messages of a pack share.
    _held: dict[tuple[str, int], list[_LeasedMessage]] = attrs.field(factory=dict, init=False)
    _texts: Bounded[str, tuple[str | None, float]] = attrs.field(
        factory=lambda: Bounded(MOST_REMEMBERED, renews=True), init=False
    )
    _last_stamp: int = attrs.field(default=0, init=False)
    # By receipt: a message that isn't held any more has no lease that could tell.
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> TakenMessage:
        """
        Not supported: the underlying broker doesn't return a sequence number for a sent message.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("this namespace can't return a receipt for a sent message")

    async def sent(self, entity: EntityPath, message_id: str) -> PopReceipt | None:
        """
        As `Visibility.sent`: always None, because the underlying broker reports no receipt of a
        sent message.
        """
        return None

    async def dequeue(
        self, entity: EntityPath, limit: int, terms_of: TermsOf
    ) -> Sequence[TakenMessage]:
        """
        As `Visibility.dequeue`. On an empty queue it returns after a second, unless the namespace
        tells that there is nothing.

        The queue's metadata is read again after `_REMEMBERED` seconds.
        """
        if self._nursery is None:
            raise Unavailable("the gateway isn't running: it is starting or shutting down")
        terms = terms_of(await self._user_metadata(entity))
        with away_for_outage():
            deliveries = await self._received(entity, limit, terms.hidden)
        taken = [self._hide(self._nursery, entity, each, terms.hidden) for each in deliveries]
        if terms.poison_after is None:
            return taken
        return [
            each
            for each in taken
            if not await self._move_to_poison(entity, each, terms.poison_after)
        ]

    async def _received(
        self, entity: EntityPath, limit: int, hidden: timedelta
    ) -> Sequence[Delivery]:
        if await self._leases.hides(entity):
            return await self._leases.receive_hidden(entity, limit, hidden)
        if await self._leases.asks_once(entity):
            return await self._leases.poll(entity, limit)
        return await self._looked(entity, limit)

    async def _looked(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        return await receive_in_time(self._leases, entity, limit, LOOK, waits=False)

    async def _user_metadata(self, entity: EntityPath) -> str | None:
        """
        The queue's user metadata; if it can't be read now, the last known one. The first answer is
        waited for as long as the client waits.
        """
        now = trio.current_time()
        is_known = entity.key in self._texts
        known, until = self._texts.get(entity.key, (None, now))
        if until > now:
            return known
        # A client that may receive may not read the metadata; and if the namespace fails, the
        # receive reports it.
        with suppress(BrokerError), trio.move_on_after(LOOK if is_known else math.inf):
            known = (await self._broker.inspect(entity)).properties.user_metadata
        self._texts[entity.key] = known, now + _REMEMBERED
        return known

    async def _move_to_poison(self, entity: EntityPath, taken: TakenMessage, after: int) -> bool:
        """
        Move a message that was delivered too often to its poison queue. Return whether it was
        removed from its own.

        If it can't be sent there, it stays locked as it was received. A crash between the two steps
        leaves it in both queues.
        """
        if taken.receipt is None or taken.delivery.delivery_count <= after:
            return False
        delivery, target = taken.delivery, poison_queue(entity)
        why = too_many(entity, delivery.delivery_count - 1, after)
        says = {DEAD_LETTER_REASON: why.reason, DEAD_LETTER_DESCRIPTION: why.description}
        message = attrs.evolve(
            delivery.message,
            properties={**delivery.message.properties, **says},
            time_to_live=None,
            scheduled=None,
        )
        try:
            await self._send_to(target, message)
        except BrokerError:
            return False
        with suppress(BrokerError):  # the message is delivered again, and moved then
            await self.remove(entity, taken.receipt)
        if self._observer is not None:
            event = MovedToPoison(
                queue=entity,
                to=target,
                sequence_number=delivery.sequence_number,
                deliveries=delivery.delivery_count - 1,
            )
            self._observer.report(event)
        return True

    async def _send_to(self, queue: EntityPath, message: Message) -> None:
        try:
            await self._broker.send(queue, [message])
        except EntityNotFound:
            with suppress(EntityExists):  # another client was faster
                await self._broker.create_queue(queue, UNLIMITED)
            await self._broker.send(queue, [message])

    async def peek(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """
        As `Visibility.peek`, except that messages locked by others are included, since the broker
        doesn't report locks.

        Raises:
            NotSupported: the namespace can't peek.
        """
        peeks = required(self._broker, Peeks)
        found: list[Delivery] = []
        first, page = 0, limit
        while len(found) < limit:
            some = await peeks.peek(entity, from_sequence=first, limit=page)
            found += [each for each in some if self._is_visible(entity, each)]
            # Fewer than the limit: there are no more, or they are large, and enough for an answer.
            if not some or (found and len(some) < page):
                break
            page = _PAGE
            first = some[-1].sequence_number + 1
        return found[:limit]

    async def change(
        self, entity: EntityPath, receipt: PopReceipt, hidden: timedelta, body: bytes | None = None
    ) -> TakenMessage:
        """
        As `Visibility.change`. A body is changed first, in a step of its own.

        Raises:
            NotSupported: there is a new body, and the namespace can't change a body.
        """
        if receipt.token:
            with _as_storage_says():
                changed = await self._leases.hide(entity, receipt.token, hidden, body)
            return _handed_out(changed)
        with self._doubts.using(_name_of(entity, receipt)):
            held = self._find(entity, receipt)
            if body is not None:
                await self._renew(held, body)
        if not hidden:
            with self._doubts.settling(_name_of(entity, receipt)):
                await self._settle(held, Abandon())
            now = self._wall_clock()
            empty = Delivery(message=Message(), sequence_number=held.sequence, locked_until=now)
            return TakenMessage(delivery=empty, receipt=None)
        if body is None:
            await self._renew(held)
        held.until = trio.current_time() + hidden.total_seconds()
        held.stamp = self._new_stamp()
        held.changes.notify()
        return self._taken_message(
            held, Delivery(message=Message(), sequence_number=held.sequence), hidden
        )

    async def remove(self, entity: EntityPath, receipt: PopReceipt) -> None:
        """As `Visibility.remove`."""
        if receipt.token:
            with _as_storage_says():
                await self._leases.settle(entity, receipt.token, Complete())
            return
        with self._doubts.settling(_name_of(entity, receipt)):
            await self._settle(self._find(entity, receipt), Complete())

    async def clear(self, entity: EntityPath) -> None:
        """
        As `Visibility.clear`: message by message, if the namespace can't do it, and those first
        that are hidden here.
        """
        held = [each for (key, _), of in self._held.items() if key == entity.key for each in of]
        if await self._cleared_at_once(entity):
            for each in held:
                self._forget(each)
            return
        for each in held:
            with suppress(LockLost):  # it was settled, or is received below
                await self._settle(each, Complete())
        while deliveries := await self._looked(entity, _CLEAR):
            for delivery in deliveries:
                assert delivery.lock_token is not None, "a lease has one"
                await self._leases.settle(entity, delivery.lock_token, Complete())
        await self._check_cleared(entity)

    async def _cleared_at_once(self, entity: EntityPath) -> bool:
        try:
            await required(self._broker, Clears).clear_queue(entity)
        except NotSupported:
            return False
        return True

    async def _check_cleared(self, entity: EntityPath) -> None:
        try:
            info = await self._broker.inspect(entity)
        except (NotAuthorized, NotSupported):
            return  # who may receive may not count
        left = (info.active or 0) + (info.scheduled or 0)
        if left:
            raise OutcomeUnknown(
                f"{entity}: {left} messages are left, which are locked or scheduled; clear it again"
            )

    def _hide(
        self, nursery: trio.Nursery, entity: EntityPath, delivery: Delivery, hidden: timedelta
    ) -> TakenMessage:
        assert delivery.lock_token is not None, "a lease has one"
        if not self._leases.holds(delivery.lock_token):
            return _handed_out(delivery)
        held = _LeasedMessage(
            entity=entity,
            sequence=delivery.sequence_number,
            token=delivery.lock_token,
            stamp=self._new_stamp(),
            until=trio.current_time() + hidden.total_seconds(),
        )
        self._held.setdefault((entity.key, held.sequence), []).append(held)
        nursery.start_soon(self._keep, held)
        return self._taken_message(held, delivery, hidden)

    async def _keep(self, held: _LeasedMessage) -> None:
        """Renew the lock until the message becomes visible; then abandon it."""
        while not held.over and held.until > trio.current_time():
            now, lock = trio.current_time(), self._leases.lock_of(held.token)
            if lock.latest <= now:
                break
            with trio.move_on_at(min(held.until, (now + lock.earliest) / 2)):
                await held.changes.wait_next()
                continue
            if held.until > trio.current_time():
                await self._try_to_renew(held)
        if not held.over:
            await self._give_back(held)

    async def _try_to_renew(self, held: _LeasedMessage) -> None:
        try:
            await self._renew(held)
        except BrokerError:
            # The lock is lost, which the lease reports too, or it still holds and there is time for
            # another try.
            await trio.sleep(_PAUSE)

    async def _give_back(self, held: _LeasedMessage) -> None:
        try:
            await self._settle(held, Abandon())
        except BrokerError:
            self._forget(held)  # its lock expires

    async def _renew(self, held: _LeasedMessage, body: bytes | None = None) -> None:
        try:
            if body is None:
                await self._leases.renew(held.entity, held.token)
            else:
                await self._leases.change_body(held.entity, held.token, body)
        except LockLost:
            self._forget(held)
            raise

    async def _settle(self, held: _LeasedMessage, settlement: Complete | Abandon) -> None:
        try:
            await self._leases.settle(held.entity, held.token, settlement)
        except LockLost:
            self._forget(held)
            raise
        self._forget(held)

    def _forget(self, held: _LeasedMessage) -> None:
        held.over = True
        held.changes.notify()
        key = held.entity.key, held.sequence
        left = [each for each in self._held.pop(key, ()) if each is not held]
        if left:
            self._held[key] = left

    def _find(self, entity: EntityPath, receipt: PopReceipt) -> _LeasedMessage:
        of_number = self._held.get((entity.key, receipt.sequence), [])
        # A lease that is older than the receipt tells nothing about it.
        if all(each.stamp < receipt.stamp for each in of_number):
            raise MessageNotFound(
                f"{entity}: message {receipt.sequence} isn't locked through this gateway"
            )
        held = next((each for each in of_number if each.stamp == receipt.stamp), None)
        if held is None:
            raise LockLost(f"message {receipt.sequence} was received or updated since this receipt")
        return held

    def _is_visible(self, entity: EntityPath, delivery: Delivery) -> bool:
        is_held = (entity.key, delivery.sequence_number) in self._held
        return delivery.state is MessageState.ACTIVE and not is_held

    def _taken_message(
        self, held: _LeasedMessage, delivery: Delivery, hidden: timedelta
    ) -> TakenMessage:
        visible = self._wall_clock() + hidden
        return TakenMessage(
            delivery=attrs.evolve(delivery, locked_until=visible),
            receipt=PopReceipt(held.sequence, held.stamp),
        )

    def _new_stamp(self) -> int:
        """
        A stamp of this process alone, unless clocks jump back: receipts of another process match
        nothing.
        """
        micros = int(self._wall_clock().timestamp() * 1e6)
        self._last_stamp = max(self._last_stamp + 1, micros)
        return self._last_stamp


def _handed_out(delivery: Delivery) -> TakenMessage:
    """The message for the client, with the namespace's receipt, sealed."""
    receipt = PopReceipt(0, 0, token=delivery.lock_token or "")
    return TakenMessage(delivery=delivery, receipt=receipt)


@contextmanager
def _as_storage_says() -> Iterator[None]:
    """
    Raise `MessageNotFound` instead of `LockLost` if the message doesn't exist, as Storage Queue
    does.
    """
    try:
        yield
    except LockLost as error:
        if isinstance(error.__cause__, MessageNotFound):
            raise error.__cause__ from error
        raise


def _name_of(entity: EntityPath, receipt: PopReceipt) -> str:
    return f"{entity.key} {receipt.sequence} {receipt.stamp}"
