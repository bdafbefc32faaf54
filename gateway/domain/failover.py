"""
The failover of one entity: when it leaves the primary, and when it returns.

Rule 1: everything that decides a transition is in this file, except the number of successes that a
flapping entity needs for its return, which is in `flapping`.
Rule 2: this file never looks at a clock. `now` is an argument, in seconds of any monotonic clock.
"""

import enum
from typing import Final

import attrs
from attrs import validators

from gateway.domain.health.flapping import CALM, WINDOW, Damping


class State(enum.Enum):
    PRIMARY = "primary"  # healthy: sends go to the primary
    SUSPECT = "suspect"  # in doubt: probes ask the primary, sends wait for them or are diverted
    SECONDARY = "secondary"  # failed over: sends go to the backlog, probes ask the primary
    HALF_OPEN = "half-open"  # the primary answered: one trial at a time, others still diverted
    PINNED = "pinned"  # sends go to the backlog until an operator unpins the entity


class FailoverEvent(enum.Enum):
    SENT = "sent"  # the primary accepted a send
    FAILED = "failed"  # the primary failed in a way that counts as an outage
    FAILED_TOO_LONG = "failed for the failover interval"  # FAILED, and the interval is over
    SUSPECTED = "suspected"  # a send waits for its answer, or the namespace can't be reached
    REFUSED = "refused"  # the primary answered, without proof of the entity's health
    PROBED = "probed"  # a probe reached the entity on the primary
    PROBED_BESIDE = "probed beside a trial"  # the same, while a trial may tell more
    TRIAL_SENT = "trial sent"  # the one send that was let through was accepted
    PAUSED = "the gateway was paused"  # its clock jumped: earlier failures don't count
    FORCED_OVER = "forced over"  # by an operator
    FORCED_BACK = "forced back"

    @property
    def cause(self) -> str:
        """The cause's name in events and metrics."""
        return self.name.lower().replace("_", "-")


P, S, B, H, O = State.PRIMARY, State.SUSPECT, State.SECONDARY, State.HALF_OPEN, State.PINNED  # noqa: E741
E = FailoverEvent

