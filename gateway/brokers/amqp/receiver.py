"""Receiving on a link: credit for what is asked for, and what was handed over is settled."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from math import inf
from typing import Final

import attrs
import trio

from gateway.brokers.amqp.dialects import Dialect
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import Peer, Take
from gateway.brokers.amqp.senders import within
from gateway.brokers.meter import Meter
from gateway.domain import errors
from gateway.domain.backoff import Backoff
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, MessageError, OutcomeUnknown
from gateway.domain.message import Abandon, Complete, Delivery, ReceiveMode, Settlement
from gateway.net.amqp_links import LinkVoid, ReceivingLink
from gateway.ports import WallClock
from gateway.wire.amqp.conditions import error_from_condition
from gateway.wire.amqp.deliveries import decode_delivery, deliveries_before
from gateway.wire.amqp.events import (
    RELEASED,
    Accepted,
    AmqpError,
    DeliveryId,
    DeliveryState,
    Modified,
    NewLink,
    Outcome,
    ReceiverSettles,
    Rejected,
    Released,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.lock_tokens import token_of
from gateway.wire.amqp.message import decode_message

_MAX_CREDIT: Final = 1000
_AS_LONG_AS_THE_LINK: Final = timedelta(minutes=1)  # at least: what a lock that doesn't end is told


@attrs.frozen(kw_only=True)
class Surroundings:
    """What every receiver of a namespace needs."""

    take: Take
    options: LinkOptions
    clock: WallClock
    rng: random.Random
    new_token: Callable[[], str]
    numbers: "count[int]"  # of deliveries, where the broker numbers none
    meter: Meter = attrs.field(factory=Meter)


@attrs.define(eq=False)
class AmqpReceiver:
    """Takes messages of one queue."""

    _around: Surroundings
    _entity: EntityPath
    _mode: ReceiveMode
    _peer: Peer = attrs.field(init=False)
    _link: ReceivingLink = attrs.field(init=False)
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _wanted: int = attrs.field(default=0, init=False)  # by those who wait
    _reopened: int = attrs.field(default=0, init=False)  # since something has arrived
    _backoff: Backoff = Backoff(first=0.1, cap=5.0)
    # A moment and no pause: callers with little time each don't begin it anew.
    _not_before: float = attrs.field(default=-inf, init=False)
    # Lock token -> the delivery that it stands for on the link that it came on.
    _held: dict[str, tuple[ReceivingLink, DeliveryId]] = attrs.field(factory=dict, init=False)
    _most_held: int = attrs.field(default=_MAX_CREDIT, init=False)  # then what is gone is dropped

    async def open(self) -> None:
        """
        Attach.

        Raises:
            BrokerError: there is no such entity, or no link to it.
        """
        await within(self._around.options.connect_timeout, str(self._entity), self._attach)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. What was on its way when nobody asked any more waits for the next.

        A link or connection that ends without a reason of the entity's own is opened anew.
        """
        self._wanted += limit
        try:
            while True:
                await self._look_after_link()
                link = self._link
                link.set_credit(min(self._wanted, _MAX_CREDIT) - len(link.arrived))
                taken = self._take_arrived(link, limit)
                if taken and self._mode is ReceiveMode.RECEIVE_AND_DELETE:
                    taken = await self._take_away(taken)
                if taken:
                    self._reopened, self._not_before = 0, -inf
                    return taken
                if link.why is None:
                    await link.wait_news()
        finally:
            self._wanted -= limit
            left = min(self._wanted, _MAX_CREDIT) - len(self._link.arrived)
            self._link.set_credit(max(0, left))

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`.

        Raises:
            NotSupported: this broker can't do that without losing something.
        """
        outcome = self.dialect.outcome(settlement)
        link, id_ = self._held.get(delivery.lock_token or "", (None, None))
        if link is None or id_ is None or not link.holds(id_):
            self._held.pop(delivery.lock_token or "", None)
            await self._settle_elsewhere(delivery, settlement)
            return
        try:
            state = await link.settle(id_, outcome)
        except LinkVoid as void:
            raise LockLost("this delivery was settled in the meantime") from void
        self._around.meter.settled(1)
        _check_confirmed(outcome, state)
        self._held.pop(delivery.lock_token or "", None)

    async def renew(self, delivery: Delivery) -> datetime:
        """As `Receiver.renew`: without locks that end, a message is ours as long as the link."""
        await trio.lowlevel.checkpoint()
        link, id_ = self._held.get(delivery.lock_token or "", (None, None))
        if link is None or id_ is None or not link.holds(id_):
            raise LockLost("the link on which this delivery came has ended")
        return self._around.clock() + _AS_LONG_AS_THE_LINK

    async def give_back(self) -> None:
        """
        Give back what was taken, in that order, which some brokers keep; what nobody has seen
        doesn't count as delivered where the broker can tell. The caller sets the deadline.
        """
        link = self._link
        link.set_credit(0)
        abandoned = self.dialect.outcome(Abandon())
        told = [held.tell(id_, abandoned) for held, id_ in self._held.values() if held.holds(id_)]
        while link.arrived:
            link.drop(link.arrived.popleft().delivery, RELEASED)
        await trio.lowlevel.checkpoint()
        for each in told:
            with suppress(OutcomeUnknown):  # the link has ended, and the broker takes it back
                await each.outcome()

    def close(self) -> None:
        """Detach. Whatever wasn't given back is given back by the broker, sooner or later."""
        self._link.close()

    @property
    def dialect(self) -> Dialect:
        return self._peer.dialect

    # ------------------------------------------------------------------ what differs elsewhere

    async def _settle_elsewhere(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle what isn't held on a link."""
        await trio.lowlevel.checkpoint()
        raise LockLost("this delivery isn't held (any more)")

    def _new_link(self, peer: Peer, address: str) -> NewLink:
        """Always one that locks: what deletes by itself loses what is on its way at the end."""
        second = peer.dialect.confirms
        name = peer.new_name("receiver")
        return NewLink(
            name=name,
            we_send=False,
            source=Terminus(address=address),
            target=Terminus(address=name),
            receiver_settles=ReceiverSettles.SECOND if second else ReceiverSettles.FIRST,
        )

    # ------------------------------------------------------------------ inside

    async def _attach(self) -> None:
        self._peer = await self._around.take()
        address = self.dialect.address(self._entity)
        self._link = await self._peer.attach(address, partial(self._new, self._peer, address))

    async def _new(self, peer: Peer, address: str) -> ReceivingLink:
        link = ReceivingLink(peer.client, self._new_link(peer, address))
        try:
            await link.wait_attached()
        except BaseException:
            link.close()
            raise
        return link

    async def _look_after_link(self) -> None:
        """
        Return when there is a link.

        Raises:
            BrokerError: it has ended for a reason, or there is no other one.
        """
        if self._link.why is None or self._link.arrived:
            return  # noqa: ASYNC910 the caller waits for news
        async with self._opening:
            if self._link.why is None:
                return
            error = self._link.failure()
            if error.outcome is not errors.Outcome.UNKNOWN:
                raise error
            await trio.sleep_until(self._not_before)
            self._reopened += 1
            pause = self._backoff.delay(self._reopened, self._around.rng)
            self._not_before = trio.current_time() + pause
            await self.open()

    def _take_arrived(self, link: ReceivingLink, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        size = 0
        while link.arrived and len(taken) < limit:
            event = link.arrived.popleft()
            if not event.settled and not link.holds(event.delivery):
                continue  # the broker has taken it back
            delivery = self._read(event)
            if delivery is None:
                continue
            if delivery.lock_token is not None:
                self._hold(delivery.lock_token, link, event.delivery)
            taken.append(delivery)
            size += len(event.payload)
        if taken:
            self._around.meter.carried(Operation.RECEIVE, len(taken), size)
        return taken

    async def _take_away(self, locked: Sequence[Delivery]) -> list[Delivery]:
        """Complete them; those that aren't ours any more come again. Unknown counts as done."""
        lost: set[str | None] = set()

        async def complete(delivery: Delivery) -> None:  # noqa: ASYNC910 a settlement waits
            try:
                await self.settle(delivery, Complete())
            except OutcomeUnknown:
                await trio.lowlevel.checkpoint()
            except BrokerError:
                lost.add(delivery.lock_token)

        async with trio.open_nursery() as nursery:
            for each in locked:
                nursery.start_soon(complete, each)
        return [
            attrs.evolve(each, lock_token=None, locked_until=None)
            for each in locked
            if each.lock_token not in lost
        ]

    def _hold(self, token: str, link: ReceivingLink, id_: DeliveryId) -> None:
        if len(self._held) >= self._most_held:
            held = self._held.items()
            self._held = {each: place for each, place in held if place[0].holds(place[1])}
            self._most_held = max(_MAX_CREDIT, 2 * len(self._held))
        self._held[token] = link, id_

    def _read(self, event: TransferReceived) -> Delivery | None:
        """None: nobody can read it. It stays locked until the broker takes it back."""
        try:
            if self.dialect.of_service_bus:
                token = None if event.settled else token_of(event.tag)
                return decode_delivery(event.payload, lock_token=token)
            message = decode_message(event.payload)
        except MessageError:
            return None
        before, is_first = deliveries_before(message)
        if not self.dialect.counts:
            before = 0 if is_first else 1
        return Delivery(
            message=self.dialect.read(message),
            sequence_number=next(self._around.numbers),
            lock_token=None if event.settled else self._around.new_token(),
            delivery_count=before + 1,
        )


def _check_confirmed(asked: Outcome, answer: DeliveryState | None) -> None:
    """
    Raises:
        BrokerError: the broker didn't do what the outcome asks for.
    """
    match answer:
        case Rejected(error=AmqpError() as error) if error.condition != _condition_of(asked):
            raise error_from_condition(error.condition, error.description)
        case Rejected() | Released() | Modified() if isinstance(asked, Accepted):
            what = type(answer).__name__.lower()
            raise LockLost(f"the message was {what} before the broker heard of its completion")


def _condition_of(outcome: Outcome) -> str | None:
    """Some brokers say back what they were asked for."""
    return outcome.error.condition if isinstance(outcome, Rejected) and outcome.error else None
