"""The number of tasks that receive from one queue, and the shares of several queues."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest

MAX_WEIGHT: Final = 1000  # beyond it a queue of weight 1 has no share worth the name


@attrs.frozen(kw_only=True)
class Sample:
    """Facts about a queue in which work was detected."""

    depth: int | None  # messages that wait; None: not reported
    oldest_age: float | None  # seconds, of the oldest message received just now
    tasks: int  # that receive from it now
    is_batch_full: bool  # the last receive returned as many messages as its limit


Rule = Callable[[Sample], int]
"""The number of tasks that a queue should have. Only scales up: idle tasks end by themselves."""


@attrs.frozen(kw_only=True)
class ByDepth:
    """
    The number of tasks by depth: `steps` are (depth, tasks below that depth), `beyond` past them.

    Never more tasks than messages, since a task that finds no message has cost a request. If the
    depth isn't known, a full batch asks for the tasks of the first step.
    """

    steps: tuple[tuple[int, int], ...] = attrs.field(default=((100, 10), (1000, 50)))
    beyond: int = attrs.field(default=100, validator=validators.ge(1))

    @steps.validator
    def _check_steps(self, attribute: object, steps: tuple[tuple[int, int], ...]) -> None:
        depths = [depth for depth, _ in steps]
        if depths != sorted(set(depths)) or any(tasks < 1 for _, tasks in steps):
            raise ValueError(f"steps: rising depths with at least one task each, got {steps}")

    def __call__(self, sample: Sample) -> int:
        if sample.depth is None:
            return self._tasks_for(0) if sample.is_batch_full else sample.tasks
        return min(self._tasks_for(sample.depth), sample.depth)

    def _tasks_for(self, depth: int) -> int:
        return next((tasks for limit, tasks in self.steps if depth < limit), self.beyond)


@attrs.frozen(kw_only=True)
class ByAge:
    """Doubles the tasks while the oldest message is older than `target` seconds."""

    target: float = attrs.field(validator=validators.gt(0.0))

    def __call__(self, sample: Sample) -> int:
        if sample.oldest_age is None or sample.oldest_age <= self.target:
            return sample.tasks
        return 2 * max(1, sample.tasks)


@attrs.frozen
class Most:
    """The maximum of the rules."""

    rules: tuple[Rule, ...]

    def __call__(self, sample: Sample) -> int:
        return max(rule(sample) for rule in self.rules)


@attrs.define(eq=False)
class Shares:
    """
    Weighted round robin among queues: with weights 8 and 2, of ten turns that both queues want, one
    gets eight and the other two, interleaved.
    """

    weights: Mapping[str, int]
    _credit: dict[str, int] = attrs.field(factory=dict, init=False)

    def choose(self, waiting: Iterable[str]) -> str:
        """The queue that has the next turn, among those that wait (at least one)."""
        wanted = list(waiting)
        for key in wanted:
            self._credit[key] = self._credit.get(key, 0) + self.weights[key]
        chosen = max(wanted, key=lambda key: self._credit[key])
        self._credit[chosen] -= sum(self.weights[key] for key in wanted)
        return chosen


def parse_weights(text: str) -> dict[str, int]:
    """
    Read `urgent:8 bulk:2`; a queue without a number has the weight 1.

    Raises:
        InvalidRequest: the text names the problem.
    """
    weights: dict[str, int] = {}
    for part in text.split():
        name, colon, number = part.partition(":")
        if colon and not (number.isascii() and number.isdecimal()):
            raise InvalidRequest(f"queues: NAME or NAME:WEIGHT expected, got {part!r}")
        weight = int(number) if colon else 1
        if not 1 <= weight <= MAX_WEIGHT:
            raise InvalidRequest(f"queues: {part!r}: a weight of 1 to {MAX_WEIGHT} expected")
        if name in weights:
            raise InvalidRequest(f"queues: {name!r} is named twice")
        weights[name] = weight
    if not weights:
        raise InvalidRequest("queues: at least one is needed")
    return weights
