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

from gateway.capabilities import (
    Batches,
    BoundsSends,
    Diverts,
    Identifies,
    Schedules,
    TransactedSend,
    TransactedWork,
    Transacts,
    messages_in,
    sends_in,
)
from gateway.deadlines import given_until
from gateway.domain import envelope
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotOrderer,
    NotSupported,
    Outcome,
    Unavailable,
)
from gateway.domain.events.gateway import SendFailed
from gateway.domain.events.hedging import SentTwice
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Message, derive_message
from gateway.extensions.hedging.hedge import Hedge
from gateway.extensions.order.keys import OrderKey, key_of
from gateway.extensions.order.sends import OrderedSends
from gateway.forwarding_broker import ForwardingBroker
from gateway.moments import Moments
from gateway.offering import required
from gateway.pairing.admission import Admission
from gateway.pairing.backlog import BacklogSender
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import OnUnreachable, PairOptions, entity_rule, hedge_after
from gateway.pairing.primary import HEALTHY_OR_SUSPECT, PrimarySender
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker, NewId, Observer

# Seconds for the primary, after a backlog queue that hangs: it may be the secondary that is down,
# and the other backlog queues need the rest of the time.
HASTE: Final = 1.0
_ALONE: Final = "a transaction is the primary's alone, and is never diverted"
WAIT_SHARE: Final = 0.5  # share of a send's time that it may wait for `max_inflight`
# Seconds; as long as a client can make its send last (`limits.rest.longest_wait`).
LONGEST_FORWARDED: Final = 240.0
FORWARDED_WAIT: Final = 1.0  # seconds, at most, that a forwarded send does so


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
    # None: no entity keeps its order.
    ordered: OrderedSends | None = attrs.field(default=None, on_setattr=attrs.setters.frozen)
    destination: Destination
    inflight: InFlight
    moments: Moments
    sends: SendCounters = attrs.field(factory=SendCounters)
    new_id: NewId
    observer: Observer

    adds: ClassVar[frozenset[type]] = frozenset((BoundsSends, Diverts))

    @property
    def inner(self) -> Broker:
        return self.primary

    def longest_send(self) -> float:
        """As `BoundsSends.longest_send`."""
        return self.options.send_timeout

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

        The deadline is the caller's cancel scope, or else the time that its client gives
        (`client_gives`), or `send_timeout` without such a time, if that is earlier. Messages
        without an id get one, which is the same in every attempt. The time to live runs from the
        call on.

        Raises:
            BrokerError: as `Broker.send`; `Busy` says for how long to wait.
        """
        [batch] = await self._send(entity, [messages], in_order=False)
        if batch.error is not None:
            raise batch.error
        assert batch.accepted_by is not None, "a batch without an error was accepted"
        return batch.accepted_by

    async def send_each_diverting(
        self, entity: EntityPath, batches: Batches
    ) -> Sequence[AcceptedBy | BrokerError]:
        """
        As `send_diverting` for each batch: return who has accepted it, or its error. The batches
        share each decision where to send, as in `send_many`; other sends may overtake them.
        """
        verdicts: list[AcceptedBy | BrokerError] = []
        for batch in await self._send(entity, batches, in_order=False):
            verdict = batch.error or batch.accepted_by
            assert verdict is not None, "each batch has its verdict"
            verdicts.append(verdict)
        return verdicts

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `SendsMany.send_many`, and as `send_diverting` for each batch. The batches share each
        decision where to send, and an attempt on the primary counts once for their entity. Batches
        that are diverted go to one backlog queue.

        The order holds for what the primary accepts in its first attempt. Batches that it was too
        busy for are sent again after a pause, in their order, behind others that it accepted.
        """
        return [batch.error for batch in await self._send(entity, batches, in_order=True)]

    async def _send(
        self, entity: EntityPath, batches: Batches, *, in_order: bool
    ) -> Sequence[Batch]:
        taken = self.moments.now()
        now = taken.monotonic
        usual = now + self.options.send_timeout
        deadline = min(trio.current_effective_deadline(), given_until() or usual)
        made = [Batch([self._with_id(message) for message in each]) for each in batches]
        admitted, size = self._admitted(entity, made)
        keeps_order = self.keeps_order(entity)
        in_order |= keeps_order
        room = self.inflight.reserve(
            entity, size, now + (deadline - now) * WAIT_SHARE, in_order=in_order
        )
        try:
            if admitted:
                async with room:
                    if keeps_order:
                        await self._deliver_in_order(entity, admitted, taken, deadline)
                    else:
                        sending = self._sending(entity, admitted, taken, deadline, in_order)
                        await self._deliver(sending)
        except trio.Cancelled:
            lasted = trio.current_time() - now
            for batch in made:
                self.sends.failed(None, len(batch.messages), lasted)
            raise
        except Busy as error:
            for batch in admitted:
                batch.fail(error)
                self.sends.refused_on_arrival(error, len(batch.messages))
        self._count(entity, made, trio.current_time() - now)
        return made

    def _admitted(self, entity: EntityPath, batches: Sequence[Batch]) -> tuple[list[Batch], int]:
        """The batches that may be sent, and their size in bytes; the others have their errors."""
        admitted, size = [], 0
        for batch in batches:
            try:
                size += self.admission.admit(entity, batch.messages)
            except BrokerError as error:
                batch.fail(error)
                self.sends.refused_on_arrival(error, len(batch.messages))
            else:
                admitted.append(batch)
        return admitted, size

    def _count(self, entity: EntityPath, batches: Sequence[Batch], seconds: float) -> None:
        reasons: dict[str, Outcome] = {}
        for batch in batches:
            if batch.error is not None:
                self.sends.failed(batch.error, len(batch.messages), seconds)
                reasons[str(batch.error)] = batch.error.outcome
            elif batch.accepted_by is not None:
                self.sends.accepted(batch.accepted_by, len(batch.messages), seconds)
        for reason, outcome in reasons.items():
            self.observer.report(SendFailed(entity=entity, outcome=outcome.value, reason=reason))

    async def _deliver(self, sending: Sending) -> None:
        """Return when each batch has its verdict."""
        try:
            await self._try_all_ways(sending)
        except BrokerError as error:
            sending.fail(error)
        for batch in sending.pending:
            batch.fail(self._refusal(sending, batch))

    def keeps_order(self, entity: EntityPath) -> bool:
        """True if the entity keeps the order of its sends."""
        return self.ordered is not None and self.ordered.covers(entity)

    async def send_forwarded(
        self, entity: EntityPath, queue: EntityPath, messages: Sequence[Message], seconds: float
    ) -> AcceptedBy:
        """
        As `send_diverting`, for a gateway that takes this one for the orderer of that queue. All
        messages are of one key. The send counts in `max_inflight`, and in no statistics: the
        gateway that had it from a client counts it.

        Raises:
            NotOrderer: this gateway isn't the orderer, or isn't any more; nothing was sent.
            BrokerError: as `send_diverting`.
        """
        ordered = self.ordered
        if ordered is None or not ordered.covers(entity):
            raise NotOrderer(f"this gateway keeps no order of {entity}")
        keys = {key_of(entity, message) for message in messages}
        for key in keys:
            ordered.check_orderer(key, queue)
        if len(keys) != 1:
            raise InvalidRequest(f"messages of one key expected, got {len(keys)} keys")
        taken, batch = self.moments.now(), Batch(messages)
        now = taken.monotonic
        size = self.admission.admit(entity, messages)
        # A short wait only: the other gateway holds room meanwhile, and may wait for room of this
        # one.
        room_until = now + min(seconds * WAIT_SHARE, FORWARDED_WAIT)
        async with self.inflight.reserve(entity, size, room_until, in_order=True):
            deadline = now + min(seconds, LONGEST_FORWARDED)
            await self._deliver_in_order(entity, [batch], taken, deadline, is_forwarded=True)
        if batch.error is not None:
            raise batch.error
        assert batch.accepted_by is not None, "a batch without an error was accepted"
        return batch.accepted_by

    def note_orderer(self, queue: EntityPath, address: str) -> None:
        """As `OrderLeases.note_orderer`."""
        leases = None if self.ordered is None else self.ordered.leases
        if leases is None:
            raise NotSupported(f"this gateway has no lease of {queue}")
        leases.note_orderer(queue, address)

    async def _deliver_in_order(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        is_forwarded: bool = False,
    ) -> None:
        ordered = self.ordered
        assert ordered is not None, "only a pair with ordered entities asks"

        async def deliver(key: OrderKey, batch: Batch, since: Now) -> None:
            sending = self._sending(entity, [batch], since, deadline, False)
            sending.hedge = None  # the second copy would have another place in the order
            sending.is_forwarded = is_forwarded
            try:
                await ordered.try_ways(sending, key, self._refuse_what_the_primary_would)
            except BrokerError as error:
                sending.fail(error)
            if batch.is_pending:
                batch.fail(self._refusal(sending, batch))

        await ordered.deliver(entity, batches, taken, deadline, deliver, is_forwarded=is_forwarded)

    async def _try_all_ways(self, sending: Sending) -> None:
        if await self.to_primary.take(sending):
            return
        self._refuse_what_the_primary_would(sending)
        if await self.to_backlog.take(sending, until_one_hangs=not sending.primary_asked):
            return
        if sending.backlog_hangs and not sending.primary_asked:
            # Perhaps only the secondary is down: a healthy primary answers soon.
            if await self.to_primary.take_after_all(sending, at_most=HASTE):
                return
            if await self.to_backlog.take(sending):
                return
        await self._try_after_all(sending)

    async def _try_after_all(self, sending: Sending) -> None:
        """
        Try the last ways after every backlog queue has failed: primary, spool, and backlog again.

        A namespace that failed fast before is connected to now.
        """
        if self.to_spool is not None:
            if await self.to_primary.take_after_all(sending, has_other_way=True):
                return
            if await self.to_spool.take(sending):
                return
        if not await self.to_primary.take_after_all(sending):
            await self.to_backlog.take_after_all(sending)

    def _refusal(self, sending: Sending, batch: Batch) -> BrokerError:
        pause = self.to_primary.pauses.left(sending.entity)
        if pause > 0:
            return Busy(
                f"{sending.entity} is busy, and no backlog queue accepted the send",
                retry_after=pause,
            )
        each = [f"{accepted_by.value}: {error}" for accepted_by, error in batch.errors.items()]
        why = batch.fault or "; ".join(each) or "there was no time left to try"
        return Unavailable(f"neither the primary nor the backlog accepted the send: {why}")

    def _refuse_what_the_primary_would(self, sending: Sending) -> None:
        """
        End the batches that the primary wouldn't accept.

        Raises:
            BrokerError: the verdict for all pending batches.
        """
        found = self.states.unreachable(sending.entity)
        if found is not None and self.options.on_unreachable is OnUnreachable.RAISE:
            raise found
        rule = entity_rule(sending.entity, self.options.entities)
        policy = (rule and rule.unknown_entity) or self.options.unknown_entity
        for batch in sending.pending:
            try:
                self.admission.admit_to_backlog(sending.entity, batch.messages, policy)
            except MessageTooLarge as error:
                # A primary that is busy takes it later; after "too large" no client tries again.
                busy = self.to_primary.pauses.left(sending.entity) > 0
                batch.fail(self._refusal(sending, batch) if busy else error)
            except BrokerError as error:
                batch.fail(error)

    def _sending(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        in_order: bool,
    ) -> Sending:
        rule = entity_rule(entity, self.options.entities)
        sending = Sending(
            entity=entity,
            batches=batches,
            taken=taken,
            deadline=deadline,
            attempt_timeout=self.options.attempt_timeout,
            on_unknown=(rule and rule.on_unknown) or self.options.on_unknown,
            may_divert=rule is None or rule.divert,
            in_order=in_order,
            is_for_primary_alone=any(
                self.admission.is_for_primary_alone(entity, batch.messages) for batch in batches
            ),
        )
        seconds = hedge_after(entity, self.options)
        if seconds is not None and not sending.is_for_primary_alone:
            sending.hedge = Hedge(
                seconds, partial(self._deliver_copy, sending), partial(self._doubled, sending)
            )
        return sending

    async def _deliver_copy(self, sending: Sending) -> bool:
        """Send the hedge to the backlog. True: the backlog accepted all of its batches."""
        asked = sending.pending
        copies = [Batch(batch.messages) for batch in asked]
        copy = attrs.evolve(sending, batches=copies, hedge=None, copy_of=sending.hedge)
        try:
            self._refuse_what_the_primary_would(copy)
        except BrokerError:
            await trio.lowlevel.checkpoint()
            return False
        if len(copy.pending) < len(copies):
            await trio.lowlevel.checkpoint()
            return False
        delivered = await self.to_backlog.take(copy) and all(e.error is None for e in copies)
        for batch, each in zip(asked, copies, strict=True):
            arrived = each.accepted_by is not None and not delivered
            batch.tainted |= each.tainted or arrived
        return delivered

    def _doubled(self, sending: Sending, certain: bool) -> None:
        accepted = [e for e in sending.batches if e.accepted_by is AcceptedBy.PRIMARY]
        messages = sum(len(batch.messages) for batch in accepted)
        self.observer.report(SentTwice(entity=sending.entity, messages=messages, certain=certain))

    def _with_id(self, message: Message) -> Message:
        if message.message_id is not None:
            return message
        return derive_message(message, message_id=self.new_id())

    async def probe(self, entity: EntityPath) -> None:
        """
        As `Broker.probe`, of the primary. Raises Unavailable for a missing entity whose sends are
        diverted.
        """
        try:
            await self.primary.probe(entity)
        except (EntityNotFound, EntityDisabled) as error:
            if self.states.is_diverted(entity, error):
                raise Unavailable(f"{error}; its sends go to the backlog") from error
            raise

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

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`, of the primary."""
        try:
            await required(self.primary, Transacts).check_transactions()
        except Unavailable as error:
            raise Unavailable(f"{error}; {_ALONE}") from error

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """
        As `Transacts.commit`, on the primary: no other namespace could do all of it or nothing.

        Raises:
            Unavailable: an entity is failed over, or the primary can't be reached; nothing was
                done. Nothing of a transaction is diverted.
            NotSupported: an entity keeps its order; nothing was done.
        """
        prepared = [self._prepared(each) for each in work]
        with self.sends.transaction(messages_in(prepared), trio.current_time):
            for each in sends_in(prepared):
                self._check_transacted(each)
            await required(self.primary, Transacts).commit(prepared)

    def _prepared(self, work: TransactedWork) -> TransactedWork:
        if not isinstance(work, TransactedSend):
            return work
        return TransactedSend(work.entity, [self._with_id(message) for message in work.messages])

    def _check_transacted(self, work: TransactedSend) -> None:
        entity = work.entity
        self.admission.admit(entity, work.messages)
        if self.keeps_order(entity):
            raise NotSupported(f"{entity} keeps its order: a transaction could overtake a send")
        if self.states.state_of(entity) not in HEALTHY_OR_SUSPECT:
            raise Unavailable(f"{entity} is failed over: {_ALONE}")
