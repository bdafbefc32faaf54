"""Executes the operators' orders for moves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.domain.events.control import ControlCalled
from gateway.domain.operators.control import Operator, matches
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.emptying import subscriptions_of
from gateway.extensions.move.mover import EntityMover
from gateway.extensions.move.order import (
    MoveAction,
    MoveOrder,
    MovePlan,
    MovesAnswer,
    MoveState,
    PlannedMove,
    PlanOrder,
)
from gateway.extensions.move.plan import Planning
from gateway.extensions.move.report import MoveReport
from gateway.extensions.move.stages import Move, Moves, MoveStep, not_started
from gateway.offering import required
from gateway.ports import Observer, WallClock
from gateway.wire.pairgate.control_call import NoKeys

_ANSWER: Final = 8.0  # seconds: less than a client's patience with the whole call
_AT_ONCE: Final = 16  # requests


@attrs.frozen(kw_only=True)
class MoveCalls:
    """The moves of a pair, or of the only namespace, as operators see them."""

    broker: MovedBroker
    mover: EntityMover
    to: str  # the name of the new namespace
    keeps_order: Callable[[EntityPath], bool]
    loses_order: bool = False  # the new namespace doesn't keep the order of its messages
    clock: WallClock
    observer: Observer

    async def plan(self, order: PlanOrder, _: Operator) -> MovePlan:
        """
        Compare the entities; nothing of them is changed.

        Raises:
            InvalidRequest: a target matches nothing that may be moved.
            BrokerError: a namespace doesn't answer.
        """
        return MovePlan(to=self.to, entities=tuple(await self._planned(order.targets)))

    async def _planned(self, targets: Sequence[str]) -> list[PlannedMove]:
        old, new = self.broker.sides
        found = await Planning(old=old, new=new).plan(targets, self.broker.entities)
        return [
            attrs.evolve(each, problems=(*each.problems, *self._problems_of_order(each)))
            for each in found
        ]

    def _problems_of_order(self, planned: PlannedMove) -> Iterator[str]:
        if not self._is_ordered(planned):
            return
        if planned.messages is None and not planned.is_topic:
            yield "its order is kept, and nobody counts its messages: its move would never end"
        if self.loses_order:
            yield "its order is kept, and a Storage Queue doesn't keep the order of its messages"

    async def execute(self, order: MoveOrder, operator: Operator) -> MovesAnswer:
        """
        Execute an order: it is known to all processes of the pair two seconds later.

        Raises:
            InvalidRequest: a target matches nothing, or the new namespace can't do all that the
                plan names; nothing was changed.
            BrokerError: a namespace doesn't answer, or the shared folder can't be written.
        """
        wanted = await self._wanted(order)
        now, before = self.clock(), {each.path.key: each for each in self.broker.book.moves}

        def edit(moves: Moves) -> Moves:
            known = {each.path.key: each for each in moves.moves}
            found = [known.get(each.path.key, each) for each in wanted]
            return moves.with_each(_after(each, order, operator, now) for each in found)

        await self.broker.book.edit(edit)
        after = {each.path.key: each for each in self.broker.book.moves}
        changed = any(before.get(key) != each for key, each in after.items())
        self.observer.report(
            ControlCalled.by(
                operator,
                f"move-{order.action.value}",
                changed=changed,
                targets=order.targets,
                reason=order.reason,
            )
        )
        return attrs.evolve(await self.state(NoKeys(), operator), changed=changed)

    async def _wanted(self, order: MoveOrder) -> list[Move]:
        """The moves that the order means; for a start, those of entities that are made first."""
        if order.action is not MoveAction.START:
            found = [each for each in self.broker.book.moves if _is_meant(each, order)]
            if not found:
                raise InvalidRequest(f"targets: no move of {' '.join(order.targets)} was started")
            return found
        planned = await self._planned(order.targets)
        problems = [f"{each.entity}: {text}" for each in planned for text in each.problems]
        if problems and not order.force:
            raise InvalidRequest(f"{'; '.join(problems)}; --force starts all the same")
        planning = Planning(old=self.broker.sides[0], new=self.broker.sides[1])
        for each in planned:
            await planning.make(each)
        return [
            not_started(
                each.entity,
                is_topic=each.is_topic,
                ordered=self._is_ordered(each),
            )
            for each in planned
        ]

    def _is_ordered(self, planned: PlannedMove) -> bool:
        return planned.requires_session or self.keeps_order(EntityPath(planned.entity))

    async def state(self, _: NoKeys, __: Operator) -> MovesAnswer:
        """The moves, with what is left as far as the namespaces answer in time."""
        states: dict[str, MoveState] = {}
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def ask(move: Move) -> None:
            async with limit:
                report = await self.mover.report_of(move.path)
                states[move.path.key] = _state(move, report, _UNANSWERED)
                states[move.path.key] = _state(move, report, await self._left(move))

        with trio.move_on_after(_ANSWER):
            async with trio.open_nursery() as nursery:
                for move in self.broker.book.moves:
                    states[move.path.key] = _state(move, MoveReport(), _UNANSWERED)
                    nursery.start_soon(ask, move)
        return MovesAnswer(to=self.to, moves=tuple(states.values()))

    async def _left(self, move: Move) -> "_Left":
        source = self.broker.sides[move.source]
        try:
            if move.is_topic:
                found = await subscriptions_of(required(source, Topology), move)
                return _Left(
                    messages=_sum(each.active for each in found),
                    dead_letters=_sum(each.dead_lettered for each in found),
                )
            info = await source.inspect(move.path)
        except BrokerError as error:
            return _Left(problem=str(error))
        messages = info.active
        if messages is not None:
            messages += info.locked_here + (info.scheduled or 0) + (info.deferred or 0)
        return _Left(messages=messages, dead_letters=info.dead_lettered)


@attrs.frozen(kw_only=True)
class _Left:
    """The messages that a side still has of an entity; None: not known."""

    messages: int | None = None
    dead_letters: int | None = None
    problem: str = ""


_UNANSWERED: Final = _Left(problem="no answer in time")


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(each or 0 for each in known)


def _state(move: Move, report: MoveReport, left: _Left) -> MoveState:
    return MoveState(
        entity=move.entity,
        stage=move.stage,
        since=move.since,
        paused=move.paused,
        ordered=move.ordered,
        turns=move.turns,
        left=left.messages,
        dead_letters=left.dead_letters,
        problem=left.problem or report.problem,
        operator=move.operator,
        reason=move.reason,
        report=report,
    )


def _is_meant(move: Move, order: MoveOrder) -> bool:
    return any(matches(each, move.entity) for each in order.targets)


def _after(move: Move, order: MoveOrder, operator: Operator, now: datetime) -> Move:
    """The move after the order; the same one if that changes nothing."""
    match order.action:
        case MoveAction.PAUSE | MoveAction.RESUME:
            changed = attrs.evolve(move, paused=order.action is MoveAction.PAUSE)
        case MoveAction.START:
            changed = move.after(MoveStep.START, now)
        case MoveAction.ROLLBACK:
            changed = move.after(MoveStep.ROLL_BACK, now)
    if changed == move:
        return move
    return attrs.evolve(changed, operator=operator.name, reason=order.reason)
