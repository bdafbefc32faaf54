"""
Control by operators: orders, and the overrides that they leave behind.

An override pins entities to the backlog, or pauses the syphon for them, until an operator takes it
back or its end has come. Nothing here looks at a clock: dates are arguments, in UTC.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

import attrs
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

SAYS: Final = "says"  # metadata of a key in a query: what it selects, for OpenAPI
EVERYTHING: Final = "*"
MOST: Final = 100  # overrides of one kind, targets of one order, and exceptions of one override
LONGEST_REASON: Final = 200  # characters


class Action(enum.Enum):
    FAILOVER = "failover"  # pin to the backlog
    FAILBACK = "failback"  # return to the primary
    PAUSE = "pause"  # the syphon moves nothing
    RESUME = "resume"
    RATE = "rate"  # limits the syphon


def matches(target: str, name: str) -> bool:
    """True if the target is that name, or a pattern that matches it. Case is ignored."""
    return fnmatchcase(name.lower(), target.lower())


def check_target(text: str) -> str:
    """
    Return the name of an entity or backlog queue, or a pattern with `*` for any text.

    Raises:
        InvalidRequest: no entity can match it.
    """
    try:
        EntityPath.parse(text.replace("*", "x"))
    except InvalidRequest as error:
        raise InvalidRequest(f"target {text!r:.100}: an entity or a pattern: {error}") from error
    return text


def check_targets(targets: Sequence[str]) -> None:
    """
    Check the targets of an order.

    Raises:
        InvalidRequest: one is malformed, or there are none or too many.
    """
    if not 1 <= len(targets) <= MOST:
        raise InvalidRequest(f"targets: 1 to {MOST} expected, got {len(targets)}")
    for target in targets:
        check_target(target)


def check_reason(reason: str) -> None:
    """
    Check the reason of an order.

    Raises:
        InvalidRequest: it is too long.
    """
    if len(reason) > LONGEST_REASON:
        raise InvalidRequest(f"reason: at most {LONGEST_REASON} characters expected")


@attrs.frozen(kw_only=True)
class Operator:
    """The client that called: the name of its access policy or its user, and its address."""

    name: str
    peer: str


@attrs.frozen(kw_only=True)
class Order:
    """
    An operator's call that steers a process.

    Raises:
        InvalidRequest: a target is malformed, there are none or too many, or the reason is too
            long.
    """

    action: Action
    targets: tuple[str, ...] = (EVERYTHING,)
    reason: str = ""
    until: datetime | None = None  # the end of the override; None: until an operator ends it
    rate: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0.0))
    )  # messages/s; None: no limit
    force: bool = False  # also for targets that no entity is known for

    def __attrs_post_init__(self) -> None:
        check_targets(self.targets)
        check_reason(self.reason)
        if self.until is not None and self.until.tzinfo is None:
            raise InvalidRequest("until: a date with a time zone expected")


@attrs.frozen(kw_only=True)
class Override:
    """An operator's order that is in effect for all entities that its target matches."""

    target: str
    reason: str
    operator: str
    since: datetime
    until: datetime | None = None
    excepted: tuple[str, ...] = ()  # targets of later orders that took it back in part

    def covers(self, name: str) -> bool:
        if not matches(self.target, name):
            return False
        return not any(matches(each, name) for each in self.excepted)

    def is_same_order(self, other: "Override") -> bool:
        """True if the other, newer override changes nothing."""
        same = (self.target, self.reason, self.until) == (other.target, other.reason, other.until)
        return same and not self.excepted

    @property
    def text(self) -> str:
        """The override in a few words, for people."""
        until = (
            "" if self.until is None else f" until {self.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        )
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.target} by {self.operator}{until}{reason}"


