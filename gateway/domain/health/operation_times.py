"""Measures how long receives and settlements on a namespace take."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.errors import BrokerError
from gateway.domain.health.distribution import LATENCIES, Histogram
from gateway.domain.message import Abandon, Complete, DeadLetter, Settlement
from gateway.domain.status.process import OperationDuration

RECEIVE: Final = "receive"
SETTLE: Final = "settle"  # the kind of the next ones; also several of them in one operation
COMPLETE: Final = "complete"
ABANDON: Final = "abandon"
DEAD_LETTER: Final = "dead_letter"
DEFER: Final = "defer"


def name_of(settlement: Settlement) -> str:
    """The operation's name in OpenTelemetry's sense."""
    match settlement:
        case Complete():
            return COMPLETE
        case Abandon():
            return ABANDON
        case DeadLetter():
            return DEAD_LETTER
        case _:
            return DEFER


def name_of_all(settlements: Sequence[Settlement]) -> str:
    """As `name_of`, of several in one operation."""
    names = {name_of(each) for each in settlements}
    return names.pop() if len(names) == 1 else SETTLE


@attrs.define(eq=False)
class OperationTimes:
    """Seconds that operations took since the start, by their names and the classes of errors."""

    _seconds: dict[tuple[str, str], Histogram] = attrs.field(factory=dict, init=False)

    def record(self, name: str, seconds: float, error: BrokerError | None = None) -> None:
        """Count an operation that has ended."""
        key = (name, "" if error is None else type(error).__name__)
        histogram = self._seconds.get(key)
        if histogram is None:
            histogram = self._seconds[key] = Histogram(LATENCIES)
        histogram.record(seconds)

    def read(self) -> tuple[OperationDuration, ...]:
        """The operations until now."""
        return tuple(
            OperationDuration(name=name, error=error, seconds=histogram.read())
            for (name, error), histogram in self._seconds.items()
        )