# The theory. PRIMARY, SECONDARY and HALF_OPEN are the closed, open and half-open states of a
# circuit breaker. A breaker that opens costs its callers errors; a failover costs later delivery,
# and perhaps duplicates. So it isn't a number of failures that opens it, but a whole interval of
# them.
#
# SUSPECT is the time until that interval is over. An entity in doubt is no longer trusted, because
# each send may hang and end as unknown. It isn't given up either, because one error is no outage.
# Probes find out, because they are no messages and can't arrive twice. In SUSPECT any accepted send
# ends the doubt (SENT). In SECONDARY it ends nothing: the send began before the failover, and its
# answer is late. That is why the two are two states, though both divert.
#
# HALF_OPEN exists because a probe proves less than a send: a primary may answer the one and refuse
# the other. One trial at a time finds out, at the price of one message.
#
# PINNED is no state of health. No evidence moves it, only an operator.
#
# fmt: off
TRANSITIONS: dict[State, dict[FailoverEvent, State]] = {
    P: {E.SENT: P, E.FAILED: S, E.FAILED_TOO_LONG: B, E.SUSPECTED: S, E.REFUSED: P, E.PROBED: P,
        E.PROBED_BESIDE: P, E.TRIAL_SENT: P, E.PAUSED: P, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # PROBED is counted; enough of them lead to PRIMARY (see `advance`). PAUSED ends the streak of
    # failures. So does REFUSED after a quiet interval.
    S: {E.SENT: P, E.FAILED: S, E.FAILED_TOO_LONG: B, E.SUSPECTED: S, E.REFUSED: S, E.PROBED: S,
        E.PROBED_BESIDE: S, E.TRIAL_SENT: P, E.PAUSED: P, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # SENT is the late answer to a send that began before the failover: it doesn't count.
    B: {E.SENT: B, E.FAILED: B, E.FAILED_TOO_LONG: B, E.SUSPECTED: B, E.REFUSED: B, E.PROBED: H,
        E.PROBED_BESIDE: H, E.TRIAL_SENT: B, E.PAUSED: B, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # PROBED and TRIAL_SENT are counted; enough of them lead to PRIMARY (see `advance`).
    H: {E.SENT: H, E.FAILED: B, E.FAILED_TOO_LONG: B, E.SUSPECTED: H, E.REFUSED: H, E.PROBED: H,
        E.PROBED_BESIDE: H, E.TRIAL_SENT: H, E.PAUSED: B, E.FORCED_OVER: O, E.FORCED_BACK: P},
    O: {E.SENT: O, E.FAILED: O, E.FAILED_TOO_LONG: O, E.SUSPECTED: O, E.REFUSED: O, E.PROBED: O,
        E.PROBED_BESIDE: O, E.TRIAL_SENT: O, E.PAUSED: O, E.FORCED_OVER: O, E.FORCED_BACK: P},
}
# fmt: on

SUCCESSES: Final = frozenset({E.PROBED, E.PROBED_BESIDE, E.TRIAL_SENT})
COMPLETE: Final = SUCCESSES - {E.PROBED_BESIDE}  # a return
ANSWERS: Final = frozenset({E.PROBED, E.PROBED_BESIDE, E.REFUSED})
OPERATORS: Final = frozenset({E.FORCED_OVER, E.FORCED_BACK})
# Seconds of successes after which an entity that hasn't returned is no trouble any more: the third
# probe of a second each. What is cured is then known in the whole pair within five seconds.
STEADY: Final = 3.0


@attrs.frozen(kw_only=True)
class FailoverRule:
    """The failover interval in seconds, and the number of successes for a return."""

    interval: float = attrs.field(default=60.0, validator=validators.ge(0))
    successes_to_return: int = attrs.field(default=2, validator=validators.ge(1))

    @property
    def memory(self) -> float:
        """Seconds for which `failing_since` is remembered after a return by probes alone."""
        return max(self.interval, WINDOW)


@attrs.frozen(kw_only=True)
class Failover:
    """
    The state of one entity. `advance` returns the next value; a value never changes.

    A return from SUSPECT by probes alone doesn't end the streak: `failing_since` stays, and the
    next failure continues it. A successful send ends it.
    """

    state: State = State.PRIMARY
    failing_since: float | None = None  # the first failure of the streak
    last_failure: float | None = None  # or the last suspicion
    successes: int = 0  # in a row, while suspect or half open
    succeeding_since: float | None = None
    answered: bool = False  # suspect: the newest evidence is an answer
    damping: Damping = CALM

    def advance(
        self, event: FailoverEvent, rule: FailoverRule, *, now: float, began: float | None = None
    ) -> "Failover":
        """The value after that event. `began`: the start of the attempt that the event ends."""
        began = now if began is None else began
        since, quiet = self.failing_since, self._is_quiet(rule, began)
        last = (
            now if event in {FailoverEvent.FAILED, FailoverEvent.SUSPECTED} else self.last_failure
        )
        if event is FailoverEvent.REFUSED and quiet:
            event = FailoverEvent.SENT
        if event is FailoverEvent.SUSPECTED and quiet:
            if self.state is State.SUSPECT:
                last = self.last_failure  # an attempt that hangs since then may still fail
            else:
                since = None
        if event is FailoverEvent.FAILED:
            since = self._streak_start(rule, now, began)
            if now - since >= rule.interval:
                event = FailoverEvent.FAILED_TOO_LONG
        following = attrs.evolve(
            self,
            state=TRANSITIONS[self.state][event],
            failing_since=since,
            last_failure=last,
        )
        following = following._counted(event, now)
        if event in COMPLETE and following._has_proved_enough(rule, now):
            following = attrs.evolve(following, state=State.PRIMARY)
        return following._settled(self, event, now)

    def shifted(self, seconds: float) -> "Failover":
        """The same by a clock that is ahead by that many seconds, as another process has one."""

        def moved(moment: float | None) -> float | None:
            return None if moment is None else moment + seconds

        return attrs.evolve(
            self,
            failing_since=moved(self.failing_since),
            last_failure=moved(self.last_failure),
            succeeding_since=moved(self.succeeding_since),
            damping=self.damping.shifted(seconds),
        )

    def ends(self, rule: FailoverRule) -> float | None:
        """The end of the streak's failover interval; None: there is no streak."""
        return None if self.failing_since is None else self.failing_since + rule.interval

    def is_steady(self, now: float) -> bool:
        """True if it has succeeded for `STEADY` seconds, and only its past delays its return."""
        return self.succeeding_since is not None and now - self.succeeding_since >= STEADY

    def is_healthy(self, rule: FailoverRule, now: float) -> bool:
        """True if the entity is healthy and has no history that matters."""
        streak_goes_on = self.last_failure is not None and now - self.last_failure < rule.memory
        well = self.state is State.PRIMARY and not streak_goes_on
        return well and self.damping.is_over(now)

    def _streak_start(self, rule: FailoverRule, now: float, began: float) -> float:
        """
        The start of the streak that a failure belongs to. A quiet interval ends a streak, so that
        single errors with long pauses aren't an outage. Time with a hanging attempt isn't quiet.
        """
        since = self.failing_since
        return now if since is None or self._is_quiet(rule, began) else since

    def _is_quiet(self, rule: FailoverRule, began: float) -> bool:
        patience = rule.memory if self.state is State.PRIMARY else rule.interval
        return self.last_failure is not None and began - self.last_failure >= patience

    def _counted(self, event: FailoverEvent, now: float) -> "Failover":
        """The value with its consecutive successes updated, in the states that count them."""
        if self.state not in {State.SUSPECT, State.HALF_OPEN}:
            return self  # `_settled` resets the count
        if event in SUCCESSES:
            since = now if self.succeeding_since is None else self.succeeding_since
            count = self.successes + 1
            return attrs.evolve(self, successes=count, succeeding_since=since, answered=True)
        if event in {FailoverEvent.FAILED, FailoverEvent.SUSPECTED} and self.state is State.SUSPECT:
            return attrs.evolve(self, successes=0, succeeding_since=None, answered=False)
        return attrs.evolve(self, answered=self.answered or event in ANSWERS)

    def _has_proved_enough(self, rule: FailoverRule, now: float) -> bool:
        if self.succeeding_since is None:
            return False
        enough = self.successes >= self.damping.successes(rule.successes_to_return)
        return enough and now - self.succeeding_since >= self.damping.proof

    def _settled(self, before: "Failover", event: FailoverEvent, now: float) -> "Failover":
        """The value with streak, counters and damping as the change of state requires."""
        damping = self.damping
        if event in OPERATORS:
            damping = CALM
        elif before.state is State.PRIMARY and self.state is not State.PRIMARY:
            damping = damping.after_failure(now)
        elif TRANSITIONS[before.state][event] is not self.state:  # enough successes
            damping = damping.after_return(now)
        elif self.state is State.PRIMARY and before.state is not State.PRIMARY:
            damping = damping.after_recovery(now)
        provisional = before.state in {State.PRIMARY, State.SUSPECT} and event in ANSWERS
        keeps = self.state is State.SUSPECT or (self.state is State.PRIMARY and provisional)
        counts = self.state in {State.SUSPECT, State.HALF_OPEN}
        return Failover(
            state=self.state,
            failing_since=self.failing_since if keeps else None,
            last_failure=self.last_failure if keeps else None,
            successes=self.successes if counts else 0,
            succeeding_since=self.succeeding_since if counts else None,
            answered=self.answered and self.state is State.SUSPECT,
            damping=damping,
        )
