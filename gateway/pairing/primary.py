"""Sends to the primary: which sends may try it, and what each answer means."""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    NoAnswer,
    Outcome,
    QuotaExceeded,
)
from gateway.domain.failover import State
from gateway.pairing.busy_pauses import BusyPauses
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import OnUnknown, OnUnreachable, PairOptions, WhileSuspect
from gateway.pairing.sending import (
    SHORTEST_ATTEMPT,
    Sending,
    send,
    send_in_time,
    time_limit,
    unanswered,
)
from gateway.pairing.slow_watch import SlowWatch
from gateway.pairing.states import EntityStates
from gateway.ports import Broker

HEALTHY_OR_SUSPECT: Final = frozenset({State.PRIMARY, State.SUSPECT})
# A time-out counts only if the attempt had that many seconds, or that share of `attempt_timeout`.
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

    async def take(self, sending: Sending) -> bool:
        """
        Try the primary. True: it accepted the messages. False: they must be diverted, or a hedge
        has already brought them to the backlog.

        Raises:
            BrokerError: the caller gets this error; diverting doesn't help.
        """
        while sending.left > SHORTEST_ATTEMPT:
            attempt = await self._begin(sending)
            if attempt is None:
                return False
            error = await self._ask(
                sending,
                attempt,
                min(sending.primary_seconds, sending.left),
                has_other_way=self._leaves_the_backlog(sending),
            )
            if error is None:
                return True
            if sending.hedge is not None and sending.hedge.delivered:
                return False
            if not isinstance(error, Busy):
                self._divert_or_raise(sending, attempt, error)
                return False
            if self._throttled_for_too_long(sending, error):
                return False
        return False

    async def take_after_all(
        self, sending: Sending, *, at_most: float = math.inf, has_other_way: bool = False
    ) -> bool:
        """
        Try the primary once more, whatever the entity's state, as no backlog queue accepted.

        The attempt lasts `at_most` seconds; `has_other_way` is as in `send_in_time`.

        Raises:
            BrokerError: the caller's fault, so that no other namespace helps.
        """
        entity, seconds = sending.entity, min(sending.backlog_seconds, at_most)
        pinned = self.states.state_of(entity) is State.PINNED
        if pinned or seconds < SHORTEST_ATTEMPT or self.pauses.left(entity) > 0:
            return False
        attempt = self.states.begin(entity)
        error = await self._ask(sending, attempt, seconds, has_other_way=has_other_way)
        if error is None:
            in_time = trio.current_time() - attempt.began < self.options.slowest_success
            if in_time and self.states.state_of(entity) is State.SECONDARY:
                self.states.probed(entity, attempt)  # the answer is as good as a probe's
            return True
        sending.failed(error)
        if isinstance(error, Busy):
            self.pauses.begin(entity, error)
        elif not error.counts_as_outage:
            raise sending.verdict(error)
        return False

    async def _begin(self, sending: Sending) -> Attempt | None:
        """Begin an attempt, once this send may try the primary. None: it must be diverted."""
        entity = sending.entity
        while self._open_to_all(sending):
            if self.pauses.left(entity) == 0:
                return self.states.begin(entity)
            await self._wait_for_pause(sending)
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

    async def _wait_for_pause(self, sending: Sending) -> None:
        try:
            # Keep time for the attempt after the pause.
            await self.pauses.wait(sending.entity, sending.deadline - sending.primary_seconds)
        except Busy as error:
            raise sending.verdict(error) from error

    def _leaves_the_backlog(self, sending: Sending) -> bool:
        return sending.may_divert and self.options.while_suspect is not WhileSuspect.RAISE

    async def _ask(
        self, sending: Sending, attempt: Attempt, seconds: float, *, has_other_way: bool
    ) -> BrokerError | None:
        """Make one attempt, and report its result to the entity states."""
        ends = min(trio.current_time() + seconds, sending.deadline)
        sending.primary_asked = True
        try:
            late = await self._send(sending, attempt, seconds, has_other_way=has_other_way)
        except trio.Cancelled:
            if trio.current_time() >= ends:  # the caller's deadline was the attempt's as well
                self._count(
                    sending,
                    attempt,
                    unanswered(self.primary, sending.entity, seconds),
                    lasted=seconds,
                )
            raise
        except BrokerError as error:
            if error.counts_as_outage:
                cut_off = trio.current_time() >= ends
                lasted = seconds if cut_off else math.inf
                if isinstance(error, NoAnswer):
                    lasted = min(lasted, trio.current_time() - attempt.began)
                self._count(sending, attempt, error, lasted=lasted)
            else:
                self.states.refused(attempt)
            if isinstance(error, EntityNotFound):
                self.entity_cache.remove(sending.entity)
            return error
        else:
            self.states.sent(attempt, late=late)
            self.pauses.end(sending.entity)
            self.entity_cache.note_accepted(sending.entity)
            return None
        finally:
            # Ends trials without a result: busy, refused, cancelled.
            self.states.release(attempt)

    async def _send(
        self, sending: Sending, attempt: Attempt, seconds: float, *, has_other_way: bool
    ) -> bool:
        """
        Return once the primary accepted the messages; True: so late that it counts as a failure.

        Raises:
            BrokerError: as `send_in_time`; also `NoAnswer` if another way is left and the entity
                shows no sign of life.
        """
        if not sending.may_divert:  # it waits in any case, and doesn't count for its entity
            await send_in_time(self.primary, sending.entity, sending.handed_over(), seconds)
            return False
        gives_up = has_other_way and sending.on_unknown is OnUnknown.DIVERT
        limit = time_limit(self.primary, sending.entity, seconds)
        patience = limit.scope if gives_up else None
        hedge = sending.hedge if gives_up else None
        failure: BrokerError | None = None
        watched = self.watch.begin(attempt, patience, hedge)
        try:
            with limit:
                await send(self.primary, sending.entity, sending.handed_over(), has_other_way)
        except BrokerError as error:
            failure = error
            waited = trio.current_time() - attempt.began
            if patience is not None and patience.cancelled_caught and waited < seconds:
                failure = unanswered(self.primary, sending.entity, waited)
            if hedge is not None:
                hedge.refused = failure.outcome is Outcome.NOT_SENT
                await hedge.wait()
        finally:
            self.watch.end(watched)
        if failure is not None:
            raise failure
        if hedge is not None:
            hedge.accepted_by_primary()
        self.watch.accepted(attempt)
        return trio.current_time() - attempt.began >= self.options.slowest_success

    def _count(
        self, sending: Sending, attempt: Attempt, error: BrokerError, *, lasted: float
    ) -> None:
        """Count a failure as an outage, unless the attempt had too little time."""
        fair = lasted >= min(FAIR_TRY, FAIR_SHARE * self.options.attempt_timeout)
        if fair and sending.may_divert:
            self.states.failed(attempt, error)

    def _divert_or_raise(self, sending: Sending, attempt: Attempt, error: BrokerError) -> None:
        """Return if the send is to be diverted; raise the caller's error otherwise."""
        sending.failed(error)
        if not (sending.may_divert and self._diverts(attempt, error)):
            raise sending.verdict(error)

    def _diverts(self, attempt: Attempt, error: BrokerError) -> bool:
        state = self.states.state_of(attempt.entity)
        if isinstance(error, QuotaExceeded):
            return self.options.divert_on_quota
        if isinstance(error, EntityNotFound | EntityDisabled):
            # The trial of a failed-over entity: treated as the result of a probe.
            diverted = attempt.trial and state is State.HALF_OPEN
            return diverted and self.options.on_unreachable is OnUnreachable.DIVERT
        if self.options.while_suspect is WhileSuspect.RAISE and state in HEALTHY_OR_SUSPECT:
            return False
        return error.counts_as_outage

    def _throttled_for_too_long(self, sending: Sending, error: Busy) -> bool:
        """Begin or extend a pause. True: it counts as an outage, by `throttle_failover_after`."""
        busy_for = self.pauses.begin(sending.entity, error)
        limit = self.options.throttle_failover_after
        if limit is None or busy_for < limit or not sending.may_divert:
            return False
        self.states.failed(self.states.begin(sending.entity), error)
        sending.failed(error)
        return True
