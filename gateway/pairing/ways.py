"""
The ways of a send, and in which order they are tried: the primary, the backlog, the spool.

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
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, MessageTooLarge, Unavailable
from gateway.pairing.admission import Admission
from gateway.pairing.backlog import BacklogSender
from gateway.pairing.options import OnUnreachable, PairOptions, entity_rule
from gateway.pairing.primary import PrimarySender
from gateway.pairing.sending import Batch, SecondCopy, Sending
from gateway.pairing.states import EntityStates

# Seconds for the primary, after a backlog queue that hangs: it may be the secondary that is down,
# and the other backlog queues need the rest of the time.
HASTE: Final = 1.0


class MakesCopies(Protocol):
    """Decides which sends have a second copy, while the primary doesn't answer."""

    def second_of(self, sending: Sending, ways: "Ways") -> SecondCopy | None:
        """The second copy of that send, which hasn't begun; None: it has none."""
        ...


class Delivers(Protocol):
    """Gives batches their verdicts: the extension point for sends that depend on each other."""

    def keeps_order(self, entity: EntityPath) -> bool:
        """True if the entity keeps the order of its sends."""
        ...

    async def deliver(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        in_order: bool = False,
    ) -> None:
        """
        Return when each batch has its verdict. The gateway got them when they were `taken`. With
        `in_order` later calls don't overtake this one.
        """
        ...


@attrs.define(eq=False, kw_only=True)
class Ways:
    """`Delivers`: each send goes its own way, the first that accepts it."""

    options: PairOptions
    states: EntityStates
    admission: Admission
    to_primary: PrimarySender
    to_backlog: BacklogSender
    to_spool: BacklogSender | None = None
    copies: Sequence[MakesCopies] = ()

    def keeps_order(self, entity: EntityPath) -> bool:
        """False: no send waits for another one."""
        return False

    async def deliver(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        in_order: bool = False,
    ) -> None:
        """As `Delivers.deliver`."""
        await self.give_verdicts(
            self.make(entity, batches, taken, deadline, in_order=in_order), self._try_all_ways
        )

    def make(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        in_order: bool = False,
    ) -> Sending:
        """A send of these batches, which hasn't begun, with the options of its entity."""
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
        if not sending.is_for_primary_alone:
            found = (each.second_of(sending, self) for each in self.copies)
            sending.second = next((second for second in found if second is not None), None)
        return sending

    async def give_verdicts(
        self, sending: Sending, ways: Callable[[Sending], Awaitable[None]]
    ) -> None:
        """
        Return when each batch has its verdict. `ways` gives it, or raises that of all pending ones;
        a batch without one was accepted by nobody.
        """
        try:
            await ways(sending)
        except BrokerError as error:
            sending.fail(error)
        for batch in sending.pending:
            batch.fail(self._refusal(sending, batch))

    async def _try_all_ways(self, sending: Sending) -> None:
        if await self.to_primary.send_to_primary(sending):
            return
        self.refuse_what_the_primary_would(sending)
        if await self.to_backlog.send_to_backlog(
            sending, until_one_hangs=not sending.primary_asked
        ):
            return
        if sending.backlog_hangs and not sending.primary_asked:
            # Perhaps only the secondary is down: a healthy primary answers soon.
            if await self.to_primary.send_to_primary_after_all(sending, at_most=HASTE):
                return
            if await self.to_backlog.send_to_backlog(sending):
                return
        await self._try_after_all(sending)

    async def _try_after_all(self, sending: Sending) -> None:
        """
        Try the last ways after every backlog queue has failed: primary, spool, and backlog again.

        A namespace that failed fast before is connected to now.
        """
        if self.to_spool is not None:
            if await self.to_primary.send_to_primary_after_all(sending, has_other_way=True):
                return
            if await self.to_spool.send_to_backlog(sending):
                return
        if not await self.to_primary.send_to_primary_after_all(sending):
            await self.to_backlog.send_to_backlog_after_all(sending)

    def _refusal(self, sending: Sending, batch: Batch) -> BrokerError:
        """The error of a batch that no way has accepted."""
        pause = self.to_primary.pauses.left(sending.entity)
        if pause > 0:
            return Busy(
                f"{sending.entity} is busy, and no backlog queue accepted the send",
                retry_after=pause,
            )
        each = [f"{accepted_by.value}: {error}" for accepted_by, error in batch.errors.items()]
        why = batch.fault or "; ".join(each) or "there was no time left to try"
        return Unavailable(f"neither the primary nor the backlog accepted the send: {why}")

    def refuse_what_the_primary_would(self, sending: Sending) -> None:
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
