"""How many tasks take messages from one queue, and in which shares several queues are served."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest

MAX_WEIGHT: Final = 1000


@attrs.frozen(kw_only=True)
class Sample:
    """What is known of a queue in which work was detected."""

    depth: int | None  # messages that wait; None: the namespace can't tell, or wouldn't
    oldest_age: float | None  # seconds, of the oldest message that was just taken
    tasks: int  # that take messages from it now
    is_batch_full: bool  # the last request got as many as it asked for


Rule = Callable[[Sample], int]
"""How many tasks a queue should have. It is asked for more tasks only: idle ones end themselves."""


@attrs.frozen(kw_only=True)
class ByDepth:
    """
    Below each depth so many tasks; `beyond` past the last one.

    Never more tasks than messages: a task that finds nothing has cost a request. Where the depth
    isn't known, a full batch asks for as many as the first step has.
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
    """Twice the tasks there are while the oldest message is older than `target` seconds."""

    target: float = attrs.field(validator=validators.gt(0.0))

    def __call__(self, sample: Sample) -> int:
        if sample.oldest_age is None or sample.oldest_age <= self.target:
            return sample.tasks
        return 2 * max(1, sample.tasks)


@attrs.frozen
class Most:
    """As many tasks as the rule that wants most of them."""

    rules: tuple[Rule, ...]

    def __call__(self, sample: Sample) -> int:
        return max(rule(sample) for rule in self.rules)


@attrs.define(eq=False)
class Shares:
    """
    Whose turn it is among queues with weights: with 8 and 2, of ten turns in a row that both want,
    one gets eight and the other two, and neither waits for the other's eight.
    """

    weights: Mapping[str, int]
    _credit: dict[str, int] = attrs.field(factory=dict, init=False)

    def choose(self, waiting: Iterable[str]) -> str:
        """Who of those (at least one) has the next turn."""
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
        InvalidRequest: the text says what is wrong.
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
