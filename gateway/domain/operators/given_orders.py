"""
The orders that operators gave at the processes of a pair, and what is in force by all of them.

Each order has a revision: milliseconds since 1970 by its process's clock, and always higher than
those of all orders that the process knew. What is in force follows from carrying out all known
orders by their revisions, so that two processes that know the same orders do the same. Of two
orders at the same millisecond, the one whose process has the higher id comes last.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import (
    EVERYTHING,
    Action,
    Override,
    Overrides,
    matches,
    may_meet,
)

# Orders that one process remembers though nothing in force is concerned. The others are bounded by
# the overrides that may be in force, and by their exceptions.
MOST_ENDING: Final = 100
# Time to remember them: a process that was cut off, or down, and still has an older order
# learns of its end when it returns.
REMEMBERED: Final = timedelta(days=7)


@attrs.frozen(kw_only=True)
class GivenOrder:
    """An order as its process remembers it and tells the others."""

    revision: int
    process: str  # the id of the process at which it was given
    action: Action
    targets: tuple[str, ...]
    operator: str
    at: datetime
    reason: str = ""
    until: datetime | None = None
    rate: float | None = None  # messages/s, of `Action.RATE`; None: no limit

    @property
    def key(self) -> tuple[int, str]:
        """The place of the order among all."""
        return self.revision, self.process

    @property
    def gives(self) -> bool:
        """True if it puts something into force, False if it takes that back."""
        if self.action is Action.RATE:
            return self.rate is not None
        return self.action in {Action.FAILOVER, Action.PAUSE}

    def is_over(self, now: datetime) -> bool:
        """True if its end has come. A rate has none: it is in force until the next one."""
        return self.action is not Action.RATE and self.until is not None and self.until <= now

    def overrides(self) -> list[Override]:
        """The overrides that it gives, one for each target."""
        return [
            Override(
                target=target,
                reason=self.reason,
                operator=self.operator,
                since=self.at,
                until=self.until,
            )
            for target in self.targets
        ]


@attrs.frozen(kw_only=True)
class InForce:
    """The overrides in force by all known orders, and the rate."""

    pins: tuple[Override, ...] = ()
    pauses: tuple[Override, ...] = ()
    rate: GivenOrder | None = None  # the last order of that kind; None: nobody gave one
    revision: int = 0  # of the newest order; 0: there is none


def in_force(orders: Iterable[GivenOrder], now: datetime) -> InForce:
    """Carry out the orders by their revisions, each once. Those whose end has come do nothing."""
    pins, pauses = Overrides(), Overrides()
    rate: GivenOrder | None = None
    revision = 0
    for order in in_sequence(orders):
        revision = max(revision, order.revision)
        if order.action is Action.RATE:
            rate = order
            continue
        kept = pins if order.action in {Action.FAILOVER, Action.FAILBACK} else pauses
        _carry_out(order, kept)
    pins.pop_ended(now)
    pauses.pop_ended(now)
    return InForce(pins=pins.all(), pauses=pauses.all(), rate=rate, revision=revision)


def _carry_out(order: GivenOrder, kept: Overrides) -> None:
    """Change nothing if there is no room: each process refuses its own order beforehand."""
    try:
        if order.gives:
            kept.add(order.overrides())
        else:
            kept.remove(order.targets)
    except InvalidRequest:
        return


def in_sequence(orders: Iterable[GivenOrder]) -> list[GivenOrder]:
    """Each order once, by their revisions."""
    return sorted({each.key: each for each in orders}.values(), key=lambda each: each.key)


def still_needed(
    own: Iterable[GivenOrder], others: Iterable[GivenOrder], now: datetime
) -> tuple[GivenOrder, ...]:
    """
    The orders of one process without those that change nothing any more. An order isn't needed if
    later ones of the same process end all that it does. What takes something back, and what has
    come to its end, is needed as long as an older order that it concerns is in force anywhere, and
    otherwise as long as another process may come back with one.
    """
    kept: list[GivenOrder] = []
    later: list[GivenOrder] = []
    for order in reversed(in_sequence(own)):
        if not _is_ended(order, later):
            kept.append(order)
        later.append(order)
    lasting = [each for each in (*kept, *others) if each.gives and not each.is_over(now)]
    ending = [each for each in kept if each not in lasting]
    idle = [each for each in ending if not _concerns_any(each, lasting)]
    recent = [each for each in idle if not _is_old(each, now)]
    forgotten = [each for each in idle if each not in recent[:MOST_ENDING]]
    return tuple(each for each in reversed(kept) if each not in forgotten)


_KINDS: Final = (
    frozenset({Action.FAILOVER, Action.FAILBACK}),
    frozenset({Action.PAUSE, Action.RESUME}),
    frozenset({Action.RATE}),
)


def _is_ended(order: GivenOrder, later: Iterable[GivenOrder]) -> bool:
    """
    True if later orders end what this one does to each target: they take the target back, or put
    into force the same one. The latter ends no taking back, which may concern narrower targets.
    """
    same = [each for each in later if _are_of_a_kind(order, each)]
    if order.action is Action.RATE:
        return bool(same)
    ending = {
        target.lower() for each in same if order.gives or not each.gives for target in each.targets
    }
    taken_back = {target for each in same if not each.gives for target in each.targets}
    patterns = [each for each in taken_back if EVERYTHING in each]
    return all(
        target.lower() in ending or any(matches(each, target) for each in patterns)
        for target in order.targets
    )


def _concerns_any(order: GivenOrder, lasting: Iterable[GivenOrder]) -> bool:
    """True if the order changes what an older one put into force."""
    return any(
        order.action is Action.RATE or may_meet(target, given)
        for older in lasting
        if older.key < order.key and _are_of_a_kind(order, older)
        for target in order.targets
        for given in older.targets
    )


def _are_of_a_kind(one: GivenOrder, other: GivenOrder) -> bool:
    return any(one.action in kind and other.action in kind for kind in _KINDS)


def _is_old(order: GivenOrder, now: datetime) -> bool:
    return now - max(order.at, order.until or order.at) > REMEMBERED
