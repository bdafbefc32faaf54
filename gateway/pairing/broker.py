"""
Presents two namespaces as one broker: a send goes to the primary, or to the secondary's backlog.

`ways.py` says which namespace a send tries, and in which order.

`options.py` has the options of the pair and of its syphon, `pair.py` puts the parts together. For a
new option see CONTRIBUTING.md, "How to add an option".
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import (
    Batches,
    BoundsSends,
    Diverts,
    EnlistsSchedules,
    Identifies,
    Schedules,
    TransactedCancellation,
    TransactedSend,
    TransactedWork,
    Transacts,
    messages_in,
    sends_in,
)
from gateway.capabilities.sending import is_in_doubt
from gateway.deadlines import client_deadline
from gateway.domain import envelope
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    NotSupported,
    Outcome,
    Unavailable,
)
from gateway.domain.events.gateway import SendFailed
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, Message, derive_message
from gateway.forwarding_broker import ForwardingBroker
from gateway.moments import Moments
from gateway.offering import required
from gateway.pairing.inflight import InFlight
from gateway.pairing.options import PairOptions
from gateway.pairing.primary import HEALTHY_OR_SUSPECT
from gateway.pairing.sending import Batch
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.ways import Delivers, Ways
from gateway.ports import Broker, NewId, Observer

_ALONE: Final = "a transaction is the primary's alone, and is never diverted"
WAIT_SHARE: Final = 0.5  # share of a send's time that it may wait for `max_inflight`


@attrs.define(eq=False, kw_only=True)
class PairedBroker(ForwardingBroker):
    """The pair as a `Broker`: protects sends, and forwards all other operations to the primary."""

    primary: Broker
    options: PairOptions
    ways: Ways
    delivery: Delivers  # `ways`, or what an extension has in their place
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
        deadline = min(trio.current_effective_deadline(), client_deadline() or usual)
        made = [Batch([self._with_id(message) for message in each]) for each in batches]
        if is_in_doubt():
            for batch in made:
                batch.tainted = True
        admitted, size = self._admitted(entity, made)
        in_order |= self.keeps_order(entity)
        room = self.inflight.reserve(
            entity, size, now + (deadline - now) * WAIT_SHARE, in_order=in_order
        )
        try:
            if admitted:
                async with room:
                    await self.delivery.deliver(
                        entity, admitted, taken, deadline, in_order=in_order
                    )
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
                size += self.ways.admission.admit(entity, batch.messages)
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

    def keeps_order(self, entity: EntityPath) -> bool:
        """True if the entity keeps the order of its sends."""
        return self.delivery.keeps_order(entity)

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
            if self.ways.states.is_diverted(entity, error):
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
        prepared = self._to_be_scheduled(entity, messages)
        return await required(self.primary, Schedules).schedule(entity, prepared)

    def _to_be_scheduled(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> Sequence[Message]:
        for message in messages:
            envelope.refuse_reserved(message)
        state = self.ways.states.state_of(entity)
        if state not in HEALTHY_OR_SUSPECT:
            raise Unavailable(
                f"{entity} is failed over: only its primary can assign the sequence number of a"
                " scheduled message"
            )
        return [self._with_id(message) for message in messages]

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """As `Schedules.cancel_scheduled`, on the primary."""
        await required(self.primary, Schedules).cancel_scheduled(entity, sequence_numbers)

    async def enlist_schedule(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> TransactedSend:
        """As `EnlistsSchedules.enlist_schedule`, on the primary; raises as `schedule`."""
        prepared = self._to_be_scheduled(entity, messages)
        return await required(self.primary, EnlistsSchedules).enlist_schedule(entity, prepared)

    def enlist_cancellation(
        self, entity: EntityPath, sequence_numbers: Sequence[int]
    ) -> TransactedCancellation:
        """As `EnlistsSchedules.enlist_cancellation`, on the primary."""
        enlists = required(self.primary, EnlistsSchedules)
        return enlists.enlist_cancellation(entity, sequence_numbers)

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
        return attrs.evolve(work, messages=[self._with_id(message) for message in work.messages])

    def _check_transacted(self, work: TransactedSend) -> None:
        entity = work.entity
        self.ways.admission.admit(entity, work.messages)
        if self.keeps_order(entity):
            raise NotSupported(f"{entity} keeps its order: a transaction could overtake a send")
        if self.ways.states.state_of(entity) not in HEALTHY_OR_SUSPECT:
            raise Unavailable(f"{entity} is failed over: {_ALONE}")
