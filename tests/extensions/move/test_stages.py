"""The table of stages."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.extensions.move.stages import (
    NEW,
    OLD,
    STAGES,
    SWITCH,
    Move,
    MoveStage,
    MoveStep,
    not_started,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def at(stage: MoveStage, *, ordered: bool = False) -> Move:
    move = not_started("orders", is_topic=False, ordered=ordered)
    return attrs.evolve(move, stage=stage, before=stage)


def test_each_stage_has_a_row_and_can_be_left() -> None:
    assert STAGES.keys() == set(MoveStage)
    assert all(STAGES.values())


@pytest.mark.parametrize("stage", MoveStage)
@pytest.mark.parametrize("step", MoveStep)
def test_a_step_leads_where_the_table_says_and_else_changes_nothing(
    stage: MoveStage, step: MoveStep
) -> None:
    after = at(stage).after(step, NOW)

    assert after.stage is STAGES[stage].get(step, stage)
    assert (after.since == NOW + SWITCH) is (step in STAGES[stage])


def test_a_roll_back_swaps_the_sides_of_a_start() -> None:
    started = at(MoveStage.OLD).after(MoveStep.START, NOW)
    back = at(MoveStage.NEW).after(MoveStep.ROLL_BACK, NOW)
    later = NOW + SWITCH

    assert (started.source, started.sends_at(later), started.receives_at(later)) == (
        OLD,
        NEW,
        (OLD, NEW),
    )
    assert (back.source, back.sends_at(later), back.receives_at(later)) == (NEW, OLD, (NEW, OLD))


def test_a_stage_holds_from_its_date_on() -> None:
    started = at(MoveStage.OLD).after(MoveStep.START, NOW)
    early = NOW + SWITCH - timedelta(microseconds=1)

    assert (started.sends_at(early), started.receives_at(early)) == (OLD, (OLD,))


def test_an_ordered_entity_is_received_from_at_one_side_at_a_time() -> None:
    started = at(MoveStage.OLD, ordered=True).after(MoveStep.START, NOW)
    back = started.after(MoveStep.ROLL_BACK, NOW)
    empty = back.after(MoveStep.EMPTIED, NOW + SWITCH)
    early = empty.turned(empty.since)
    turned = empty.turned(empty.since + SWITCH)
    later = turned.since

    assert (started.sends_at(later), started.receives_at(later)) == (NEW, (OLD,))
    assert (back.stage, back.turns) == (MoveStage.TO_NEW, True)
    assert (empty.stage, empty.turns, empty.receives_at(later)) == (MoveStage.NEW, True, (NEW,))
    assert early == empty
    assert (turned.stage, turned.turns) == (MoveStage.TO_OLD, False)
    assert (turned.sends_at(later), turned.receives_at(later)) == (OLD, (NEW,))


def test_an_order_that_takes_back_a_turn_lets_the_move_go_on() -> None:
    started = at(MoveStage.OLD, ordered=True).after(MoveStep.START, NOW)

    assert started.after(MoveStep.ROLL_BACK, NOW).after(MoveStep.START, NOW) == started


def test_dead_letters_are_received_from_both_sides() -> None:
    assert at(MoveStage.NEW).receives_at(NOW, dead_letters=True) == (OLD, NEW)
