"""
Presents two namespaces as one broker: a send goes to the primary, or to the secondary's backlog.

    state        a send goes to
    PRIMARY      the primary, in one attempt; if that fails, the backlog, within the same call
    SUSPECT      waits up to `suspect_wait` for a probe of the primary. If it answers, one send goes
                 to the primary as a trial; the others wait for its result. Without a good result in
                 time sends are diverted, and so is a trial that fails
    SECONDARY    the backlog
    HALF_OPEN    the primary as a trial, one at a time; all others go to the backlog
    PINNED       the backlog, until an operator unpins the entity

If no backlog queue accepts the messages, the send tries the primary again (only the secondary may
be down), then the spool. Attempts fail fast on a namespace that couldn't be connected to a moment
ago, as long as another way is left; before the caller gets an error, both namespaces were connected
to. If the primary wasn't asked and a backlog queue hangs, the send tries the primary for `HASTE`
seconds before the other backlog queues.

`options.py` has the options of the pair and of its syphon, `pair.py` puts the parts together. For a
new option see CONTRIBUTING.md, "How to add an option".
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import Diverts, Identifies, Schedules
from gateway.domain import envelope
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, NotSupported, Outcome, Unavailable
from gateway.domain.events.gateway import SendFailed
from gateway.domain.events.hedging import SentTwice
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.moments import Moments
from gateway.offering import required
from gateway.pairing.admission import Admission
from gateway.pairing.backlog import BacklogSender
from gateway.pairing.hedging import Hedge
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import OnUnreachable, PairOptions, entity_rule, hedge_after
from gateway.pairing.primary import HEALTHY_OR_SUSPECT, PrimarySender
from gateway.pairing.send_counters import SendCounters
from gateway.pairing.sending import Sending
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker, NewId, Observer

HASTE: Final = 1.0  # seconds for the primary, after a backlog queue that hangs
WAIT_SHARE: Final = 0.5  # share of a send's time that it may wait for `max_inflight`


@attrs.define(eq=False, kw_only=True)
class PairedBroker(ForwardingBroker):
    """The pair as a `Broker`: protects sends, and forwards all other operations to the primary."""

    primary: Broker
    options: PairOptions
    states: EntityStates
    admission: Admission
    to_primary: PrimarySender
    to_backlog: BacklogSender
    to_spool: BacklogSender | None = None
    destination: Destination
    inflight: InFlight
    moments: Moments
    sends: SendCounters = attrs.field(factory=SendCounters)
    new_id: NewId
    observer: Observer

    adds: ClassVar[frozenset[type]] = frozenset((Diverts,))

    @property
    def inner(self) -> Broker:
        return self.primary

    async def identity(self) -> Identity:
        """As `Identifies.identity`; while the primary is down, the identity it reported last."""
        try:
            return await required(self.primary, Identifies).identity()
        except BrokerError as error:
            if self.destination.identity is None or isinstance(error, NotSupported):
                raise
            return self.destination.identity

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `send_diverting`."""
        await self.send_diverting(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        Return once the primary, a backlog queue or the spool has accepted all messages; return
        which of them.

        The deadline is the caller's cancel scope, or `send_timeout` if that is earlier. Messages
        without an id get one, which is the same in every attempt. The time to live runs from the
        call on.

        Raises:
            BrokerError: as `Broker.send`; `Busy` says for how long to wait.
        """
        taken = self.moments.now()
        now = taken.monotonic
        deadline = min(trio.current_effective_deadline(), now + self.options.send_timeout)
        prepared = [self._with_id(message) for message in messages]
        try:
            size = self.admission.admit(entity, prepared)
            async with self.inflight.reserve(entity, size, now + (deadline - now) * WAIT_SHARE):
                accepted_by = await self._deliver(self._sending(entity, prepared, taken, deadline))
        except trio.Cancelled:
            self.sends.failed(Outcome.UNKNOWN, len(prepared))
            raise
        except BrokerError as error:
            self.sends.failed(error.outcome, len(prepared))
            self.observer.report(
                SendFailed(entity=entity, outcome=error.outcome.value, reason=str(error))
            )
            raise
        self.sends.accepted(accepted_by, len(prepared))
        return accepted_by

    async def _deliver(self, sending: Sending) -> AcceptedBy:
        if await self.to_primary.take(sending):
            return AcceptedBy.PRIMARY
        if sending.hedge is not None and sending.hedge.delivered:
            return AcceptedBy.BACKLOG
        self._refuse_what_the_primary_would(sending)
        if await self.to_backlog.take(sending, until_one_hangs=not sending.primary_asked):
            return AcceptedBy.BACKLOG
        if sending.backlog_hangs and not sending.primary_asked:
            # Perhaps only the secondary is down: a healthy primary answers soon.
            if await self.to_primary.take_after_all(sending, at_most=HASTE):
                return AcceptedBy.PRIMARY
            if await self.to_backlog.take(sending):
                return AcceptedBy.BACKLOG
        accepted_by = await self._deliver_after_all(sending)
        if accepted_by is None:
            raise sending.verdict(self._refusal(sending))
        return accepted_by

    async def _deliver_after_all(self, sending: Sending) -> AcceptedBy | None:
        """
        Try the last ways after every backlog queue has failed: primary, spool, and backlog again.

        A namespace that failed fast before is connected to now.
        """
        if self.to_spool is not None:
            if await self.to_primary.take_after_all(sending, has_other_way=True):
                return AcceptedBy.PRIMARY
            if await self.to_spool.take(sending):
                return AcceptedBy.SPOOL
        if await self.to_primary.take_after_all(sending):
            return AcceptedBy.PRIMARY
        if await self.to_backlog.take_after_all(sending):
            return AcceptedBy.BACKLOG
        return None

    def _refusal(self, sending: Sending) -> BrokerError:
        pause = self.to_primary.pauses.left(sending.entity)
        if pause > 0:
            return Busy(
                f"{sending.entity} is busy, and no backlog queue accepted the send",
                retry_after=pause,
            )
        each = [f"{accepted_by.value}: {error}" for accepted_by, error in sending.errors.items()]
        why = sending.fault or "; ".join(each) or "there was no time left to try"
        return Unavailable(f"neither the primary nor the backlog accepted the send: {why}")

    def _refuse_what_the_primary_would(self, sending: Sending) -> None:
        found = self.states.unreachable(sending.entity)
        if found is not None and self.options.on_unreachable is OnUnreachable.RAISE:
            raise sending.verdict(found)
        rule = entity_rule(sending.entity, self.options.entities)
        policy = (rule and rule.unknown_entity) or self.options.unknown_entity
        try:
            self.admission.admit_to_backlog(sending.entity, sending.messages, policy)
        except BrokerError as error:
            raise sending.verdict(error) from error

    def _sending(
        self, entity: EntityPath, messages: Sequence[Message], taken: Now, deadline: float
    ) -> Sending:
        rule = entity_rule(entity, self.options.entities)
        sending = Sending(
            entity=entity,
            messages=messages,
            taken=taken,
            deadline=deadline,
            attempt_timeout=self.options.attempt_timeout,
            on_unknown=(rule and rule.on_unknown) or self.options.on_unknown,
            may_divert=rule is None or rule.divert,
        )
        seconds = hedge_after(entity, self.options)
        if seconds is not None:
            sending.hedge = Hedge(
                seconds, partial(self._deliver_copy, sending), partial(self._doubled, sending)
            )
        return sending

    async def _deliver_copy(self, sending: Sending) -> bool:
        """Send the hedge to the backlog. True: the backlog accepted it."""
        copy = attrs.evolve(sending, hedge=None, copy_of=sending.hedge)
        try:
            self._refuse_what_the_primary_would(copy)
        except BrokerError:
            await trio.lowlevel.checkpoint()
            return False
        delivered = await self.to_backlog.take(copy)
        sending.tainted |= copy.tainted
        return delivered

    def _doubled(self, sending: Sending, certain: bool) -> None:
        messages = len(sending.messages)
        self.observer.report(SentTwice(entity=sending.entity, messages=messages, certain=certain))

    def _with_id(self, message: Message) -> Message:
        if message.message_id is not None:
            return message
        return attrs.evolve(message, message_id=self.new_id())

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Schedules.schedule`, on the primary, as only the primary can assign sequence numbers.

        Raises:
            Unavailable: the entity is failed over; nothing was sent. A message that is scheduled by
                a plain `send` is diverted instead.
            InvalidRequest: a message carries a property of the envelope.
        """
        for message in messages:
            envelope.refuse_reserved(message)
        state = self.states.state_of(entity)
        if state not in HEALTHY_OR_SUSPECT:
            raise Unavailable(
                f"{entity} is failed over: only its primary can assign the sequence number of a"
                " scheduled message"
            )
        prepared = [self._with_id(message) for message in messages]
        return await required(self.primary, Schedules).schedule(entity, prepared)

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`, on the primary."""
        await required(self.primary, Schedules).cancel_scheduled(entity, sequence_numbers)
