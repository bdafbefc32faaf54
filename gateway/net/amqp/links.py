"""The two kinds of outgoing links: to send on, and to receive on."""

from collections import deque
from itertools import islice
from typing import Final

import attrs
import trio

from gateway.domain.errors import OutcomeUnknown
from gateway.net.amqp.client import AmqpClient, ClientLink
from gateway.wire.amqp.events import (
    RELEASED,
    AmqpError,
    DeliveryId,
    DeliveryState,
    DispositionReceived,
    Event,
    LinkDrained,
    LinkFlow,
    NewLink,
    OtherState,
    Outcome,
    ReceiverSettles,
    SessionId,
    TransactionalState,
    TransferReceived,
)

WINDOW: Final = 1000  # messages in flight per link
MOST_UNSETTLED: Final = 100_000  # deliveries of one link
RELEASED_SHARE: Final = 10  # the share of the deliveries that is released to make room
_LARGE: Final = 16 * 1024  # bytes of a message that waits while much waits to be written


class LinkVoid(Exception):
    """Nothing was sent: the link has ended, and another link may work."""

    def __init__(self, link: ClientLink) -> None:
        super().__init__(link.name)
        self.link = link


@attrs.define(eq=False)
class InFlight:
    """A message or settlement in flight."""

    link: ClientLink
    answered: trio.Event = attrs.field(factory=trio.Event)
    said: DispositionReceived | None = None

    async def outcome(self) -> DeliveryState | None:
        """
        Return the peer's answer.

        Raises:
            OutcomeUnknown: the link ended before the answer.
        """
        if not self.answered.is_set():  # on the path of every message
            await self.answered.wait()
        if self.said is None:
            raise OutcomeUnknown(f"no answer, then: {self.link.failure()}")
        return self.said.state


@attrs.frozen(eq=False)
class _EnlistedSettlement:
    """A settlement in a transaction, which waits for its provisional outcome."""

    txn_id: bytes
    asked: InFlight


class SendingLink(ClientLink):
    """A link to send on, with as many messages in flight as the peer gives credit for."""

    def __init__(
        self,
        client: AmqpClient,
        new: NewLink,
        session: SessionId | None = None,
        *,
        window: int = WINDOW,
    ) -> None:
        """Attach the link, with at most `window` messages in flight."""
        self._window = window
        self._waiting = 0
        self._in_flight: dict[DeliveryId, InFlight] = {}
        self._tags = 0
        super().__init__(client, new, session)

    @property
    def idle(self) -> bool:
        """True if nothing is in flight and no caller waits for credit."""
        return not self._in_flight and not self._waiting

    async def wait_credit(self) -> None:
        """
        Wait for credit.

        Raises:
            BrokerError: the link ended; nothing was sent.
        """
        await trio.lowlevel.checkpoint()
        while self.why is None and not self._has_room():
            await self._park()
        if self.why is not None:
            raise self.refusal()

    async def send(
        self, payload: bytes, message_format: int = 0, state: DeliveryState | None = None
    ) -> DeliveryState | None:
        """
        Send a message as `post`; return the peer's answer, and settle the message. Raises as `post`
        and `InFlight.outcome`; if cancelled, the outcome is unknown.
        """
        return await (await self.post(payload, message_format, state)).outcome()

    async def post(
        self, payload: bytes, message_format: int = 0, state: DeliveryState | None = None
    ) -> InFlight:
        """
        Write a message as soon as there is credit, with a state if it is part of a transaction. If
        cancelled, it wasn't written.

        Raises:
            LinkVoid: the link had ended before.
        """
        if len(payload) >= _LARGE and self.client.is_full:
            await self.client.wait_for_room()
        while self.why is None and (self._waiting or not self._has_room()):
            await self._park()
            if self._has_room():
                break
        if self.why is not None:
            raise LinkVoid(self)
        self._tags += 1
        tag = self.id.to_bytes(4) + self._tags.to_bytes(8)
        delivery = self.engine.send(
            self.id, tag, payload, message_format=message_format, state=state
        )
        assert delivery is not None, "the link isn't void"
        mine = self._in_flight[delivery] = InFlight(self)
        return mine

    def handle(self, event: Event) -> None:
        match event:
            case DispositionReceived(delivery=delivery, state=state, settled=settled):
                if not settled and (state is None or isinstance(state, OtherState)):
                    return  # a state that isn't an outcome yet (part 3, 3.4.1)
                if not settled:
                    self.engine.settle(delivery)
                mine = self._in_flight.pop(delivery, None)
                if mine is not None:
                    mine.said = event
                    mine.answered.set()
                self._let_on()
            case LinkFlow(drain=drain):
                if drain and not self._waiting:
                    self.engine.drained(self.id)
                self._let_on()

    def over(self, why: AmqpError) -> None:
        super().over(why)
        in_flight, self._in_flight = self._in_flight, {}
        for each in in_flight.values():
            each.answered.set()

    def _has_room(self) -> bool:
        return len(self._in_flight) < self._window and self.engine.credit(self.id) > 0

    def _let_on(self) -> None:
        if self._waiting and self._has_room():
            room = self._window - len(self._in_flight)
            self._changed.unpark(count=min(room, self.engine.credit(self.id)))

    async def _park(self) -> None:
        self._waiting += 1
        try:
            await self._changed.park()
        finally:
            self._waiting -= 1
            self._let_on()  # a cancelled waiter leaves its room to others


