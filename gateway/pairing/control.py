"""
Control of a process by its operators: fail over and back, probe, pause and resume the syphon, limit
its rate. HTTP and the command line share this implementation.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled, ControlEnded
from gateway.domain.failover import State
from gateway.domain.health.process_records import ALONE
from gateway.domain.operators.control import (
    EVERYTHING,
    MOST,
    Action,
    ControlAnswer,
    ControlState,
    Operator,
    Order,
    Override,
    Overrides,
    matches,
)
from gateway.domain.operators.given_orders import GivenOrder, InForce
from gateway.domain.operators.probe import ACTION as PROBE
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder, ProbeResult
from gateway.pairing.entity_cache import EntityCache, KnownEntities
from gateway.pairing.prober import AT_ONCE, Prober
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.state_table import PROBED
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Observer, WallClock

FRESH: Final = 2.0  # seconds for which the answer to an order may be of earlier records
LONGEST_SLEEP: Final = 30.0  # seconds, after which a step of the wall clock is noticed


@attrs.define(eq=False, kw_only=True)
class Control:
    """
    Executes the orders of operators in this process. Each order is idempotent, and takes effect
    before the call returns: later sends go where the order says. Sends in progress end as they
    began.

    Orders survive a restart where the pair has a state file. With a `book`, they hold for all
    processes of the pair that read its records.
    """

    clock: WallClock
    observer: Observer
    pauses: Pauses
    syphons: Sequence[Syphon] = ()
    states: EntityStates | None = None  # of a gateway with a pair
    entity_cache: EntityCache | None = None
    prober: Prober | None = None  # of a gateway with a pair
    # With the orders of the pair's other processes; None: this process tells and hears of none.
    book: OrderBook | None = None
    reader: RecordReader | None = None  # of their records
    known: KnownEntities | None = None  # None: orders for unknown entities aren't refused
    # Counts the news that the record of this process tells at once: an order given here, or that
    # this process follows another's.
    told: Changes = attrs.field(factory=Changes, init=False)
    _orders: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        if self.book is not None:
            self.book.given.pass_on(self.told)

    async def order(self, order: Order, operator: Operator) -> ControlAnswer:
        """
        As `execute`, for an operator who may have mistyped a name.

        Raises:
            InvalidRequest: nobody knows an entity of the order, and it isn't forced.
        """
        self._check(order)
        if self.known is not None and not order.force:
            await self.known.refuse_unknown(order.targets, self._seen)
        answer = self.execute(order, operator)
        if self.reader is not None:
            await self.reader.look_again(FRESH)
        return attrs.evolve(answer, after=self.state(order.targets))

    def execute(self, order: Order, operator: Operator) -> ControlAnswer:
        """
        Execute the order, and report it with its operator.

        Raises:
            NotSupported: this process has no pair, or no syphon.
            InvalidRequest: the end is in the past, an entity never leaves the primary, or too many
                orders are in effect.
        """
        self._check(order)
        before = self.state(order.targets)
        now = self.clock()
        overrides = [
            Override(
                target=target,
                reason=order.reason,
                operator=operator.name,
                since=now,
                until=order.until,
            )
            for target in order.targets
        ]
        if order.action in {Action.FAILOVER, Action.FAILBACK}:
            changed = self._record_pins(order, overrides)
            self._report(order, operator, changed=changed)
            self._apply_pins(order, operator)
        else:
            changed = self._steer_syphons(order, overrides)
            self._report(order, operator, changed=changed)
        gives = order.action in {Action.FAILOVER, Action.PAUSE}
        if self.book is not None and (changed or not gives):
            self.book.give(order, operator.name)
        self._orders.notify()
        return ControlAnswer(
            action=order.action.value,
            targets=order.targets,
            changed=changed,
            before=before,
            after=self.state(order.targets),
        )

    def follow(self, orders: Iterable[GivenOrder]) -> None:
        """Put the orders of other processes into force, together with those given here."""
        if self.book is None or not self.book.learn(orders):
            return
        force = self.book.in_force()
        self._pins.restore(force.pins)
        self.pauses.overrides.restore(force.pauses)
        if self.states is not None:
            self.states.apply_pins((), "an operator's order at another process of the pair")
        self._apply_rate(force)
        self.pauses.apply()
        self._orders.notify()
        if self.syphons:
            self.told.notify()

    def forget_expired(self) -> None:
        """Drop the other processes' orders from before a restart once they hold no more."""
        until = None if self.book is None else self.book.others_until
        if until is not None and until <= self.clock():
            self.follow(())

    def _apply_rate(self, force: InForce) -> None:
        if force.rate is not None:
            for syphon in self.syphons:
                syphon.limit_rate(force.rate.rate)

    @property
    def is_pair_wide(self) -> bool:
        """True if orders given here are told to the pair's other processes."""
        return self.book is not None and (self.reader is None or self.reader.exists)

    @property
    def reach_unknown(self) -> str:
        """Why it isn't known which other processes follow orders from here; empty: it is."""
        if self.states is None and not self.syphons:
            return ""  # there is nothing to order
        return (
            ALONE if self.book is None or self.reader is None else self.reader.known.reach_unknown
        )

    @property
    def _pins(self) -> Overrides:
        return self.pauses.pins if self.states is None else self.states.pins

    async def probe(self, order: ProbeOrder, operator: Operator) -> ProbeAnswer:
        """
        Probe the troubled entities that the order names on the primary now: at most `AT_ONCE` of
        them, those that have been in trouble for the longest time. Report the order with its
        operator, and return when each probe has ended.

        Raises:
            NotSupported: this process has no pair.
            InvalidRequest: no entity of the order is in trouble, or all that are in trouble are
                pinned.
        """
        prober, found = self._to_probe(order.targets)
        probed = found[:AT_ONCE]
        before = {each.name: self._state_of(each) for each in probed}
        changed = not all(prober.is_asked(each) for each in probed)
        self.observer.report(
            ControlCalled.by(
                operator, PROBE, changed=changed, targets=order.targets, reason=order.reason
            )
        )
        results = dict[str, ProbeResult]()

        async def probe(entity: EntityPath) -> None:
            results[entity.name] = await prober.probe_now(entity)

        async with trio.open_nursery() as nursery:
            for entity in probed:
                nursery.start_soon(probe, entity)
        return ProbeAnswer(
            action=PROBE,
            targets=order.targets,
            changed=changed,
            before=before,
            after={each.name: self._state_of(each) for each in probed},
            probes={each.name: results[each.name] for each in probed},
            more=len(found) - len(probed),
        )

    def state(self, targets: Sequence[str] = (EVERYTHING,)) -> ControlState:
        """The overrides in effect, and the states of the entities that the targets match."""
        found = list(self._concerned(targets))
        return ControlState(
            entities={each.name: self._state_of(each) for each in found[:MOST]},
            more_entities=max(0, len(found) - MOST),
            pins=self._pins.all(),
            pauses=self.pauses.overrides.all(),
            rate=self.syphons[0].rate if self.syphons else None,
            has_pair=self.states is not None,
            has_syphon=bool(self.syphons),
            not_reached=() if self.reader is None else self.reader.known.not_reached,
            reach_unknown=self.reach_unknown,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, end the orders whose end has come, also orders from before a restart."""
        if self.book is not None:
            self._apply_rate(self.book.in_force())
        self._expire_orders()
        task_status.started()
        while True:
            with trio.move_on_after(self._until_next_end()):
                await self._orders.wait_next()
            self._expire_orders()

    def _check(self, order: Order) -> None:
        if order.until is not None and order.until <= self.clock():
            raise InvalidRequest(f"until: {order.until.isoformat()} is in the past")
        if order.action not in {Action.FAILOVER, Action.FAILBACK}:
            if not self.syphons and not self.is_pair_wide:
                raise NotSupported("no syphon runs in this process")
            return
        if self.states is None:
            if not self.is_pair_wide:
                raise NotSupported("this process has no pair, so no entity can fail over")
            return
        for target in order.targets if order.action is Action.FAILOVER else ():
            if EVERYTHING not in target and not self.states.leaves_the_primary(EntityPath(target)):
                raise InvalidRequest(f"{target} has divert = false: it never leaves the primary")

    def _to_probe(self, targets: Sequence[str]) -> tuple[Prober, list[EntityPath]]:
        """The entities that the targets match and that probes may return, the longest first."""
        if self.states is None or self.prober is None:
            raise NotSupported("this process has no pair, so it probes no entity")
        concerned = [
            each
            for each in sorted(self.states.troubled(), key=lambda each: each.since)
            if any(matches(target, each.entity.key) for target in targets)
        ]
        found = [each.entity for each in concerned if each.state in PROBED]
        if not found:
            named = " ".join(targets)
            if concerned:
                raise InvalidRequest(
                    f"nothing to probe: an operator pinned {named}, and only failback returns it"
                )
            raise InvalidRequest(f"nothing to probe: no entity that has failed matches {named}")
        return self.prober, found

    def _record_pins(self, order: Order, overrides: Sequence[Override]) -> bool:
        """Change the pins as ordered. False: nothing is to be done."""
        pins = self._pins
        if order.action is Action.FAILOVER:
            return pins.add(overrides)
        changed = pins.remove(order.targets)
        return changed or any(
            self._state_of(each) != State.PRIMARY.value for each in self._concerned(order.targets)
        )

    def _apply_pins(self, order: Order, operator: Operator) -> None:
        if self.states is None:
            self.pauses.apply()
            return
        by = f"forced by an operator: {order.action.value} by {operator.name}"
        reason = f"{by}: {order.reason}" if order.reason else by
        concerned = list(self._concerned(order.targets))
        self.states.apply_pins(concerned, reason)
        if order.action is Action.FAILBACK:
            for entity in concerned:
                if not self.states.is_covered(entity):
                    self.states.force_back(entity, reason)

    def _steer_syphons(self, order: Order, overrides: Sequence[Override]) -> bool:
        if order.action is Action.RATE:
            changed = any(syphon.rate != order.rate for syphon in self.syphons)
            for syphon in self.syphons:
                syphon.limit_rate(order.rate)
            return changed
        paused = self.pauses.overrides
        if order.action is Action.PAUSE:
            changed = paused.add(overrides)
        else:
            changed = paused.remove(order.targets)
        self.pauses.apply()
        return changed

    def _report(self, order: Order, operator: Operator, *, changed: bool) -> None:
        self.observer.report(
            ControlCalled.by(
                operator,
                order.action.value,
                changed=changed,
                targets=order.targets,
                reason=order.reason,
                until=order.until,
            )
        )

    def _expire_orders(self) -> None:
        now = self.clock()
        if self.states is not None and (over := self.states.pins.pop_ended(now)):
            self._report_end(Action.FAILBACK, over)
            self.states.apply_pins((), "the end of an operator's order has come")
        if over := self.pauses.pins.pop_ended(now):
            self._report_end(Action.FAILBACK, over)
            self.pauses.apply()
        if over := self.pauses.overrides.pop_ended(now):
            self._report_end(Action.RESUME, over)
            self.pauses.apply()

    def _report_end(self, action: Action, over: Sequence[Override]) -> None:
        for each in over:
            self.observer.report(
                ControlEnded(action=action.value, target=each.target, operator=each.operator)
            )

    def _until_next_end(self) -> float:
        """Seconds until an order ends, or the wall clock must be read again."""
        ends = [self.pauses.overrides.next_end, self._pins.next_end]
        now: datetime = self.clock()
        left = [(end - now).total_seconds() for end in ends if end is not None]
        return max(0.0, min([LONGEST_SLEEP, *left]))

    def _concerned(self, targets: Sequence[str]) -> Iterator[EntityPath]:
        """The entities that the targets name, and those known to the pair that they match."""
        if self.states is None or self.entity_cache is None:
            return
        named = [EntityPath(target) for target in targets if EVERYTHING not in target]
        known = [each.entity for each in self.entity_cache.all()]
        troubled = [each.entity for each in self.states.troubled()]
        for entity in {each.key: each for each in (*known, *troubled, *named)}.values():
            if any(matches(target, entity.key) for target in targets):
                yield entity

    def _seen(self) -> Iterator[str]:
        """The names that this process knows, and the targets of orders in force."""
        if self.entity_cache is not None:
            yield from (each.entity.name for each in self.entity_cache.all())
        if self.states is not None:
            yield from (each.entity.name for each in self.states.troubled())
        yield from (each.target for each in (*self._pins, *self.pauses.overrides))
        yield from (queue.name for syphon in self.syphons for queue in syphon.queues)
        if self.reader is not None:
            yield from self.reader.known.names()

    def _state_of(self, entity: EntityPath) -> str:
        assert self.states is not None, "without a pair no entity is concerned"
        return self.states.state_of(entity).value
