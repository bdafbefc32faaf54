"""The way to the primary: who may try it, and what each answer means."""

import math
from typing import Final

import attrs
import trio

from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityNotFound,
    QuotaExceeded,
)
from gateway.domain.failover import State
from gateway.pairing.knowledge import Knowledge
from gateway.pairing.options import OnUnreachable, PairOptions, WhileSuspect
from gateway.pairing.pauses import BusyPauses
from gateway.pairing.sending import SHORTEST_ATTEMPT, Sending, send_in_time, unanswered
from gateway.pairing.standings import Attempt, Standings
from gateway.ports import Broker

HEALTHY_OR_SUSPECT: Final = frozenset({State.PRIMARY, State.SUSPECT})
# A time-out counts only if the attempt had so many seconds, or that share of `attempt_timeout`.
FAIR_TRY: Final = 1.0
FAIR_SHARE: Final = 0.1


@attrs.define(eq=False, kw_only=True)
class PrimaryLeg:
    """Attempts on the primary, in turn."""

    primary: Broker
    options: PairOptions
    standings: Standings
    knowledge: Knowledge
    pauses: BusyPauses

    async def take(self, sending: Sending) -> bool:
        """
        True: the primary has the messages. False: they belong on the backlog.

        Raises:
            BrokerError: for the caller; the backlog doesn't help.
        """
        while sending.left > SHORTEST_ATTEMPT:
            attempt = await self._turn(sending)
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
        No backlog queue took it: ask the primary once more, whatever its standing.

        It has `at_most` that many seconds; `has_other_way` is that of `send_in_time`.

        Raises:
            BrokerError: the caller's fault, so that no other leg helps.
        """
        entity, seconds = sending.entity, min(sending.backlog_seconds, at_most)
        pinned = self.standings.state_of(entity) is State.PINNED
        if pinned or seconds < SHORTEST_ATTEMPT or self.pauses.left(entity) > 0:
            return False
        attempt = self.standings.begin(entity)
        error = await self._ask(sending, attempt, seconds, has_other_way=has_other_way)
        if error is None:
            if self.standings.state_of(entity) is State.SECONDARY:
                self.standings.probed(entity)  # it was asked just now, and answered
            return True
        sending.failed(error)
        if isinstance(error, Busy):
            self.pauses.begin(entity, error)
        elif not error.counts_as_outage:
            raise sending.verdict(error)
        return False

    async def _turn(self, sending: Sending) -> Attempt | None:
        """Wait until this send may try the primary. None: it may not."""
        entity = sending.entity
        while self._open_to_all(sending):
            if self.pauses.left(entity) == 0:
                return self.standings.begin(entity)
            await self._wait_for_pause(sending)
        if self.pauses.left(entity) > 0:
            return None
        trial = self.standings.begin_trial(entity)
        if trial is None and self.standings.state_of(entity) is State.SUSPECT:
            await self.standings.wait_verdict(
                entity, min(self.options.suspect_wait, sending.primary_seconds)
            )
            if self.standings.state_of(entity) is State.PRIMARY:
                return self.standings.begin(entity)
        return trial

    def _open_to_all(self, sending: Sending) -> bool:
        state = self.standings.state_of(sending.entity)
        # The legacy client tried the primary with every send until the interval was over.
        as_legacy = state is State.SUSPECT and self.options.while_suspect is WhileSuspect.RAISE
        return state is State.PRIMARY or as_legacy or not sending.may_divert

    async def _wait_for_pause(self, sending: Sending) -> None:
        try:
            # The attempt after the pause needs its time, or the pause would end in a time-out.
            await self.pauses.wait(sending.entity, sending.deadline - sending.primary_seconds)
        except Busy as error:
            raise sending.verdict(error) from error

    def _leaves_the_backlog(self, sending: Sending) -> bool:
        return sending.may_divert and self.options.while_suspect is not WhileSuspect.RAISE

    async def _ask(
        self, sending: Sending, attempt: Attempt, seconds: float, *, has_other_way: bool
    ) -> BrokerError | None:
        """One attempt; what it says of the primary's health goes to the standings."""
        ends = min(trio.current_time() + seconds, sending.deadline)
        sending.primary_asked = True
        try:
            await send_in_time(
                self.primary, sending.entity, sending.messages, seconds, has_other_way
            )
        except trio.Cancelled:
            if trio.current_time() >= ends:  # the caller's deadline was the attempt's as well
                self._count(sending, attempt, unanswered(sending.entity, seconds), lasted=seconds)
            raise
        except BrokerError as error:
            cut_off = trio.current_time() >= ends
            if error.counts_as_outage:
                self._count(sending, attempt, error, lasted=seconds if cut_off else math.inf)
            else:
                self.standings.refused(attempt)
            if isinstance(error, EntityNotFound):
                self.knowledge.gone(sending.entity)
            return error
        else:
            self.standings.sent(attempt)
            self.pauses.end(sending.entity)
            self.knowledge.saw(sending.entity)
            return None
        finally:
            # For what says nothing of the primary's health: busy, refused, cancelled.
            self.standings.release(attempt)

    def _count(
        self, sending: Sending, attempt: Attempt, error: BrokerError, *, lasted: float
    ) -> None:
        """An outage; but a deadline that is too near says nothing of the primary."""
        fair = lasted >= min(FAIR_TRY, FAIR_SHARE * self.options.attempt_timeout)
        if fair and sending.may_divert:
            self.standings.failed(attempt, error)

    def _divert_or_raise(self, sending: Sending, attempt: Attempt, error: BrokerError) -> None:
        """Return if the send goes on to the backlog; raise what the caller gets otherwise."""
        sending.failed(error)
        if not (sending.may_divert and self._diverts(attempt, error)):
            raise sending.verdict(error)

    def _diverts(self, attempt: Attempt, error: BrokerError) -> bool:
        state = self.standings.state_of(attempt.entity)
        if isinstance(error, QuotaExceeded):
            return self.options.divert_on_quota
        if isinstance(error, EntityNotFound | EntityDisabled):
            # The trial of an entity that failed over: as if a probe had found it.
            diverted = attempt.trial and state is State.HALF_OPEN
            return diverted and self.options.on_unreachable is OnUnreachable.DIVERT
        if self.options.while_suspect is WhileSuspect.RAISE and state in HEALTHY_OR_SUSPECT:
            return False
        return error.counts_as_outage

    def _throttled_for_too_long(self, sending: Sending, error: Busy) -> bool:
        """Begin or go on with the pause; by choice, a long one counts as an outage."""
        busy_for = self.pauses.begin(sending.entity, error)
        limit = self.options.throttle_failover_after
        if limit is None or busy_for < limit or not sending.may_divert:
            return False
        self.standings.failed(self.standings.begin(sending.entity), error)
        sending.failed(error)
        return True