class ReceivingLink(ClientLink):
    """
    A link to receive on, with as much credit as set.

    `arrived` has the messages that no receiver has taken yet. An unsettled delivery must be settled
    by the receiver that takes it.
    """

    def __init__(
        self,
        client: AmqpClient,
        new: NewLink,
        session: SessionId | None = None,
        *,
        most_unsettled: int = MOST_UNSETTLED,
        answers: bool = False,
        ends_session: bool = False,
    ) -> None:
        """
        Attach the link; of more than `most_unsettled` deliveries the oldest are released.

        `answers`: the peer answers each outcome that asks for it, whatever the receiver's mode.
        `ends_session`: the peer releases what the link holds only when its session ends.
        """
        self.ends_session = ends_session
        self._most_unsettled = most_unsettled
        self._answers = answers
        self.arrived: deque[TransferReceived] = deque()
        # Credit was taken back that the peer may have used before it knew.
        self._reduced = False
        self.is_left = False  # nothing is received on it any more
        self._unsettled: dict[DeliveryId, InFlight] = {}
        # Settlements in transactions, until their provisional outcomes come.
        self._enlisted: dict[DeliveryId, _EnlistedSettlement] = {}
        super().__init__(client, new, session)

    def set_credit(self, credit: int) -> None:
        """Allow a number of messages, including messages that have arrived or are in transit."""
        if self.why is None:
            more = max(0, credit) - self.engine.credit(self.id)
            if more:
                self._reduced = self._reduced or more < 0
                self.engine.grant(self.id, more)

    async def drain(self) -> None:
        """
        Take back all credit. Return when every message that the peer has sent is in `arrived`, or
        the link has ended (2.6.7).
        """
        await trio.lowlevel.checkpoint()
        if self.engine.credit(self.id) <= 0 and not self._reduced:
            return
        self._reduced = True
        if self.engine.credit(self.id) <= 0:
            self.engine.grant(self.id, 1 - self.engine.credit(self.id))  # a peer ignores less
        self.engine.drain(self.id)
        while self._reduced and self.why is None:
            await self._changed.park()

    def leave(self) -> None:
        """
        Take back all credit, and release what has arrived or arrives later. What is held can still
        be settled.
        """
        self.is_left = True
        self.set_credit(0)
        self._release_arrived()

    @property
    def is_holding(self) -> bool:
        """True if a delivery isn't settled yet."""
        return bool(self._unsettled)

    @property
    def is_confirmed(self) -> bool:
        """True if the peer confirms settlements."""
        answer = self.answer
        return answer is not None and (
            self._answers or answer.receiver_settles is not ReceiverSettles.FIRST
        )

    def wake(self) -> None:
        """Wake the tasks in `wait_news`, as if a message had arrived."""
        self._changed.unpark_all()

    async def wait_news(self) -> None:
        """Wait until a message has arrived, or the link has ended."""
        await self._changed.park()

    def holds(self, delivery: DeliveryId) -> bool:
        """True if the delivery can be settled on this link."""
        return delivery in self._unsettled

    def forget(self, delivery: DeliveryId) -> None:
        """Hold a delivery no more that was settled in another way."""
        self._unsettled.pop(delivery, None)

    def drop(self, delivery: DeliveryId, outcome: Outcome) -> None:
        """Settle a delivery without waiting for the peer's confirmation."""
        if self._unsettled.pop(delivery, None) is not None:
            self.engine.settle(delivery, outcome)

    def send_outcome(self, delivery: DeliveryId, outcome: Outcome) -> InFlight:
        """
        Write an outcome, after the outcomes that were written before; the caller waits for the
        answer. If the receiver settles first, the peer doesn't answer, and the outcome itself
        counts as the answer.

        Raises:
            LinkVoid: the delivery can't be settled here: it was settled already, or the link has
                ended.
        """
        mine = self._unsettled.get(delivery)
        if mine is None:
            raise LinkVoid(self)
        if not self.is_confirmed:
            self.drop(delivery, outcome)
            mine.said = DispositionReceived(self.id, delivery, outcome, settled=True)
            mine.answered.set()
        else:
            self.engine.update(delivery, outcome)
        return mine

    def enlist(self, delivery: DeliveryId, state: TransactionalState) -> InFlight:
        """
        Write an outcome in a transaction; the caller waits for the peer's provisional outcome, and
        calls `withdraw` if it doesn't. The delivery stays unsettled, unless the peer settles it.

        Raises:
            LinkVoid: the delivery can't be settled here.
        """
        if delivery not in self._unsettled:
            raise LinkVoid(self)
        asked = InFlight(self)
        self._enlisted[delivery] = _EnlistedSettlement(state.txn_id, asked)
        self.engine.update(delivery, state)
        return asked

    def withdraw(self, delivery: DeliveryId, asked: InFlight) -> None:
        """Stop waiting for that provisional outcome. Does nothing if it has come."""
        mine = self._enlisted.get(delivery)
        if mine is not None and mine.asked is asked:
            del self._enlisted[delivery]

    def handle(self, event: Event) -> None:
        match event:
            case TransferReceived():
                self._handle_transfer(event)
            case LinkDrained():
                self._reduced = False
                self._changed.unpark_all()
            case DispositionReceived(delivery=delivery, settled=settled):
                if self._enlisted:
                    self._answer_enlisted(event)
                if settled:
                    _answer(self._unsettled.pop(delivery, None), event)

    def _handle_transfer(self, event: TransferReceived) -> None:
        self.arrived.append(event)
        if not event.settled:
            if len(self._unsettled) >= self._most_unsettled:
                self._release_oldest()
            self._unsettled[event.delivery] = InFlight(self)
        if self.is_left:
            self._release_arrived()
        self._changed.unpark_all()

    def _release_arrived(self) -> None:
        while self.arrived:
            self.drop(self.arrived.popleft().delivery, RELEASED)

    def _release_oldest(self) -> None:
        """
        Make room among the unsettled deliveries by a release of the oldest: their locks ended long
        ago, if locks end, and some were unreadable. Many are released at once, so that each costs
        little.
        """
        count = max(1, self._most_unsettled // RELEASED_SHARE)
        for delivery in [*islice(self._unsettled, count)]:
            released = DispositionReceived(self.id, delivery, RELEASED, settled=True)
            _answer(self._unsettled.pop(delivery), released)
            self.engine.settle(delivery, RELEASED)

    def _answer_enlisted(self, event: DispositionReceived) -> None:
        mine, state = self._enlisted.get(event.delivery), event.state
        if mine is None:
            return
        if isinstance(state, TransactionalState) and state.txn_id != mine.txn_id:
            return  # the late answer of an earlier transaction
        del self._enlisted[event.delivery]
        _answer(mine.asked, event)

    def over(self, why: AmqpError) -> None:
        super().over(why)
        enlisted = [each.asked for each in self._enlisted.values()]
        waiting = (*self._unsettled.values(), *enlisted)
        self._unsettled, self._enlisted = {}, {}
        for each in waiting:
            each.answered.set()


def _answer(asked: InFlight | None, event: DispositionReceived) -> None:
    if asked is not None:
        asked.said = event
        asked.answered.set()
