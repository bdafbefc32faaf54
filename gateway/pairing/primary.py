"""Sends to the primary: which sends may try it, and what each answer means."""

import math
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.changes import QueueTurn, Turns
from gateway.deadlines import AnswerDeadline
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    NoAnswer,
    NotAuthorized,
    Outcome,
    QuotaExceeded,
)
from gateway.domain.events.gateway import SentTwice
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.busy_pauses import BusyPauses
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import OnUnknown, OnUnreachable, PairOptions, WhileSuspect
from gateway.pairing.sending import (
    SHORTEST_ATTEMPT,
    Batch,
    Sending,
    send_each_in_time,
    time_limit,
    unanswered,
)
from gateway.pairing.slow_watch import SlowWatch
from gateway.pairing.state_table import FAILED_OVER
from gateway.pairing.states import EntityStates
from gateway.ports import Broker, Observer

HEALTHY_OR_SUSPECT: Final = frozenset({State.PRIMARY, State.SUSPECT})
# A time-out counts only if the attempt had that many seconds, or that share of `attempt_timeout`: a
# client's hasty deadline says nothing of the primary.
FAIR_TRY: Final = 1.0
FAIR_SHARE: Final = 0.1


@attrs.define(eq=False, kw_only=True)
class PrimarySender:
    """Makes the attempts of a send on the primary."""

    primary: Broker
    options: PairOptions
    states: EntityStates
    entity_cache: EntityCache
    pauses: BusyPauses
    watch: SlowWatch
    observer: Observer
    _turns: Turns = attrs.field(factory=Turns, init=False)

    async def send_to_primary(self, sending: Sending) -> bool:
        """
        Try the primary. True: each batch has its verdict; a batch may also have it from the
        backlog, by a second copy. False: the pending batches must be diverted.

        If some batches of a call are to be diverted, those that the primary was too busy for are
        diverted with them.

        Raises:
            BrokerError: the verdict for all pending batches; diverting doesn't help.
        """
        while sending.pending and sending.left > SHORTEST_ATTEMPT:
            with self._turns.acquire(sending.entity.key if sending.in_order else None) as turn:
                await turn.come()
                attempt = await self._begin(sending) if sending.left > SHORTEST_ATTEMPT else None
                if attempt is None:
                    return False
                failures = await self._ask(
                    sending,
                    attempt,
                    min(sending.primary_seconds, sending.left),
                    has_other_way=self._leaves_the_backlog(sending)
                    and not sending.is_for_primary_alone,
                    turn=turn,
                )
            if sending.second is not None and sending.second.delivered:
                for batch in sending.pending:
                    batch.accepted_by = AcceptedBy.BACKLOG
            elif self._are_diverted(sending, attempt, failures):
                return False
        return not sending.pending

    async def send_to_primary_after_all(
        self, sending: Sending, *, at_most: float = math.inf, has_other_way: bool = False
    ) -> bool:
        """
        Try the primary once more, whatever the entity's state, as no backlog queue accepted all.
        True: each batch has its verdict, also if that is the error of its caller's fault, so that
        no other namespace helps.

        The attempt lasts `at_most` seconds; `has_other_way` is as in `send_each_in_time`.
        """
        entity, seconds = sending.entity, min(sending.backlog_seconds, at_most)
        pinned = self.states.state_of(entity) is State.PINNED
        if pinned or seconds < SHORTEST_ATTEMPT or self.pauses.left(entity) > 0:
            return False
        asked, attempt = len(sending.pending), self.states.begin(entity)
        failures = await self._ask(sending, attempt, seconds, has_other_way=has_other_way)
        if len(failures) < asked:
            in_time = trio.current_time() - attempt.began < self.options.slowest_success
            if in_time and self.states.state_of(entity) is State.SECONDARY:
                self.states.probed(entity, attempt)  # the answer is as good as a probe's
        for batch, error in failures:
            sending.failed(batch, error)
            if isinstance(error, Busy):
                self.pauses.begin(entity, error)
            elif not (error.counts_as_outage or self._diverts(attempt, error)):
                batch.fail(error)
        return not sending.pending

    async def _begin(self, sending: Sending) -> Attempt | None:
        """Begin an attempt, once this send may try the primary. None: it must be diverted."""
        entity = sending.entity
        while self._open_to_all(sending):
            if self.pauses.left(entity) == 0:
                return self.states.begin(entity)
            # Keep time for the attempt after the pause.
            await self.pauses.wait(entity, sending.deadline - sending.primary_seconds)
        if self.pauses.left(entity) > 0:
            return None
        return await self._begin_in_doubt(sending)

    async def _begin_in_doubt(self, sending: Sending) -> Attempt | None:
        """Begin a trial, one at a time; for a suspect entity once a probe was answered."""
        entity = sending.entity
        seconds = min(self.options.suspect_wait, sending.primary_seconds)
        deadline = trio.current_time() + seconds
        while True:
            trial = self.states.begin_trial(entity)
            if trial is not None or self.states.state_of(entity) is not State.SUSPECT:
                break
            if not await self.states.wait_verdict(entity, deadline):
                return None
        if trial is None and self.states.state_of(entity) is State.PRIMARY:
            return self.states.begin(entity)
        return trial

    def _open_to_all(self, sending: Sending) -> bool:
        if self._leaves_the_backlog(sending):
            self.states.suspect(sending.entity)
        state = self.states.state_of(sending.entity)
        # The legacy client tried the primary with every send until the interval was over.
        as_legacy = state is State.SUSPECT and self.options.while_suspect is WhileSuspect.RAISE
        return state is State.PRIMARY or as_legacy or not sending.may_divert

    def _leaves_the_backlog(self, sending: Sending) -> bool:
        return sending.may_divert and self.options.while_suspect is not WhileSuspect.RAISE

    async def _ask(
        self,
        sending: Sending,
        attempt: Attempt,
        seconds: float,
        *,
        has_other_way: bool,
        turn: QueueTurn | None = None,
    ) -> Sequence[tuple[Batch, BrokerError]]:
        """
        Make one attempt for all pending batches, and report its result to the entity states. Return
        the batches that the primary didn't accept, with the reasons.
        """
        ends = min(trio.current_time() + seconds, sending.deadline)
        sending.primary_asked = True
        batches = sending.pending
        try:
            failures = await self._send(
                sending, batches, attempt, seconds, has_other_way=has_other_way, turn=turn
            )
        except trio.Cancelled:
            if trio.current_time() >= ends:  # the caller's deadline was the attempt's as well
                error = unanswered(self.primary, sending.entity, seconds)
                self._count(sending, attempt, error, lasted=seconds)
            raise
        else:
            errors = [error for _, error in failures]
            self._report(sending, attempt, errors, len(batches) - len(errors), seconds, ends)
            return failures
        finally:
            # Ends trials without a result: busy, refused, cancelled.
            self.states.release(attempt)

    def _report(
        self,
        sending: Sending,
        attempt: Attempt,
        errors: Sequence[BrokerError],
        accepted: int,
        seconds: float,
        ends: float,
    ) -> None:
        """
        Tell the entity states what an attempt came to. If it has several results, a failure counts
        after a success, and a trial with a failure has failed.
        """
        now, entity = trio.current_time(), sending.entity
        state = self.states.state_of(entity)
        outage = next((error for error in errors if self.states.counts(entity, error)), None)
        if accepted:
            if outage is None or not attempt.trial:
                took = now - attempt.began
                late = sending.may_divert and took >= self.options.slowest_success
                self.states.sent(attempt, late=late)
            self.pauses.clear(entity)
            self.entity_cache.record_accepted(entity)
        if outage is not None:
            lasted = seconds if now >= ends else math.inf
            if isinstance(outage, NoAnswer):
                lasted = min(lasted, now - attempt.began)
            self._count(sending, attempt, outage, lasted=lasted)
        elif not accepted:
            self.states.refused(attempt)
        is_missing = any(isinstance(error, EntityNotFound) for error in errors)
        if is_missing and outage is None and state not in FAILED_OVER:
            self.entity_cache.remove(entity)

    async def _send(
        self,
        sending: Sending,
        batches: Sequence[Batch],
        attempt: Attempt,
        seconds: float,
        *,
        has_other_way: bool,
        turn: QueueTurn | None,
    ) -> Sequence[tuple[Batch, BrokerError]]:
        """
        Return once the primary has answered; return the batches that it didn't accept. The error is
        `NoAnswer` if another way is left and the entity shows no sign of life.
        """
        limit = time_limit(self.primary, sending.entity, seconds)
        if not sending.may_divert:  # such a send is never cancelled, and doesn't count as slow
            failures = _accept(batches, await self._hand_over(sending, batches, limit, turn))
            self._report_copies(sending.entity, batches)
            return failures
        gives_up = has_other_way and sending.on_unknown is OnUnknown.DIVERT
        patience = limit.scope if gives_up else None
        second = sending.second if gives_up else None
        watched = self.watch.begin(attempt, patience, second)
        try:
            verdicts = await self._hand_over(
                sending, batches, limit, turn, has_other_way=has_other_way
            )
            waited = trio.current_time() - attempt.began
            if patience is not None and patience.cancelled_caught and waited < seconds:
                verdicts = [unanswered(self.primary, sending.entity, waited)] * len(batches)
            failures = _accept(batches, verdicts)
            if failures and second is not None:
                second.refused = all(e.outcome is Outcome.NOT_SENT for _, e in failures)
                await second.wait()
        finally:
            self.watch.stop(watched)
        if len(failures) < len(batches):
            self._report_copies(sending.entity, batches)
            if second is not None:
                second.accepted_by_primary()
            self.watch.accepted(attempt)
        return failures

    def _report_copies(self, entity: EntityPath, batches: Sequence[Batch]) -> None:
        """Report the accepted messages that an earlier attempt may have brought there, too."""
        copies = sum(len(each.messages) for each in batches if each.tainted and each.accepted_by)
        if copies:
            self.observer.report(SentTwice(entity=entity, messages=copies, certain=False))

    async def _hand_over(
        self,
        sending: Sending,
        batches: Sequence[Batch],
        limit: AnswerDeadline,
        turn: QueueTurn | None,
        *,
        has_other_way: bool = False,
    ) -> Sequence[BrokerError | None]:
        if turn is not None:
            turn.release()  # the primary keeps the order from here on
        return await send_each_in_time(
            self.primary,
            sending.entity,
            [sending.handed_over(batch) for batch in batches],
            limit,
            has_other_way=has_other_way,
            in_order=sending.in_order,
        )

    def _count(
        self, sending: Sending, attempt: Attempt, error: BrokerError, *, lasted: float
    ) -> None:
        """Count a failure as an outage, unless the attempt had too little time."""
        fair = lasted >= min(FAIR_TRY, FAIR_SHARE * self.options.attempt_timeout)
        if fair and sending.may_divert:
            self.states.failed(attempt, error)

    def _are_diverted(
        self,
        sending: Sending,
        attempt: Attempt,
        failures: Sequence[tuple[Batch, BrokerError]],
    ) -> bool:
        """
        End the batches whose error goes to the caller. True: the pending ones are to be diverted.
        False: the primary gets them again after a pause.
        """
        busy = [(batch, error) for batch, error in failures if isinstance(error, Busy)]
        diverted = False
        for batch, error in failures:
            sending.failed(batch, error)
            if isinstance(error, Busy):
                continue
            if not (sending.may_divert and self._diverts(attempt, error)):
                batch.fail(error)
            diverted |= batch.is_pending
        if busy:
            longest = max((error for _, error in busy), key=lambda error: error.retry_after)
            diverted |= self._throttled_for_too_long(sending, longest)
        return diverted

    def _diverts(self, attempt: Attempt, error: BrokerError) -> bool:
        state = self.states.state_of(attempt.entity)
        if isinstance(error, QuotaExceeded):
            return self.options.divert_on_quota
        if isinstance(error, EntityNotFound | EntityDisabled):
            # The trial of a failed-over entity: treated as the result of a probe.
            on_trial = attempt.trial and state is State.HALF_OPEN
            if on_trial and self.options.on_unreachable is OnUnreachable.DIVERT:
                return True
            return self.states.is_diverted(attempt.entity, error)
        if self.options.while_suspect is WhileSuspect.RAISE and state in HEALTHY_OR_SUSPECT:
            return False
        if isinstance(error, NotAuthorized) and self.states.awaits_credentials(attempt.entity):
            return True
        return self.states.counts(attempt.entity, error)

    def _throttled_for_too_long(self, sending: Sending, error: Busy) -> bool:
        """Begin or extend a pause. True: it counts as an outage, by `throttle_failover_after`."""
        busy_for = self.pauses.begin(sending.entity, error)
        limit = self.options.throttle_failover_after
        if limit is None or busy_for < limit or not sending.may_divert:
            return False
        self.states.failed(self.states.begin(sending.entity), error)
        return True


def _accept(
    batches: Sequence[Batch], verdicts: Sequence[BrokerError | None]
) -> Sequence[tuple[Batch, BrokerError]]:
    """Note which batches the primary accepted; return the others with their errors."""
    failures = []
    for batch, error in zip(batches, verdicts, strict=True):
        if error is None:
            batch.accepted_by = AcceptedBy.PRIMARY
        else:
            failures.append((batch, error))
    return failures
