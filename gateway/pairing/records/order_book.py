"""The orders that this process knows: those given here, and those of the pair's other processes."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import attrs

from gateway.changes import Changes
from gateway.domain.health.process_records import ORDERS_HOLD
from gateway.domain.operators.control import Action, Order, Override
from gateway.domain.operators.given_orders import (
    GivenOrder,
    InForce,
    in_force,
    in_sequence,
    still_needed,
)
from gateway.ports import WallClock

_MILLISECONDS: Final = 1000.0  # in a second


@attrs.define(eq=False, kw_only=True)
class OrderBook:
    """
    `given` counts the orders given here, which the record must tell at once; `changes` also what
    the state file must know of others.
    """

    process: str  # this process's id
    clock: WallClock
    given: Changes = attrs.field(factory=Changes, init=False)
    changes: Changes = attrs.field(factory=Changes, init=False)
    # The date until which the orders of others hold if nothing more is heard of them.
    others_until: datetime | None = attrs.field(default=None, init=False)
    # Revision of the newest request to reload that was given here; 0: none was.
    reload: int = attrs.field(default=0, init=False)
    # Counts the requests of other processes that concern this one.
    reloads: Changes = attrs.field(factory=Changes, init=False)
    _reload_heard: int | None = attrs.field(default=None, init=False)  # the newest of others
    _started: int = attrs.field(init=False)  # as a revision
    _own: tuple[GivenOrder, ...] = attrs.field(default=(), init=False)
    _others: tuple[GivenOrder, ...] = attrs.field(default=(), init=False)

    def __attrs_post_init__(self) -> None:
        self.given.pass_on(self.changes)
        self._started = int(self.clock().timestamp() * _MILLISECONDS)

    @property
    def own(self) -> tuple[GivenOrder, ...]:
        """The orders given here that are still needed."""
        return still_needed(self._own, self._others, self.clock())

    @property
    def others(self) -> tuple[GivenOrder, ...]:
        """The orders of other processes that hold."""
        return self._others

    @property
    def revision(self) -> int:
        """The revision of the newest order that is known; 0: none is."""
        return max((each.revision for each in (*self._own, *self._others)), default=0)

    def give(self, order: Order, operator: str) -> None:
        """Note an order given here: it is newer than all that are known."""
        now = self.clock()
        self._add(
            GivenOrder(
                revision=self._next_revision(now),
                process=self.process,
                action=order.action,
                targets=order.targets,
                operator=operator,
                at=now,
                reason=order.reason,
                until=order.until,
                rate=order.rate,
            )
        )

    def ask_reload(self) -> None:
        """Let the record ask all processes of the pair to read their configurations again."""
        self.reload = max(self._next_revision(self.clock()), (self._reload_heard or 0) + 1)
        self.given.notify()

    def hear_reload(self, revision: int) -> None:
        """Note the newest request to reload that other processes tell; one from before the start
        concerns nobody here."""
        known = self._started if self._reload_heard is None else self._reload_heard
        if revision > known:
            self.reloads.notify()
        self._reload_heard = max(revision, self._reload_heard or 0)

    def adopt(self, orders: Iterable[GivenOrder]) -> None:
        """Take orders for this process's own: of its state file, or of the process before it."""
        known = {each.key for each in self._own}
        if new := [each for each in orders if each.key not in known]:
            self._own = tuple(in_sequence((*self._own, *new)))
            self.given.notify()

    def adopt_overrides(self, pins: Sequence[Override], pauses: Sequence[Override]) -> None:
        """Take the overrides of a state file that has no orders, of an earlier version."""
        for actions, overrides in (
            ((Action.FAILOVER, Action.FAILBACK), pins),
            ((Action.PAUSE, Action.RESUME), pauses),
        ):
            for override in sorted(overrides, key=lambda each: each.since):
                self._adopt_override(override, *actions)

    def _adopt_override(self, override: Override, gives: Action, takes: Action) -> None:
        given = GivenOrder(
            revision=self._next_revision(override.since),
            process=self.process,
            action=gives,
            targets=(override.target,),
            operator=override.operator,
            at=override.since,
            reason=override.reason,
            until=override.until,
        )
        self._add(given)
        if override.excepted:
            revision = self._next_revision(override.since)
            self._add(
                attrs.evolve(
                    given,
                    revision=revision,
                    action=takes,
                    targets=override.excepted,
                    reason="",
                    until=None,
                )
            )

    def learn(self, orders: Iterable[GivenOrder], until: datetime | None = None) -> bool:
        """
        Note the orders of all other processes that hold now, until that date if nothing more is
        heard. False: they are known.
        """
        found = tuple(in_sequence(orders))
        until = until or self.clock() + ORDERS_HOLD
        is_new = found != self._others
        # The state file is written for a new date only now and then.
        if is_new or (found and abs(until - (self.others_until or until)) >= ORDERS_HOLD / 3):
            self.others_until = until
            self.changes.notify()
        self._others = found
        return is_new

    def in_force(self) -> InForce:
        """Return what all known orders put into force now."""
        return in_force((*self._own, *self._others), self.clock())

    def _add(self, order: GivenOrder) -> None:
        self._own = still_needed((*self._own, order), self._others, self.clock())
        self.given.notify()

    def _next_revision(self, now: datetime) -> int:
        return max(int(now.timestamp() * _MILLISECONDS), self.revision + 1)
