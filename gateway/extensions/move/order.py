"""The control calls of moves: their requests and answers."""

import enum
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.operators.control import EVERYTHING, check_reason, check_targets
from gateway.extensions.move.report import MoveReport
from gateway.extensions.move.stages import MoveStage
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall, NoKeys


class MoveAction(enum.Enum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLBACK = "rollback"


@attrs.frozen(kw_only=True)
class MoveOrder:
    """
    An operator's order about the moves of these entities.

    Raises:
        InvalidRequest: a target is malformed, there are none or too many, or the reason is too
            long.
    """

    action: MoveAction
    targets: tuple[str, ...] = (EVERYTHING,)
    force: bool = False  # start although the new namespace can't do all that the plan names
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        check_targets(self.targets)
        check_reason(self.reason)


@attrs.frozen(kw_only=True)
class PlanOrder:
    """
    Asks what a move of these entities would meet.

    Raises:
        InvalidRequest: a target is malformed, or there are none or too many.
    """

    targets: tuple[str, ...] = (EVERYTHING,)

    def __attrs_post_init__(self) -> None:
        check_targets(self.targets)


@attrs.frozen(kw_only=True)
class PlannedMove:
    """An entity as it would be moved."""

    entity: str
    is_topic: bool = False
    exists: bool = False  # at the new namespace
    messages: int | None = None  # to receive; None: not known
    requires_session: bool = False
    problems: tuple[str, ...] = ()  # what the new namespace can't do, or does otherwise
    lost: tuple[str, ...] = ()  # properties that it would be made without
    notes: tuple[str, ...] = ()  # what happens to messages that aren't moved


@attrs.frozen(kw_only=True)
class MovePlan:
    """The plan of a move; nothing was changed."""

    to: str  # the name of the new namespace
    entities: tuple[PlannedMove, ...]


@attrs.frozen(kw_only=True)
class MoveState:
    """
    The move of one entity. `left` are the messages at the side that it leaves, `dead_letters` the
    dead letters there; None: not known.
    """

    entity: str
    stage: MoveStage
    since: datetime
    paused: bool = False
    ordered: bool = False
    turns: bool = False  # it goes the other way once that side is empty
    left: int | None = None
    dead_letters: int | None = None
    problem: str = ""
    operator: str = ""
    reason: str = ""
    report: MoveReport = attrs.field(factory=MoveReport)


@attrs.frozen(kw_only=True)
class MovesAnswer:
    """The moves of a pair, by entity. `changed`: an order has changed one of them."""

    to: str
    moves: tuple[MoveState, ...]
    changed: bool = False


MOVES: Final = ControlCall(
    name="move",
    method="GET",
    summary="the move of each entity: its stage, what is left to move, and the report",
    request=NoKeys,
    answer=MovesAnswer,
    refusals=(501,),
    missing="moves nothing: its configuration has no [move]",
)
PLAN_MOVE: Final = ControlCall(
    name="move-plan",
    summary="compares entities with the namespace that they would be moved to",
    request=PlanOrder,
    answer=MovePlan,
    refusals=(*OF_NAMESPACE, 501),
    missing="moves nothing: its configuration has no [move]",
    audited=("to",),
    patience=600.0,  # for a namespace of many entities
)
MOVE: Final = ControlCall(
    name="move",
    summary="starts, pauses, resumes or rolls back moves of entities to another namespace",
    request=MoveOrder,
    answer=MovesAnswer,
    refusals=OF_NAMESPACE,
    missing="moves nothing: its configuration has no [move]",
    audited=("changed",),
    patience=600.0,
)
