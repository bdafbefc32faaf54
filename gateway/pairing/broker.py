"""
Two namespaces seen as one: send to the primary, or to the backlog of the secondary.

    standing     what a send does
    PRIMARY      one attempt on the primary; if that fails, the backlog, in the same call
    SUSPECT      one send at a time tries the primary; the others wait a moment for what it finds
                 and are then diverted, as the trial itself is when it fails
    SECONDARY    the backlog at once
    HALF_OPEN    one send at a time tries the primary, with the backlog behind it
    PINNED       the backlog at once; only an operator changes that

When no backlog queue takes it, the primary is asked once more (it may be the secondary that is
down), then the spool. A namespace that couldn't be connected to may say so again without
connecting, but only while another way is left: before the caller gets an error, both were connected
to. If it wasn't asked at all, one backlog queue that hangs is enough for a short
question.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.domain import envelope
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, Outcome, Unavailable
from gateway.domain.events import SendFailed
from gateway.domain.message import Leg, Message
from gateway.pairing.admission import Admission
from gateway.pairing.backlog_leg import BacklogLeg
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import OnUnreachable, PairOptions
from gateway.pairing.primary_leg import HEALTHY_OR_SUSPECT, PrimaryLeg
from gateway.pairing.sending import Sending
from gateway.pairing.standings import Standings, entity_rule
from gateway.pairing.tally import SendTally
from gateway.passing import PassesOn
from gateway.ports import Broker, NewId, Observer

HASTE: Final = 1.0  # seconds for the primary, between a backlog queue that hangs and the next one
ROOM_SHARE: Final = 0.5  # of a send's time may pass while it waits for room; then it needs the rest


@attrs.define(eq=False, kw_only=True)
class PairedBroker(PassesOn):
    """The pair as a `Broker`: sends are protected, everything else passes to the primary."""

    primary: Broker
    options: PairOptions
    standings: Standings
    admission: Admission
    to_primary: PrimaryLeg
    to_backlog: BacklogLeg
    to_spool: BacklogLeg | None = None
    inflight: InFlight
    sends: SendTally = attrs.field(factory=SendTally)
    new_id: NewId
    observer: Observer

    inner_name = "the primary namespace"

    @property
    def inner(self) -> Broker:
        return self.primary

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        Return once the primary, a backlog queue or the spool owns all messages; say which.

        The deadline is the caller's cancel scope, or `send_timeout` if that is earlier. Messages
        without an id get one, and keep it on every leg.

        Raises:
            BrokerError: as `Broker.send`; `Busy` says for how long to wait.
        """
        now = trio.current_time()
        deadline = min(trio.current_effective_deadline(), now + self.options.send_timeout)
        prepared = [self._with_id(message) for message in messages]
        try:
            size = self.admission.admit(entity, prepared)
            async with self.inflight.room(entity, size, now + (deadline - now) * ROOM_SHARE):
                leg = await self._deliver(self._sending(entity, prepared, deadline))
        except trio.Cancelled:
            self.sends.failed(Outcome.UNKNOWN, len(prepared))
            raise
        except BrokerError as error:
            self.sends.failed(error.outcome, len(prepared))
            self.observer.report(
                SendFailed(entity=entity, outcome=error.outcome.value, reason=str(error))
            )
            raise
        self.sends.accepted(leg, len(prepared))
        return leg

    async def _deliver(self, sending: Sending) -> Leg:
        if await self.to_primary.take(sending):
            return Leg.PRIMARY
        self._refuse_what_the_primary_would(sending)
        if await self.to_backlog.take(sending, until_one_hangs=not sending.primary_asked):
            return Leg.BACKLOG
        if sending.backlog_hangs and not sending.primary_asked:
            # Perhaps it is the secondary that is down: a primary that is well answers soon.
            if await self.to_primary.take_after_all(sending, at_most=HASTE):
                return Leg.PRIMARY
            if await self.to_backlog.take(sending):
                return Leg.BACKLOG
        leg = await self._deliver_after_all(sending)
        if leg is None:
            raise sending.verdict(self._refusal(sending))
        return leg

    async def _deliver_after_all(self, sending: Sending) -> Leg | None:
        """
        No backlog queue took it. Where a namespace may fail fast, as another way is left, it is
        connected to at last, when there is none.
        """
        if self.to_spool is not None:
            if await self.to_primary.take_after_all(sending, has_other_way=True):
                return Leg.PRIMARY
            if await self.to_spool.take(sending):
                return Leg.SPOOL
        if await self.to_primary.take_after_all(sending):
            return Leg.PRIMARY
        if await self.to_backlog.take_after_all(sending):
            return Leg.BACKLOG
        return None

    def _refusal(self, sending: Sending) -> BrokerError:
        pause = self.to_primary.pauses.left(sending.entity)
        if pause > 0:
            return Busy(f"{sending.entity} is busy, and no backlog took it", retry_after=pause)
        why = sending.fault or sending.error or "there was no time left to try"
        return Unavailable(f"neither the primary nor the backlog took it: {why}")

    def _refuse_what_the_primary_would(self, sending: Sending) -> None:
        found = self.standings.unreachable(sending.entity)
        if found is not None and self.options.on_unreachable is OnUnreachable.RAISE:
            raise sending.verdict(found)
        rule = entity_rule(sending.entity, self.options.entities)
        policy = (rule and rule.unknown_entity) or self.options.unknown_entity
        try:
            self.admission.admit_to_backlog(sending.entity, sending.messages, policy)
        except BrokerError as error:
            raise sending.verdict(error) from error

    def _sending(self, entity: EntityPath, messages: Sequence[Message], deadline: float) -> Sending:
        rule = entity_rule(entity, self.options.entities)
        return Sending(
            entity=entity,
            messages=messages,
            deadline=deadline,
            attempt_timeout=self.options.attempt_timeout,
            on_unknown=(rule and rule.on_unknown) or self.options.on_unknown,
            may_divert=rule is None or rule.divert,
        )

    def _with_id(self, message: Message) -> Message:
        if message.message_id is not None:
            return message
        return attrs.evolve(message, message_id=self.new_id())

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Schedules.schedule`, on the primary: only it can tell the numbers.

        Raises:
            Unavailable: the entity is failed over; nothing was sent. One that is scheduled by a
                plain `send` is diverted.
            InvalidRequest: a message carries a property of the envelope.
        """
        for message in messages:
            envelope.refuse_reserved(message)
        standing = self.standings.state_of(entity)
        if standing not in HEALTHY_OR_SUSPECT:
            raise Unavailable(f"{entity} is failed over: only its primary can number a schedule")
        return await super().schedule(entity, [self._with_id(message) for message in messages])
