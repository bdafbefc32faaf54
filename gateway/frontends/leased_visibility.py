"""
Storage Queue's way to receive, from a namespace that has locks only: `Visibility` on `Leases`.

A message that is hidden is locked, and its lock is renewed for as long as it's to be hidden; then
it's given back. A ticket is good for that time, and doesn't outlive the process: the lock does for
its own duration, after which the message comes again.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    LockLost,
    MessageNotFound,
    NotSupported,
    Unavailable,
)
from gateway.domain.events import MovedToPoison
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    Delivery,
    Message,
    MessageState,
)
from gateway.domain.poison import UNLIMITED, TermsOf, poison_queue, too_many
from gateway.domain.visibility import Shown, Ticket
from gateway.frontends.leases import Leases
from gateway.ports import Broker, Observer, WallClock

LOOK: Final = 1.0  # seconds in which a namespace that has messages gives some
_CLEAR: Final = 100  # messages taken at once to be removed
_PAGE: Final = 100  # messages that are looked at together, where the first ones don't do
_REMEMBERED: Final = 10.0  # seconds that a queue's metadata is taken to be the same
MOST_REMEMBERED: Final = 1000  # queues
_PAUSE: Final = 1.0  # seconds after which a renewal that failed is tried again


@attrs.define(eq=False)
class _Held:
    entity: EntityPath
    sequence: int
    token: str
    stamp: int
    until: float  # trio.current_time()
    changed: trio.Event = attrs.field(factory=trio.Event)
    over: bool = False


@attrs.define(eq=False)
class LeasedVisibility:
    """
    Implements `capabilities.Visibility` and `ports.Service`; `leases` has a service of its own.

    Where many messages are held, `leases` says `Busy`.
    """

    _broker: Broker
    _leases: Leases
    _wall_clock: WallClock
    _observer: Observer | None = None
    # By queue and number, which all messages of a pack have in common.
    _held: dict[tuple[str, int], list[_Held]] = attrs.field(factory=dict, init=False)
    _texts: dict[str, tuple[str | None, float]] = attrs.field(factory=dict, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _last_stamp: int = attrs.field(default=0, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep what is hidden hidden, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def put(self, entity: EntityPath, message: Message, hidden: timedelta) -> Shown:
        """
        Never: who sends doesn't learn the number of a message here.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("a message that was sent can't be asked for here")

    async def sent(self, entity: EntityPath, message_id: str) -> Ticket | None:
        """As `Visibility.sent`: nobody knows."""
        await trio.lowlevel.checkpoint()
        return None

    async def take(self, entity: EntityPath, limit: int, terms_of: TermsOf) -> Sequence[Shown]:
        """
        As `Visibility.take`; where there are no messages it takes a second to know that.

        What the queue's metadata says is asked for every `_REMEMBERED` seconds.
        """
        if self._nursery is None:
            raise Unavailable("the gateway isn't receiving now")
        terms = terms_of(await self._told(entity))
        deliveries: Sequence[Delivery] = ()
        with trio.move_on_after(LOOK):
            deliveries = await self._leases.receive(entity, limit)
        shown = [self._hold(self._nursery, entity, each, terms.hidden) for each in deliveries]
        if terms.poison_after is None:
            return shown
        return [each for each in shown if not await self._goes(entity, each, terms.poison_after)]

    async def _told(self, entity: EntityPath) -> str | None:
        """The queue's user metadata; in trouble what it was last."""
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        known, until = self._texts.get(entity.key, (None, now))
        if until > now:
            return known
        try:
            with trio.move_on_after(LOOK):
                known = (await self._broker.inspect(entity)).properties.user_metadata
        except BrokerError:
            # Who may receive may not be told; and of what is in trouble the receive tells.
            await trio.lowlevel.checkpoint()
        self._texts.pop(entity.key, None)
        self._texts[entity.key] = known, now + _REMEMBERED
        if len(self._texts) > MOST_REMEMBERED:
            del self._texts[next(iter(self._texts))]
        return known

    async def _goes(self, entity: EntityPath, shown: Shown, after: int) -> bool:
        """
        Send what was taken too often to the queue for poison, and remove it then; whether it was.

        Where it can't go it stays as it was taken. An end in between leaves it in both.
        """
        await trio.lowlevel.checkpoint()
        if shown.ticket is None or shown.delivery.delivery_count <= after:
            return False
        delivery, target = shown.delivery, poison_queue(entity)
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
        try:
            await self.remove(entity, shown.ticket)
        except BrokerError:  # it comes again, and goes again
            await trio.lowlevel.checkpoint()
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
            try:
                await self._broker.create_queue(queue, UNLIMITED)
            except EntityExists:  # somebody was faster
                await trio.lowlevel.checkpoint()
            await self._broker.send(queue, [message])

    async def look(self, entity: EntityPath, limit: int) -> Sequence[Delivery]:
        """
        As `Visibility.look`, but for what others have locked, which nobody tells.

        Raises:
            NotSupported: the namespace doesn't show messages.
        """
        if not isinstance(self._broker, Peeks):
            raise NotSupported("this namespace can't show messages without taking them")
        await trio.lowlevel.checkpoint()
        found: list[Delivery] = []
        first, page = 0, limit
        while len(found) < limit:
            some = await self._broker.peek(entity, from_sequence=first, limit=page)
            found += [each for each in some if self._is_visible(entity, each)]
            if len(some) < page:
                break
            page = _PAGE
            first = some[-1].sequence_number + 1
        return found[:limit]

    async def change(
        self, entity: EntityPath, ticket: Ticket, hidden: timedelta, body: bytes | None = None
    ) -> Shown:
        """
        As `Visibility.change`.

        Raises:
            NotSupported: with a body.
        """
        if body is not None:
            raise NotSupported("this namespace can't change the text of a message")
        held = self._find(entity, ticket)
        if not hidden:
            await self._settle(held, Abandon())
            now = self._wall_clock()
            empty = Delivery(message=Message(), sequence_number=held.sequence, locked_until=now)
            return Shown(delivery=empty, ticket=None)
        await self._renew(held)
        held.until = trio.current_time() + hidden.total_seconds()
        held.stamp = self._new_stamp()
        held.changed.set()
        return self._shown(held, Delivery(message=Message(), sequence_number=held.sequence), hidden)

    async def remove(self, entity: EntityPath, ticket: Ticket) -> None:
        await self._settle(self._find(entity, ticket), Complete())

    async def clear(self, entity: EntityPath) -> None:
        """As `Visibility.clear`, message by message."""
        while True:
            deliveries: Sequence[Delivery] = ()
            with trio.move_on_after(LOOK):
                deliveries = await self._leases.receive(entity, _CLEAR)
            if not deliveries:
                return
            for delivery in deliveries:
                assert delivery.lock_token is not None, "a lease has one"
                await self._leases.settle(entity, delivery.lock_token, Complete())

    def _hold(
        self, nursery: trio.Nursery, entity: EntityPath, delivery: Delivery, hidden: timedelta
    ) -> Shown:
        assert delivery.lock_token is not None, "a lease has one"
        held = _Held(
            entity=entity,
            sequence=delivery.sequence_number,
            token=delivery.lock_token,
            stamp=self._new_stamp(),
            until=trio.current_time() + hidden.total_seconds(),
        )
        self._held.setdefault((entity.key, held.sequence), []).append(held)
        nursery.start_soon(self._keep, held)
        return self._shown(held, delivery, hidden)

    async def _keep(self, held: _Held) -> None:
        """Renew the lock until the message is to be seen again; then give it back."""
        await trio.lowlevel.checkpoint()
        while not held.over and held.until > trio.current_time():
            now, lock = trio.current_time(), self._leases.lock_of(held.token)
            if lock.latest <= now:
                break
            with trio.move_on_at(min(held.until, (now + lock.earliest) / 2)):
                await held.changed.wait()
                held.changed = trio.Event()
                continue
            if held.until > trio.current_time():
                await self._try_to_renew(held)
        if not held.over:
            await self._give_back(held)

    async def _try_to_renew(self, held: _Held) -> None:
        await trio.lowlevel.checkpoint()
        try:
            await self._renew(held)
        except BrokerError:
            # Either it's lost, which the lease says too, or it holds yet and there is time.
            await trio.sleep(_PAUSE)

    async def _give_back(self, held: _Held) -> None:
        await trio.lowlevel.checkpoint()
        try:
            await self._settle(held, Abandon())
        except BrokerError:
            self._forget(held)  # its lock runs out

    async def _renew(self, held: _Held) -> None:
        try:
            await self._leases.renew(held.entity, held.token)
        except LockLost:
            self._forget(held)
            raise

    async def _settle(self, held: _Held, settlement: Complete | Abandon) -> None:
        try:
            await self._leases.settle(held.entity, held.token, settlement)
        except LockLost:
            self._forget(held)
            raise
        self._forget(held)

    def _forget(self, held: _Held) -> None:
        held.over = True
        held.changed.set()
        key = held.entity.key, held.sequence
        left = [each for each in self._held.pop(key, ()) if each is not held]
        if left:
            self._held[key] = left

    def _find(self, entity: EntityPath, ticket: Ticket) -> _Held:
        of_number = self._held.get((entity.key, ticket.sequence))
        if of_number is None:
            raise MessageNotFound(f"{entity}: nobody here has message {ticket.sequence}")
        held = next((each for each in of_number if each.stamp == ticket.stamp), None)
        if held is None:
            raise LockLost(f"message {ticket.sequence} was taken or changed since")
        return held

    def _is_visible(self, entity: EntityPath, delivery: Delivery) -> bool:
        is_held = (entity.key, delivery.sequence_number) in self._held
        return delivery.state is MessageState.ACTIVE and not is_held

    def _shown(self, held: _Held, delivery: Delivery, hidden: timedelta) -> Shown:
        visible = self._wall_clock() + hidden
        return Shown(
            delivery=attrs.evolve(delivery, locked_until=visible),
            ticket=Ticket(held.sequence, held.stamp),
        )

    def _new_stamp(self) -> int:
        """Of this process alone, as far as clocks go: another one's tickets find nothing."""
        micros = int(self._wall_clock().timestamp() * 1e6)
        self._last_stamp = max(self._last_stamp + 1, micros)
        return self._last_stamp
