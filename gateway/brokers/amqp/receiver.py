"""
Receives on a link: gives credit for as many messages as receives wait for, and settles deliveries.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from math import inf
from typing import Final

import attrs
import trio

from gateway.brokers.amqp.dialects import Dialect
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceConnection, Take
from gateway.brokers.amqp.senders import within
from gateway.brokers.meter import Meter
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain import errors
from gateway.domain.backoff import Backoff
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, MessageError, OutcomeUnknown
from gateway.domain.message import Abandon, Complete, Delivery, ReceiveMode, Settlement
from gateway.net.amqp.links import InFlight, ReceivingLink
from gateway.ports import WallClock
from gateway.wire.amqp.conditions import error_from_condition
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
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.servicebus.deliveries import decode_delivery, deliveries_before, token_of

_MAX_CREDIT: Final = 1000  # messages that may be on their way: ten receives of a syphon
# A lock without an end lasts as long as its link; `renew` reports an end this far ahead.
_AS_LONG_AS_THE_LINK: Final = timedelta(minutes=1)


@attrs.frozen(kw_only=True)
class ReceiverDependencies:
    """The values that each receiver of a namespace needs."""

    take: Take
    options: LinkOptions
    clock: WallClock
    rng: random.Random
    new_token: Callable[[], str]
    numbers: "count[int]"  # sequence numbers of deliveries, if the broker has none
    meter: Meter = attrs.field(factory=Meter)


@attrs.frozen(eq=False)
class WrittenOutcome:
    """A settlement that was written, by its lock token."""

    token: str
    link: ReceivingLink
    outcome: Outcome
    in_flight: InFlight


@attrs.define(eq=False)
class AmqpReceiver:
    """Receives messages of one queue. Has `SettlesMany`."""

    _dependencies: ReceiverDependencies
    _entity: EntityPath
    _mode: ReceiveMode
    _peer: NamespaceConnection = attrs.field(init=False)
    _link: ReceivingLink = attrs.field(init=False)
    # Left with their connections, which were replaced. What they hold can still be settled.
    _former: list[ReceivingLink] = attrs.field(factory=list, init=False)
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _wanted: int = attrs.field(default=0, init=False)  # messages that receives wait for
    _reopened: int = attrs.field(default=0, init=False)  # since the last arrival
    _backoff: Backoff = Backoff(first=0.1, cap=5.0)
    # A date rather than a pause, so that receives with short deadlines don't start the pause again.
    _not_before: float = attrs.field(default=-inf, init=False)
    # Lock token -> its delivery, with the link on which it arrived. Not `HeldDeliveries`: neither
    # weights nor ends are needed, and that took 2 us more for each message, of 42.
    _held: dict[str, tuple[ReceivingLink, DeliveryId]] = attrs.field(factory=dict, init=False)
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts, init=False)
    # Above this, deliveries whose links have ended are dropped.
    _most_held: int = attrs.field(default=_MAX_CREDIT, init=False)

    async def open(self) -> None:
        """
        Attach the link.

        Raises:
            BrokerError: the entity doesn't exist, or the link couldn't be attached.
        """
        await within(self._dependencies.options.connect_timeout, str(self._entity), self._attach)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`. Messages in transit when a receive is cancelled are kept for the next
        one.

        A link or connection that ends for no reason of the entity's own is opened again.
        """
        self._wanted += limit
        try:
            while True:
                await self._wait_for_link()
                link = self._link
                link.set_credit(min(self._wanted, _MAX_CREDIT) - len(link.arrived))
                taken = self._pop_arrived(link, limit)
                if taken and self._mode is ReceiveMode.RECEIVE_AND_DELETE:
                    taken = await self._complete_all(taken)
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
        with self._doubts.settling(delivery.lock_token):
            await self._settle(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `SettlesMany.settle_many`: all outcomes are written before the first answer is waited
        for. A settlement that takes more than an outcome on its delivery's link has its own task.
        """
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        written, others = self._write_all(settlements, verdicts)

        async def settle(index: int) -> None:
            try:
                await self._settle(*settlements[index])
            except BrokerError as error:
                verdicts[index] = error

        if others:
            async with trio.open_nursery() as nursery:
                for index in others:
                    nursery.start_soon(settle, index)
                await self._confirm_all(written, verdicts)
        else:  # a nursery takes a turn of the event loop
            await self._confirm_all(written, verdicts)
        return [
            self._doubts.resolve(delivery.lock_token, verdict)
            for (delivery, _), verdict in zip(settlements, verdicts, strict=True)
        ]

    def _write_all(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        verdicts: list[BrokerError | None],
    ) -> tuple[Sequence[tuple[int, WrittenOutcome]], Sequence[int]]:
        """The outcomes that were written, and the settlements that take more, by their indices."""
        written: list[tuple[int, WrittenOutcome]] = []
        others: list[int] = []
        tokens: set[str | None] = set()
        for index, (delivery, settlement) in enumerate(settlements):
            self._doubts.begin(delivery.lock_token)
            try:
                asked = self._write_first(delivery, settlement, tokens)
            except BrokerError as error:
                verdicts[index] = error
                continue
            if asked is None:
                others.append(index)
            else:
                written.append((index, asked))
        return written, others

    async def _confirm_all(
        self,
        written: Sequence[tuple[int, WrittenOutcome]],
        verdicts: list[BrokerError | None],
    ) -> None:
        for index, asked in written:
            try:
                await self._confirm(asked)
            except BrokerError as error:
                verdicts[index] = error

    def _write_first(
        self, delivery: Delivery, settlement: Settlement, tokens: set[str | None]
    ) -> WrittenOutcome | None:
        """As `_write`, unless it takes steps; `tokens` are those that were settled before."""
        if delivery.lock_token in tokens:
            raise LockLost("the delivery was settled in the same step")
        tokens.add(delivery.lock_token)
        return None if self._takes_steps(settlement) else self._write(delivery, settlement)

    async def _settle(self, delivery: Delivery, settlement: Settlement) -> None:
        asked = self._write(delivery, settlement)
        if asked is None:
            await self._settle_elsewhere(delivery, settlement)
        else:
            await self._confirm(asked)

    def _write(self, delivery: Delivery, settlement: Settlement) -> WrittenOutcome | None:
        """
        Write the outcome on the link on which the delivery is held; `_confirm` waits for the
        answer. None: no link holds it, or it can't be settled there.

        Raises:
            NotSupported, InvalidRequest: as `Dialect.outcome`.
        """
        outcome = self.dialect.outcome(settlement)
        token = delivery.lock_token or ""
        link, id_ = self._held.get(token, (None, None))
        if link is None or id_ is None or not link.holds(id_):
            self._held.pop(token, None)
            return None
        return WrittenOutcome(token, link, outcome, link.send_outcome(id_, outcome))

    async def _confirm(self, asked: WrittenOutcome) -> None:
        with self._judged(asked.link):
            check_confirmed(asked.outcome, await asked.in_flight.outcome())
        self._dependencies.meter.settled(1)
        self._held.pop(asked.token, None)

    def _judged(self, link: ReceivingLink) -> AbstractContextManager[None]:
        """A context for a settlement on the link; one that isn't confirmed shows nothing."""
        is_ours = link.client is self._peer.client and link.is_confirmed
        return self._peer.judged(changes=True) if is_ours else nullcontext()

    async def renew(self, delivery: Delivery) -> datetime:
        """
        As `Receiver.renew`. Without expiring locks, a message is locked as long as the link exists.
        """
        await trio.lowlevel.checkpoint()
        link, id_ = self._held.get(delivery.lock_token or "", (None, None))
        if link is None or id_ is None or not link.holds(id_):
            with self._doubts.using(delivery.lock_token):
                raise LockLost("the link of this delivery has ended")
        return self._dependencies.clock() + _AS_LONG_AS_THE_LINK

    async def give_back(self) -> None:
        """
        Release all unsettled messages in their order, which some brokers keep. Messages that no
        receive has returned don't count as delivered, if the broker can distinguish that. The
        caller sets the deadline.
        """
        link = self._link
        link.set_credit(0)
        abandoned = self.dialect.outcome(Abandon())
        told = [
            held.send_outcome(id_, abandoned)
            for held, id_ in self._held.values()
            if held.holds(id_)
        ]
        while link.arrived:
            link.drop(link.arrived.popleft().delivery, RELEASED)
        await trio.lowlevel.checkpoint()
        for each in told:
            # The link has ended, so the broker releases the messages.
            with suppress(OutcomeUnknown):
                await each.outcome()

    def close(self) -> None:
        """Detach. The broker releases unsettled messages sooner or later."""
        self._link.close()
        for each in self._former:
            each.close()

    @property
    def dialect(self) -> Dialect:
        return self._peer.dialect

    # --- overridden for Service Bus

    def _takes_steps(self, settlement: Settlement) -> bool:
        """True if something is to be done before the outcome is written."""
        return False

    async def _settle_elsewhere(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle a delivery that isn't held on a link."""
        await trio.lowlevel.checkpoint()
        raise LockLost(
            "the delivery isn't locked by this receiver any more; if it wasn't settled, it"
            " is delivered again"
        )

    def _new_link(self, peer: NamespaceConnection, address: str) -> NewLink:
        """
        The link always locks messages: a link that deletes at once would lose messages in transit
        when it ends.
        """
        second = peer.dialect.confirms and peer.dialect.settles_second
        name = peer.new_name("receiver")
        return NewLink(
            name=name,
            we_send=False,
            source=Terminus(address=address, capabilities=peer.dialect.node),
            target=Terminus(address=name),
            receiver_settles=ReceiverSettles.SECOND if second else ReceiverSettles.FIRST,
        )

    # --- links and deliveries

    async def _attach(self) -> None:
        while True:
            peer = await self._dependencies.take()
            address = peer.dialect.address(self._entity)
            with peer.until_replaced(), self._judged_attach(peer):
                self._link = await peer.attach(address, partial(self._new, peer, address))
                self._peer = peer
                return

    def _judged_attach(self, peer: NamespaceConnection) -> AbstractContextManager[None]:
        return peer.judged()

    async def _new(self, peer: NamespaceConnection, address: str) -> ReceivingLink:
        dialect = peer.dialect
        answers = dialect.confirms and not dialect.settles_second
        link = ReceivingLink(
            peer.client,
            self._new_link(peer, address),
            answers=answers,
            ends_session=not dialect.releases,
        )
        return await link.once_attached()

    async def _wait_for_link(self) -> None:
        """
        Return when a link is attached.

        Raises:
            BrokerError: the link has ended for a reason of the entity's own, or can't be attached
                again.
        """
        if self._link.arrived or self._is_usable:
            return
        async with self._opening:
            if self._is_usable:
                return
            if self._link.why is None:
                await self._change_connection()
                return
            error = self._link.failure()
            if error.outcome is not errors.Outcome.UNKNOWN:
                raise error
            await trio.sleep_until(self._not_before)
            self._reopened += 1
            pause = self._backoff.delay(self._reopened, self._dependencies.rng)
            self._not_before = trio.current_time() + pause
            await self.open()

    @property
    def _is_usable(self) -> bool:
        return self._link.why is None and not self._peer.is_replaced

    async def _change_connection(self) -> None:
        """Receive on another connection. What is held stays with the link on which it arrived."""
        former = self._link
        await self.open()
        former.leave()
        self._former = [*(each for each in self._former if each.why is None), former]

    def _pop_arrived(self, link: ReceivingLink, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        size = 0
        while link.arrived and len(taken) < limit:
            event = link.arrived.popleft()
            if not event.settled and not link.holds(event.delivery):
                continue  # the broker has released the delivery meanwhile
            delivery = self._read(event)
            if delivery is None:
                continue
            if delivery.lock_token is not None:
                self._remember(delivery.lock_token, link, event.delivery)
            taken.append(delivery)
            size += len(event.payload)
        if taken:
            self._peer.prove()
            self._dependencies.meter.carried(Operation.RECEIVE, len(taken), size)
        return taken

    async def _complete_all(self, locked: Sequence[Delivery]) -> list[Delivery]:
        """
        Complete all deliveries and return the completed ones. The others are delivered again. An
        unknown outcome counts as success.
        """
        verdicts = await self.settle_many([(each, Complete()) for each in locked])
        return [
            attrs.evolve(each, lock_token=None, locked_until=None)
            for each, error in zip(locked, verdicts, strict=True)
            if error is None or error.outcome is errors.Outcome.UNKNOWN
        ]

    def _remember(self, token: str, link: ReceivingLink, id_: DeliveryId) -> None:
        if len(self._held) >= self._most_held:
            held = self._held.items()
            self._held = {each: place for each, place in held if place[0].holds(place[1])}
            self._most_held = max(_MAX_CREDIT, 2 * len(self._held))
        self._held[token] = link, id_

    def _read(self, event: TransferReceived) -> Delivery | None:
        """
        Decode a delivery; None if it can't be read. It then stays locked until the broker releases
        it.
        """
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
            sequence_number=next(self._dependencies.numbers),
            lock_token=None if event.settled else self._dependencies.new_token(),
            delivery_count=before + 1,
        )


class DrainingReceiver(AmqpReceiver):
    """`ReceivesAvailable`, from a broker that answers drains."""

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`: the namespace uses the credit or returns it."""
        await self._wait_for_link()
        link = self._link
        if not link.arrived:
            link.set_credit(limit)
            await link.drain()
        taken = self._pop_arrived(link, limit)
        if taken and self._mode is ReceiveMode.RECEIVE_AND_DELETE:
            taken = await self._complete_all(taken)
        return taken


def check_confirmed(asked: Outcome, answer: DeliveryState | None) -> None:
    """
    Check the broker's answer to a settlement.

    Raises:
        BrokerError: the broker returned another outcome.
    """
    match answer:
        case Rejected(error=AmqpError() as error) if error.condition != _condition_of(asked):
            raise error_from_condition(error.condition, error.description)
        case Rejected() | Released() | Modified() if isinstance(asked, Accepted):
            what = type(answer).__name__.lower()
            raise LockLost(f"the message was {what} before its completion reached the broker")


def _condition_of(outcome: Outcome) -> str | None:
    """
    The condition of our own rejection, which some brokers return as their answer; None: the outcome
    has no condition.
    """
    return outcome.error.condition if isinstance(outcome, Rejected) and outcome.error else None
