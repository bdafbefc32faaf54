"""
The stages of an entity that is moved. Nothing here looks at a clock: dates are arguments, in UTC.

        START            EMPTIED
    OLD ─────▶ TO_NEW ───────────▶ NEW
     ▲           │ ▲                │
     │ EMPTIED   │ │ START          │ ROLL_BACK
     └──────── TO_OLD ◀─────────────┘
              ROLL_BACK

A roll back is a move the other way. An entity whose order is kept turns round only when the side
that it leaves is empty: messages are then never on both sides in two orders.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from gateway.domain.entity import EntityPath

# The places of the two namespaces, as of queues that are received from as one.
OLD: Final = 0
NEW: Final = 1  # a sequence number with a mark leads there
SIDES: Final = ("old", "new")
# From an order until all processes act on it at once, so that two gateways don't send one session's
# messages to different sides: four readings of the shared state.
SWITCH: Final = timedelta(seconds=2)


class MoveStage(enum.Enum):
    OLD = "old"  # everything is at the namespace that the entity leaves
    TO_NEW = "to-new"  # sends go to the new namespace; the old one is emptied
    NEW = "new"  # everything is at the new namespace
    TO_OLD = "to-old"  # rolled back: sends go to the old namespace; the new one is emptied


class MoveStep(enum.Enum):
    START = "start"
    ROLL_BACK = "rollback"
    EMPTIED = "emptied"  # the side that is left has no more messages


STAGES: Final[Mapping[MoveStage, Mapping[MoveStep, MoveStage]]] = {
    MoveStage.OLD: {MoveStep.START: MoveStage.TO_NEW},
    MoveStage.TO_NEW: {MoveStep.ROLL_BACK: MoveStage.TO_OLD, MoveStep.EMPTIED: MoveStage.NEW},
    MoveStage.NEW: {MoveStep.ROLL_BACK: MoveStage.TO_OLD},
    MoveStage.TO_OLD: {MoveStep.START: MoveStage.TO_NEW, MoveStep.EMPTIED: MoveStage.OLD},
}
_SENDS: Final = {
    MoveStage.OLD: OLD,
    MoveStage.TO_NEW: NEW,
    MoveStage.NEW: NEW,
    MoveStage.TO_OLD: OLD,
}
_MOVING: Final = (MoveStage.TO_NEW, MoveStage.TO_OLD)


@attrs.frozen(kw_only=True)
class Move:
    """The move of one queue, or of one topic with its subscriptions."""

    entity: str
    since: datetime  # of the stage; until then `before` holds
    stage: MoveStage = MoveStage.TO_NEW
    before: MoveStage = MoveStage.OLD
    is_topic: bool = False
    ordered: bool = False  # receivers get nothing of the new side before the old one is empty
    turns: bool = False  # once the side that is left is empty, the move goes the other way
    paused: bool = False
    operator: str = ""
    reason: str = ""

    @property
    def path(self) -> EntityPath:
        return EntityPath(self.entity)

    @property
    def source(self) -> int:
        """The place that is emptied in this stage."""
        return OLD if _SENDS[self.stage] == NEW else NEW

    @property
    def is_moving(self) -> bool:
        return self.stage in _MOVING

    def stage_at(self, now: datetime) -> MoveStage:
        return self.stage if now >= self.since else self.before

    def sends_at(self, now: datetime) -> int:
        """The place that sends go to."""
        return _SENDS[self.stage_at(now)]

    def receives_at(self, now: datetime, *, dead_letters: bool = False) -> Sequence[int]:
        """The places that are received from; those that are left first."""
        stage = self.stage_at(now)
        sends = _SENDS[stage]
        if dead_letters:  # they stay where the new side can't be sent any
            return (OLD, NEW)
        if stage not in _MOVING:
            return (sends,)
        source = OLD if sends == NEW else NEW
        return (source,) if self.ordered else (source, sends)

    def after(self, step: MoveStep, now: datetime) -> "Move":
        """The move after that step, of which the stage holds `SWITCH` later, if it is another."""
        wanted = STAGES[self.stage].get(step)
        is_order = step is not MoveStep.EMPTIED
        if wanted is None:
            return attrs.evolve(self, turns=False) if is_order else self
        if is_order and self.is_moving and self.ordered:
            return attrs.evolve(self, turns=True)
        return attrs.evolve(
            self,
            stage=wanted,
            before=self.stage_at(now),
            since=now + SWITCH,
            turns=self.turns and not is_order,
        )

    def turned(self, now: datetime) -> "Move":
        """
        The move the other way, if it is to turn round and its stage has held for a time: receivers
        have left the side that sends go to from now on.
        """
        if not self.turns or self.is_moving or now < self.since + SWITCH:
            return self
        return self.after(
            MoveStep.ROLL_BACK if self.stage is MoveStage.NEW else MoveStep.START, now
        )


@attrs.frozen(kw_only=True)
class Moves:
    """All entities for which a move was started."""

    moves: tuple[Move, ...] = ()

    def with_each(self, moves: Iterable[Move]) -> "Moves":
        """These moves, which replace those of the same entities."""
        by_key = {each.path.key: each for each in (*self.moves, *moves)}
        return Moves(moves=tuple(by_key[key] for key in sorted(by_key)))


BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


def not_started(entity: str, *, is_topic: bool, ordered: bool) -> Move:
    """The move of an entity before its first step."""
    return Move(
        entity=entity, since=BEGINNING, stage=MoveStage.OLD, is_topic=is_topic, ordered=ordered
    )