@attrs.define(eq=False)
class Overrides:
    """All overrides of one kind, in the order in which they were given; at most `MOST`."""

    _given: dict[str, Override] = attrs.field(factory=dict, init=False)  # by their targets' keys

    def __bool__(self) -> bool:
        return bool(self._given)

    def __iter__(self) -> Iterator[Override]:
        return iter(tuple(self._given.values()))

    def all(self) -> tuple[Override, ...]:
        return tuple(self)

    def restore(self, overrides: Iterable[Override]) -> None:
        self._given = {each.target.lower(): each for each in overrides}

    def covering(self, name: str) -> Override | None:
        """The override in effect for that entity or queue; None: there is none."""
        return next((each for each in self._given.values() if each.covers(name)), None)

    def add(self, overrides: Iterable[Override]) -> bool:
        """
        Put the overrides into effect. One with the same target is replaced, and keeps its date.
        False: the same were in effect already.

        Raises:
            InvalidRequest: there would be more than `MOST`; nothing was changed.
        """
        given = dict(self._given)
        for override in overrides:
            key = override.target.lower()
            before = given.get(key)
            if before is None:
                given[key] = override
            elif not before.is_same_order(override):
                given[key] = attrs.evolve(override, since=before.since)
        if len(given) > MOST:
            raise InvalidRequest(f"{MOST} orders are in effect already: take some back first")
        return self._in_effect(given)

    def remove(self, targets: Iterable[str]) -> bool:
        """
        End all overrides that the targets include, and except the targets from the others. False:
        none of them concerned a target.

        Raises:
            InvalidRequest: one of them would have more than `MOST` exceptions; nothing was changed.
        """
        given = dict(self._given)
        for target in targets:
            for key, override in list(given.items()):
                if matches(target, override.target):
                    del given[key]
                elif may_meet(override.target, target) and target not in override.excepted:
                    excepted = (*override.excepted, target)
                    given[key] = attrs.evolve(override, excepted=excepted)
                    if len(excepted) > MOST:
                        raise InvalidRequest(
                            f"the order for {override.target} has {MOST} exceptions already"
                        )
        return self._in_effect(given)

    def _in_effect(self, given: dict[str, Override]) -> bool:
        before, self._given = self._given, given
        return given != before

    def pop_ended(self, now: datetime) -> list[Override]:
        """End the overrides whose end has come; return them."""
        over = [each for each in self if each.until is not None and each.until <= now]
        for each in over:
            del self._given[each.target.lower()]
        return over

    @property
    def next_end(self) -> datetime | None:
        return min((each.until for each in self if each.until is not None), default=None)


def may_meet(one: str, other: str) -> bool:
    """True if some entity may match both targets; seldom True although none does."""
    return matches(one, other) or matches(other, one) or ("*" in one and "*" in other)


@attrs.frozen(kw_only=True)
class ControlState:
    """The overrides in effect, the syphon's rate limit, and the entities that an order concerns."""

    entities: Mapping[str, str] = attrs.field(factory=dict)  # states by name; at most `MOST`
    more_entities: int = 0  # that `entities` has no room for
    pins: tuple[Override, ...] = ()
    pauses: tuple[Override, ...] = ()
    rate: float | None = None  # messages/s; None: no limit
    has_pair: bool = False  # whether this process can fail entities over
    has_syphon: bool = False
    # Processes of the pair that follow no orders from here: which, and why.
    not_reached: tuple[str, ...] = ()
    # Why it isn't known which other processes follow orders from here; empty: it is known.
    reach_unknown: str = ""


@attrs.frozen(kw_only=True)
class ControlQuery:
    """Asks for a `ControlState` with the states of the entities that the targets match."""

    targets: tuple[str, ...] = attrs.field(
        default=(EVERYTHING,), metadata={SAYS: "entities and patterns, separated by commas"}
    )


@attrs.frozen(kw_only=True)
class ControlAnswer:
    """The result of an order: the state before and after it. `changed`: they differ."""

    action: str
    targets: tuple[str, ...]
    changed: bool
    before: ControlState
    after: ControlState
