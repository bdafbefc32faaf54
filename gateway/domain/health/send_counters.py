"""Counts sends by who accepted them and by outcome, and how long they took."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.health.distribution import LATENCIES, Histogram
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import SendCount, SendDuration

# Of random durations there are a dozen at a time; a slope that goes down without end has a bound.
MOST_SLOWEST: Final = 1000
CANCELLED: Final = "Cancelled"  # the error of a send whose caller has gone


@attrs.define(eq=False)
class _Counted:
    messages: int = 0
    seconds: Histogram = attrs.field(factory=lambda: Histogram(LATENCIES))


@attrs.define(eq=False)
class SendCounters:
    """Messages and durations since the start, by who accepted them or by the error."""

    batches: int = attrs.field(default=0, init=False)  # that have ended, accepted or not
    # The number and the seconds of each batch than which no later one was slower: ever fewer
    # seconds. So the first after a moment is the slowest since then.
    _slowest: deque[tuple[int, float]] = attrs.field(
        factory=lambda: deque(maxlen=MOST_SLOWEST), init=False
    )
    _accepted: dict[AcceptedBy, _Counted] = attrs.field(factory=dict, init=False)
    # By outcome and the class of the error.
    _failed: dict[tuple[str, str], _Counted] = attrs.field(factory=dict, init=False)
    _refused: Counter[str] = attrs.field(factory=Counter, init=False)

    def accepted(self, accepted_by: AcceptedBy, messages: int, seconds: float) -> None:
        """Count a batch that was accepted `seconds` seconds after it arrived."""
        counted = self._accepted.get(accepted_by)
        if counted is None:
            counted = self._accepted[accepted_by] = _Counted()
        counted.messages += messages
        counted.seconds.record(seconds)
        self._count_end(seconds)

    def failed(self, error: BrokerError | None, messages: int, seconds: float) -> None:
        """Count a batch that nobody accepted; no error: its caller has gone."""
        outcome = Outcome.UNKNOWN if error is None else error.outcome
        name = CANCELLED if error is None else type(error).__name__
        counted = self._failed.setdefault((outcome.value, name), _Counted())
        counted.messages += messages
        counted.seconds.record(seconds)
        self._count_end(seconds)

    def slowest_since(self, batches: int) -> float:
        """
        The seconds of the slowest batch after the first `batches`, accepted or not; 0: there was
        none. Beyond `MOST_SLOWEST` ever faster batches the earliest moments are forgotten.
        """
        return next((seconds for number, seconds in self._slowest if number > batches), 0.0)

    def _count_end(self, seconds: float) -> None:
        self.batches += 1
        while self._slowest and self._slowest[-1][1] <= seconds:
            self._slowest.pop()
        self._slowest.append((self.batches, seconds))

    @contextmanager
    def transaction(self, messages: int, clock: Callable[[], float]) -> Iterator[None]:
        """
        Count the messages of the transaction that is committed in this context, as accepted by the
        primary or as failed; `clock` gives seconds. A transaction without messages isn't counted.
        """
        began = clock()
        error: BrokerError | None = None
        committed = False
        try:
            yield
            committed = True
        except BrokerError as failure:
            error = failure
            raise
        finally:
            if committed and messages:
                self.accepted(AcceptedBy.PRIMARY, messages, clock() - began)
            elif messages:
                self.failed(error, messages, clock() - began)

    def refused_on_arrival(self, error: BrokerError, messages: int) -> None:
        """Count a batch that no namespace was asked to accept. It is counted as failed, too."""
        self._refused[type(error).__name__] += messages

    def all(self) -> Sequence[SendCount]:
        return [
            SendCount(
                accepted_by=accepted_by, outcome=outcome, messages=counted.messages, error=error
            )
            for accepted_by, outcome, error, counted in self._rows()
        ]

    def durations(self) -> Sequence[SendDuration]:
        return [
            SendDuration(accepted_by=accepted_by, error=error, seconds=counted.seconds.read())
            for accepted_by, _, error, counted in self._rows()
        ]

    def refused(self) -> Mapping[str, int]:
        """Messages that were refused on arrival, by the class of the error."""
        return dict(self._refused)

    def _rows(self) -> Iterator[tuple[str, str, str, _Counted]]:
        for accepted_by, counted in self._accepted.items():
            yield accepted_by.value, "accepted", "", counted
        for (outcome, error), counted in self._failed.items():
            yield "", outcome, error, counted
