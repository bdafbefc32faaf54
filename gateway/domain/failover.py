"""
When one entity leaves the primary, and when it comes back.

Rule 1: everything that decides a transition is in this file.
Rule 2: this file never looks at a clock. `now` is an argument, in seconds of any monotonic clock.
"""

import enum

import attrs
from attrs import validators


class State(enum.Enum):
    PRIMARY = "primary"  # healthy: sends go to the primary
    SUSPECT = "suspect"  # failing, for less than the interval: one trial at a time, others diverted
    SECONDARY = "secondary"  # failed over: sends go to the backlog, probes ask the primary
    HALF_OPEN = "half-open"  # the primary answered: one trial at a time, others still diverted
    PINNED = "pinned"  # an operator put it on the backlog: only an operator takes it back


class Event(enum.Enum):
    SENT = "sent"  # the primary accepted a send
    FAILED = "failed"  # the primary failed in a way that counts as an outage
    FAILED_TOO_LONG = "failed for the failover interval"  # FAILED, and the interval is over
    REFUSED = "refused"  # the primary answered a send, which says nothing of its health
    PROBED = "probed"  # a probe reached the entity on the primary
    TRIAL_SENT = "trial sent"  # the one send that was let through was accepted
    PAUSED = "the gateway was paused"  # its clock jumped: what it judged is void
    FORCED_OVER = "forced over"  # an operator said so
    FORCED_BACK = "forced back"


P, S, B, H, O = State.PRIMARY, State.SUSPECT, State.SECONDARY, State.HALF_OPEN, State.PINNED  # noqa: E741
E = Event

# fmt: off
TRANSITIONS: dict[State, dict[Event, State]] = {
    P: {E.SENT: P, E.FAILED: S, E.FAILED_TOO_LONG: B, E.PROBED: P, E.TRIAL_SENT: P,
        E.REFUSED: P, E.PAUSED: P, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # PAUSED throws the streak of failures away. So does REFUSED, when the streak is over (see
    # `advance`).
    S: {E.SENT: P, E.FAILED: S, E.FAILED_TOO_LONG: B, E.PROBED: S, E.TRIAL_SENT: P,
        E.REFUSED: S, E.PAUSED: P, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # SENT is the late answer to a send that began before the failover: it brings nothing back.
    B: {E.SENT: B, E.FAILED: B, E.FAILED_TOO_LONG: B, E.PROBED: H, E.TRIAL_SENT: B,
        E.REFUSED: B, E.PAUSED: B, E.FORCED_OVER: O, E.FORCED_BACK: P},
    # PROBED and TRIAL_SENT are counted; enough of them lead to PRIMARY (see `advance`).
    H: {E.SENT: H, E.FAILED: B, E.FAILED_TOO_LONG: B, E.PROBED: H, E.TRIAL_SENT: H,
        E.REFUSED: H, E.PAUSED: B, E.FORCED_OVER: O, E.FORCED_BACK: P},
    O: {E.SENT: O, E.FAILED: O, E.FAILED_TOO_LONG: O, E.PROBED: O, E.TRIAL_SENT: O,
        E.REFUSED: O, E.PAUSED: O, E.FORCED_OVER: O, E.FORCED_BACK: P},
}
# fmt: on


@attrs.frozen(kw_only=True)
class FailoverRule:
    """How patient an entity is. Seconds, and how many successes bring it back."""

    interval: float = attrs.field(default=60.0, validator=validators.ge(0))
    successes_to_return: int = attrs.field(default=2, validator=validators.ge(1))


@attrs.frozen(kw_only=True)
class Failover:
    """Where one entity stands. `advance` returns the next value and leaves this one alone."""

    state: State = State.PRIMARY
    failing_since: float | None = None  # the first failure of the streak
    last_failure: float | None = None
    successes: int = 0  # since it opened half

    def advance(
        self, event: Event, rule: FailoverRule, *, now: float, began: float | None = None
    ) -> "Failover":
        """The standing after that event; `began` is when the attempt began that ended so."""
        since = self.failing_since
        if event is Event.REFUSED and self._is_quiet(rule, now if began is None else began):
            event = Event.SENT
        if event is Event.FAILED:
            since = self._streak_start(rule, now, now if began is None else began)
        if event is Event.FAILED and since is not None and now - since >= rule.interval:
            event = Event.FAILED_TOO_LONG
        last_failure = now if event is Event.FAILED else self.last_failure
        state = TRANSITIONS[self.state][event]
        successes = self._successes_after(event, state)
        if state is State.HALF_OPEN and successes >= rule.successes_to_return:
            state = State.PRIMARY
        return Failover(
            state=state,
            failing_since=since if state is State.SUSPECT else None,
            last_failure=last_failure if state is State.SUSPECT else None,
            successes=successes if state is State.HALF_OPEN else 0,
        )

    def _streak_start(self, rule: FailoverRule, now: float, began: float) -> float:
        """
        One error and then silence isn't an outage: a quiet interval ends the streak.

        An attempt that hangs isn't silence: quiet is only the time without one.
        """
        since = self.failing_since
        return now if since is None or self._is_quiet(rule, began) else since

    def _is_quiet(self, rule: FailoverRule, began: float) -> bool:
        return self.last_failure is not None and began - self.last_failure >= rule.interval

    def _successes_after(self, event: Event, state: State) -> int:
        counted = event in {Event.PROBED, Event.TRIAL_SENT} and state is State.HALF_OPEN
        return self.successes + 1 if counted else self.successes
