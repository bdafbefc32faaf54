"""The two ends of a link that we have asked for: messages out, and messages in."""

from collections import deque
from typing import Final

import attrs
import trio

from gateway.domain.errors import OutcomeUnknown
from gateway.net.amqp_client import AmqpClient, ClientLink
from gateway.wire.amqp.events import (
    AmqpError,
    DeliveryId,
    DeliveryState,
    DispositionReceived,
    Event,
    LinkFlow,
    NewLink,
    OtherState,
    Outcome,
    ReceiverSettles,
    SessionId,
    TransferReceived,
)

WINDOW: Final = 1000  # messages under way on one link
_LARGE: Final = 16 * 1024  # bytes of a message that waits while much is to be written


class LinkVoid(Exception):
    """Nothing was handed over: the link has ended, and another one may do."""

    def __init__(self, link: ClientLink) -> None:
        super().__init__(link.name)
        self.link = link


@attrs.define(eq=False)
class InFlight:
    """A message on its way."""

    link: ClientLink
    answered: trio.Event = attrs.field(factory=trio.Event)
    said: DispositionReceived | None = None

    async def outcome(self) -> DeliveryState | None:
        """
        Return what the peer says of it.

        Raises:
            OutcomeUnknown: the link ended before.
        """
        await self.answered.wait()
        if self.said is None:
            raise OutcomeUnknown(f"no answer, then: {self.link.failure()}")
        return self.said.state


class SendingLink(ClientLink):
    """A link on which we send: as many messages at once as the peer gives credit for."""

    def __init__(
        self,
        client: AmqpClient,
        new: NewLink,
        session: SessionId | None = None,
        *,
        window: int = WINDOW,
    ) -> None:
        """At most `window` messages are under way."""
        self._window = window
        self._waiting = 0
        self._in_flight: dict[DeliveryId, InFlight] = {}
        self._tags = 0
        super().__init__(client, new, session)

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nobody waits for credit."""
        return not self._in_flight and not self._waiting

    async def wait_credit(self) -> None:
        """
        Wait until the peer takes a message.

        Raises:
            BrokerError: the link ended; nothing was sent.
        """
        await trio.lowlevel.checkpoint()
        while self.why is None and not self._has_room():
            await self._park()
        if self.why is not None:
            raise self.refusal()

    async def send(self, payload: bytes, message_format: int = 0) -> DeliveryState | None:
        """
        Return what the peer says of the message, which is settled then. Raises as `post` and
        `InFlight.outcome`; cancelled, the outcome is unknown.
        """
        return await (await self.post(payload, message_format)).outcome()

    async def post(self, payload: bytes, message_format: int = 0) -> InFlight:
        """
        Hand a message over, as soon as there is credit. Cancelled, it wasn't.

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
            raise LinkVoid(self)  # noqa: ASYNC910 the caller tries another one
        self._tags += 1
        tag = self.id.to_bytes(4) + self._tags.to_bytes(8)
        delivery = self.engine.send(self.id, tag, payload, message_format=message_format)
        assert delivery is not None, "the link isn't void"
        mine = self._in_flight[delivery] = InFlight(self)
        return mine  # noqa: ASYNC910 its outcome waits

    def handle(self, event: Event) -> None:
        match event:
            case DispositionReceived(delivery=delivery, state=state, settled=settled):
                if not settled and (state is None or isinstance(state, OtherState)):
                    return  # on the way to an outcome (part 3, 3.4.1)
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
            self._let_on()  # whoever is cancelled leaves its room to others


class ReceivingLink(ClientLink):
    """
    A link on which we receive, as many messages as we give credit for.

    `arrived` has what nobody has taken yet; who takes a delivery that isn't settled settles it.
    """

    def __init__(self, client: AmqpClient, new: NewLink, session: SessionId | None = None) -> None:
        self.arrived: deque[TransferReceived] = deque()
        self._unsettled: dict[DeliveryId, InFlight] = {}
        super().__init__(client, new, session)

    def set_credit(self, credit: int) -> None:
        """Let so many messages come, besides those that have arrived or are on their way."""
        if self.why is None:
            more = max(0, credit) - self.engine.credit(self.id)
            if more:
                self.engine.grant(self.id, more)

    async def wait_news(self) -> None:
        """Wait until something has arrived, or the link is over."""
        await self._changed.park()

    def holds(self, delivery: DeliveryId) -> bool:
        """Whether it can be settled here."""
        return delivery in self._unsettled

    def drop(self, delivery: DeliveryId, outcome: Outcome) -> None:
        """Settle without waiting for the peer to confirm."""
        if self._unsettled.pop(delivery, None) is not None:
            self.engine.settle(delivery, outcome)

    async def settle(self, delivery: DeliveryId, outcome: Outcome) -> DeliveryState | None:
        """Return what the peer answers. Raises as `tell` and `InFlight.outcome`."""
        return await self.tell(delivery, outcome).outcome()

    def tell(self, delivery: DeliveryId, outcome: Outcome) -> InFlight:
        """
        Hand an outcome over, behind those that were handed over before; its answer is to be waited
        for. Where the receiver settles first, nobody is asked, and the answer is that outcome.

        Raises:
            LinkVoid: it can't be settled here: it has been, or the link has ended.
        """
        mine = self._unsettled.get(delivery)
        if mine is None:
            raise LinkVoid(self)
        if self.answer is None or self.answer.receiver_settles is ReceiverSettles.FIRST:
            self.drop(delivery, outcome)
            mine.said = DispositionReceived(self.id, delivery, outcome, settled=True)
            mine.answered.set()
        else:
            self.engine.update(delivery, outcome)
        return mine

    def handle(self, event: Event) -> None:
        match event:
            case TransferReceived(delivery=delivery, settled=settled):
                self.arrived.append(event)
                if not settled:
                    self._unsettled[delivery] = InFlight(self)
                self._changed.unpark_all()
            case DispositionReceived(delivery=delivery, settled=True):
                mine = self._unsettled.pop(delivery, None)
                if mine is not None:
                    mine.said = event
                    mine.answered.set()

    def over(self, why: AmqpError) -> None:
        super().over(why)
        unsettled, self._unsettled = self._unsettled, {}
        for each in unsettled.values():
            each.answered.set()
